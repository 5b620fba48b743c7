"""The verifier: does rewritten code compute what the original computes? Used for modules and for kernels."""
