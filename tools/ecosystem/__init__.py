"""Runs autofuse over public packages, and runs what it rewrote: see `python -m tools.ecosystem --help`."""
