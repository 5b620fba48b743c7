"""Targets of a loss: class indices."""

from __future__ import annotations

from torch import Tensor

from autofuse.torch_private import FakeTensor


def out_of_range(target: Tensor, classes: int, ignore_index: int) -> Tensor | None:
    """The targets that are neither a class nor ignored; None if there are none.

    Only on a CPU, where reading needs no synchronization.
    """
    if target.device.type != "cpu" or isinstance(target, FakeTensor) or not target.numel():
        return None
    least, most = target.aminmax()
    if int(least) >= 0 and int(most) < classes:
        return None
    invalid = target[((target < 0) | (target >= classes)) & (target != ignore_index)]
    return invalid if invalid.numel() else None
