"""A library with a `Tensor` of its own."""
