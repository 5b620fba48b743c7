"""Another library whose tensors have the names of torch's."""

from tinygrad import Tensor as Tensor
