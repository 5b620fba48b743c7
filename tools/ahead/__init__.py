"""Compiles every Triton kernel for GPUs that are not present, and checks its registers, spills and memory."""
