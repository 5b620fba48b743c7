"""Targets of a loss: class indices. Must not know what the loss is computed by."""

from __future__ import annotations

from torch import Tensor

from autofuse.torch_private import FakeTensor


def out_of_range(target: Tensor, classes: int, ignore_index: int) -> Tensor | None:
    """The targets that count and are no class, None where there are none. On CPU alone, where looking is no wait."""
    if target.device.type != "cpu" or isinstance(target, FakeTensor) or not target.numel():
        return None
    least, most = target.aminmax()
    if int(least) >= 0 and int(most) < classes:
        return None
    wrong = target[((target < 0) | (target >= classes)) & (target != ignore_index)]
    return wrong if wrong.numel() else None
