"""Numbers that a child module returns, as the scale beside a rotary embedding's frequencies.

A trace can hand such a number on, to a child or an operation, as it hands on a tensor. It cannot compute with it or
ask what it is: that may be another number in the next call. Knows nothing of modules.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn, Protocol

from torch import Tensor

from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because


class NumberKeeper(Protocol):
    """Who hears of it when a number is asked what it is."""

    def refuse(self, reason: Reason) -> NoReturn: ...


class Number(float):
    """`value` in the example call; `origin` is the fx node that computes it, or makes one.

    As a float it is NaN, so that whoever takes it for one without asking cannot pass for right.
    """

    keeper: NumberKeeper
    origin: Any
    value: float

    @classmethod
    def of(cls, keeper: NumberKeeper, origin: Any, value: float) -> Number:
        """A number that `origin` computes."""
        made = cls(math.nan)
        made.keeper, made.origin, made.value = keeper, origin, value
        return made


def _asked(self: Number, *others: Any) -> Any:
    if any(isinstance(o, Tensor) for o in others):
        return NotImplemented  # the tensor's own operator is written down
    self.keeper.refuse(because(forwards.CHILDS_NUMBER, how="computes with"))


_BINARY = "add sub mul truediv floordiv mod divmod pow"
for _name in (
    "eq ne lt le gt ge bool int float hash neg pos abs round trunc floor ceil format str repr "
    f"{_BINARY} {' '.join('r' + n for n in _BINARY.split())}"
).split():
    setattr(Number, f"__{_name}__", _asked)
