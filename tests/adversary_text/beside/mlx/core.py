"""Arrays with the names of torch's tensors."""

from tinygrad import Tensor as array

__all__ = ["array"]
