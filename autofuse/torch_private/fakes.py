"""Finds the real tensor from which a fake tensor was made."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autofuse import torch_private


def find_real_tensor(fake: object) -> Tensor | None:
    """The tensor from which `fake` was made; None if there is none or torch does not know it.

    torch remembers the fake tensor of each real tensor. This searches that table.
    """
    if not isinstance(fake, torch_private.FakeTensor):
        return None
    try:
        converter: Any = fake.fake_mode.fake_tensor_converter
        known = converter.meta_converter.describer.lookup_tensor  # real tensor -> its number
        found = [real for real, number in list(known.items()) if converter.tensor_memo.get(number) is fake]
    except AttributeError:  # another version of torch has another table
        return None
    return found[0] if len(found) == 1 and not isinstance(found[0], torch_private.FakeTensor) else None
