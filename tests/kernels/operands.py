"""Operands for the tests of providers: random, small, some with unusual strides."""

from __future__ import annotations

import torch
from torch import Tensor

_RANDOM = torch.Generator()


def tensor(*shape: int, grad: bool = True, seed: int = 0) -> Tensor:
    """Random numbers around 0."""
    _RANDOM.manual_seed(hash((shape, seed)) % 2**31)
    return torch.randn(*shape, generator=_RANDOM).requires_grad_(grad)


def scattered_tensor(*shape: int, grad: bool = True, seed: int = 1) -> Tensor:
    """The same with the first two dimensions exchanged in memory."""
    first, second, *rest = shape
    return tensor(second, first, *rest, grad=False, seed=seed).transpose(0, 1).requires_grad_(grad)


def classes(*shape: int, count: int, ignored: int = -100) -> Tensor:
    """Class indices, some of which are `ignored`."""
    _RANDOM.manual_seed(7)
    drawn = torch.randint(0, count, shape, generator=_RANDOM)
    return drawn.masked_fill(torch.rand(shape, generator=_RANDOM) < 0.2, ignored)
