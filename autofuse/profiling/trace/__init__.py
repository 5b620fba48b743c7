"""Traces of torch's profiler, read from their files. Nothing here imports torch.

A trace may come from this process or from another machine: both are read here, so a number that a live profile shows
is computed as it would be from a file.
"""
