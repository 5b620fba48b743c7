"""A library with its own `Tensor`."""
