"""Compiles every Triton kernel for GPUs that are not there, and holds its registers, spills and memory to bounds."""
