"""Numbers that a child module returns, such as the scale of a rotary embedding.

A trace can pass such a number to a child or an operation, as it passes a tensor. It cannot compute with the number or
read it, because the number may differ in the next call. This file knows no modules.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn, Protocol

from torch import Tensor

from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because


class NumberKeeper(Protocol):
    """The recorder, which refuses a read of a number."""

    def refuse(self, reason: Reason) -> NoReturn: ...


class Number(float):
    """A number whose value the trace must not use.

    It is NaN as a float, so code that uses it as a float without calling a method cannot get a plausible result.

    Attributes:
        keeper: the recorder.
        origin: the fx node that computes the number, or a function that makes the node.
        value: the number in the example call.
    """

    keeper: NumberKeeper
    origin: Any
    value: float

    @classmethod
    def of(cls, keeper: NumberKeeper, origin: Any, value: float) -> Number:
        """A number that `origin` computes."""
        number = cls(math.nan)
        number.keeper, number.origin, number.value = keeper, origin, value
        return number


def _refuse_use(self: Number, *others: Any) -> Any:
    if any(isinstance(o, Tensor) for o in others):
        return NotImplemented  # so that Python calls the tensor's operator, which the trace records
    self.keeper.refuse(because(forwards.CHILDS_NUMBER, how="computes with"))


_BINARY = "add sub mul truediv floordiv mod divmod pow"
for _name in (
    "eq ne lt le gt ge bool int float hash neg pos abs round trunc floor ceil format str repr "
    f"{_BINARY} {' '.join('r' + n for n in _BINARY.split())}"
).split():
    setattr(Number, f"__{_name}__", _refuse_use)
