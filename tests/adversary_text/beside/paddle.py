"""Another library whose tensors are spelled as torch's."""

from tinygrad import Tensor as Tensor
