"""From a fake tensor back to the tensor with numbers that it was made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autofuse import torch_private


def real_behind(fake: object) -> Tensor | None:
    """The tensor that `fake` was made of, None where there is none, or where torch does not tell.

    torch remembers the fake of each tensor, for the next time it is asked for; this looks there.
    """
    if not isinstance(fake, torch_private.FakeTensor):
        return None
    try:
        converter: Any = fake.fake_mode.fake_tensor_converter
        known = converter.meta_converter.describer.lookup_tensor  # the real ones, with numbers of their own
        found = [real for real, number in list(known.items()) if converter.tensor_memo.get(number) is fake]
    except AttributeError:  # another torch keeps it elsewhere
        return None
    return found[0] if len(found) == 1 and not isinstance(found[0], torch_private.FakeTensor) else None
