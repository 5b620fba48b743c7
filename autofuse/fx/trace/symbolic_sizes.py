"""Sizes that stay symbolic while a forward is traced.

A Length is an integer that remembers how it was computed. Arithmetic makes new lengths; everything that needs the
number itself (a branch, `range`, `math.sqrt`) gets it and leaves a guard. torch accepts it wherever it takes a size,
because it is a SymInt: nothing of torch has to be patched. Knows nothing of modules.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

from autofuse.fx.trace.source_lines import asked_by_einops

# How many elements a dimension has, as Python text over the arguments of forward; None where that is not known.
Size = int | str | None


class LengthKeeper(Protocol):
    """Who makes lengths and hears of it when one is taken as a number."""

    def derived(
        self, function: Callable[..., Any], operands: tuple[int | Length, ...], value: int, size: Size
    ) -> Length: ...
    def fixed(self, test: str | None, what: str) -> None: ...


class Length(torch.SymInt):
    """`value` in the example call; `origin` is the fx node that computes it, `size` its provenance."""

    def __init__(self, keeper: LengthKeeper, origin: Any, value: int, size: Size) -> None:
        self.keeper, self.origin, self.value, self.size = keeper, origin, value, size
        self.node = self  # torch's C++ side looks for a `node` here

    # What torch may ask a SymInt's node.

    def is_int(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def maybe_as_int(self) -> int | None:
        return None

    def guard_int(self, file: str, line: int) -> int:
        return self.int_()

    def int_(self) -> int:
        """The number itself, which the trace then holds for constant."""
        if not isinstance(self.size, int):
            self.keeper.fixed(self.size and f"{self.size} == {self.value}", "a length")
        return self.value

    def __int__(self) -> int:
        return self.int_()

    def __index__(self) -> int:
        return self.int_()

    def __float__(self) -> float:
        return float(self.int_())

    def __bool__(self) -> bool:
        return bool(self._compared(operator.ne, "!=", 0))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return sys.modules["numpy"].asarray(self.int_(), dtype=dtype)

    def __format__(self, spec: str) -> str:
        return format(self.int_(), spec)

    def __str__(self) -> str:
        return str(self.int_())

    def __repr__(self) -> str:
        return f"Length({self.value}, {self.size})"

    def __hash__(self) -> int:
        if asked_by_einops():
            raise TypeError("unhashable: the length of a tensor that varies between calls")
        return hash(self.int_())  # a look into a dict, or into a cache of functools, asks for the number

    # Arithmetic with whole numbers stays symbolic; with others it is done on the number.

    def _combined(self, function: Callable[..., Any], symbol: str, other: Any, reflected: bool = False) -> Any:
        if not isinstance(other, (int, float, Length)):
            return NotImplemented
        if (
            isinstance(other, float)
            or symbol == "/"
            or symbol == "**"
            and (reflected or not isinstance(other, int) or other < 0)
        ):
            left, right = (other, self.int_()) if reflected else (self.int_(), other)
            return function(left, right)
        pair: tuple[int | Length, int | Length] = (other, self) if reflected else (self, other)
        value = function(number(pair[0]), number(pair[1]))
        return self.keeper.derived(function, pair, value, _written(symbol, size_of(pair[0]), size_of(pair[1]), value))

    def _compared(self, function: Callable[..., Any], symbol: str, other: Any) -> Any:
        if not isinstance(other, (int, float, Length)):
            return NotImplemented
        answer = bool(function(self.value, number(other)))
        mine, theirs = self.size, size_of(other)
        if mine is not None and mine == theirs and isinstance(other, Length):
            return answer  # the same size under two names
        if mine is None or theirs is None:
            self.keeper.fixed(None, "a length")
        elif not isinstance(mine, int) or isinstance(other, Length) and not isinstance(theirs, int):
            test = f"{mine} {symbol} {theirs}"
            self.keeper.fixed(test if answer else f"not {test}", "a length")
        return answer


def number(x: Any) -> Any:
    """The number in a Length, without leaving a guard; anything else as it is."""
    return x.value if isinstance(x, Length) else x


def size_of(x: int | float | Length) -> Any:
    """The provenance of an operand: a plain number is its own."""
    return x.size if isinstance(x, Length) else x


def _written(symbol: str, left: Size, right: Size, value: int) -> Size:
    if left is None or right is None:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return value
    return f"({left} {symbol} {right})"


_ARITHMETIC = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "truediv": "/", "pow": "**",
}  # fmt: skip
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _install_operators() -> None:
    for name, symbol in _ARITHMETIC.items():
        function = getattr(operator, name)
        setattr(Length, f"__{name}__", lambda self, other, f=function, s=symbol: self._combined(f, s, other))
        setattr(Length, f"__r{name}__", lambda self, other, f=function, s=symbol: self._combined(f, s, other, True))
    for name, symbol in _COMPARISONS.items():
        function = getattr(operator, name)
        setattr(Length, f"__{name}__", lambda self, other, f=function, s=symbol: self._compared(f, s, other))
    setattr(Length, "__neg__", lambda self: self._combined(operator.mul, "*", -1))  # noqa: B010


_install_operators()
