"""Rewrites public packages with autofuse, and runs the rewritten code. See `python -m tools.ecosystem --help`."""
