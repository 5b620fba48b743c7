"""Benchmarks of autofuse. README.md in this folder lists what each measures."""
