"""Reads traces of torch's profiler from files. Nothing here imports torch.

A trace may come from this process or from another machine. Both go through this code, so a live profile and a file give
the same numbers.
"""
