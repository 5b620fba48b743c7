"""Arrays that are spelled as torch's tensors."""

from tinygrad import Tensor as array

__all__ = ["array"]
