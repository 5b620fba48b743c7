"""Our own kernels for CPUs: plain functions of tensors that Inductor compiles into one region. One family a file."""
