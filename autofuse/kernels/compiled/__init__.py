"""Our kernels for CPUs: plain functions of tensors that Inductor compiles into one region. One file for each family."""
