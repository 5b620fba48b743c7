"""Our own Triton kernels, one family a file. Its files import triton, so they are loaded only where it is chosen."""
