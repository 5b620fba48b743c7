"""Defines sizes that stay symbolic while a forward is traced.

A Length is an integer that records how it was computed. Arithmetic makes new lengths. Code that needs the number itself
(a branch, `range`, `math.sqrt`) gets it, and a guard is added. torch accepts a Length wherever it takes a size, because
it is a SymInt: nothing in torch is patched. This file does not use modules.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

from autofuse.fx.trace.source_lines import is_called_by_einops

# The size of a dimension: a number, Python text over the arguments of forward, or None if it is unknown.
Size = int | str | None


class LengthKeeper(Protocol):
    """The owner of lengths. It makes new ones, and is called when the number of one is used."""

    def derive_length(
        self, function: Callable[..., Any], operands: tuple[int | Length, ...], value: int, size: Size
    ) -> Length: ...
    def assume(self, test: str | None, what: str) -> None: ...
    def fix_own_sizes(self, origin: Any) -> None: ...


class Length(torch.SymInt):
    """The length of a dimension, as a symbolic integer.

    Attributes:
        keeper: The recorder that owns the length.
        origin: The fx node that computes it.
        value: Its value in the example call.
        size: Its origin as text or a number, or None.
    """

    def __init__(self, keeper: LengthKeeper, origin: Any, value: int, size: Size) -> None:
        self.keeper, self.origin, self.value, self.size = keeper, origin, value, size
        self.node = self  # torch's C++ side looks for a `node` here

    # The methods that torch calls on a SymInt's node.

    def is_int(self) -> bool:
        """Returns True: the node is of type int, not float or bool."""
        return True

    def is_constant(self) -> bool:
        """Returns False, so that torch asks for the number only where it needs it."""
        return False

    def maybe_as_int(self) -> int | None:
        """Returns None, because the number is not known without a guard."""
        return None

    def guard_int(self, file: str, line: int) -> int:
        """Returns the number, with a guard."""
        return self.int_()

    def int_(self) -> int:
        """Returns the number itself. The trace then treats the length as constant."""
        if not isinstance(self.size, int):
            self.keeper.assume(self.size and f"{self.size} == {self.value}", "a length")
        self.keeper.fix_own_sizes(self.origin)
        return self.value

    def __int__(self) -> int:
        return self.int_()

    def __index__(self) -> int:
        return self.int_()

    def __float__(self) -> float:
        return float(self.int_())

    def __bool__(self) -> bool:
        return bool(self._compare(operator.ne, "!=", 0))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return sys.modules["numpy"].asarray(self.int_(), dtype=dtype)

    def __format__(self, spec: str) -> str:
        return format(self.int_(), spec)

    def __str__(self) -> str:
        return str(self.int_())

    def __repr__(self) -> str:
        return f"Length({self.value}, {self.size})"

    def __hash__(self) -> int:
        if is_called_by_einops():
            raise TypeError("unhashable: the length of a tensor that varies between calls")
        return hash(self.int_())  # a lookup in a dict or a functools cache depends on the number

    # Arithmetic with integers stays symbolic. Arithmetic with floats uses the number.

    def _combine(self, function: Callable[..., Any], symbol: str, other: Any, reflected: bool = False) -> Any:
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
        return self.keeper.derive_length(
            function, pair, value, _size_text(symbol, size_of(pair[0]), size_of(pair[1]), value)
        )

    def _compare(self, function: Callable[..., Any], symbol: str, other: Any) -> Any:
        if not isinstance(other, (int, float, Length)):
            return NotImplemented
        answer = bool(function(self.value, number(other)))
        for length in (self, other):
            if isinstance(length, Length):
                self.keeper.fix_own_sizes(length.origin)
        own_size, other_size = self.size, size_of(other)
        if own_size is not None and own_size == other_size and isinstance(other, Length):
            return answer  # both have the same origin, so the answer holds for all sizes
        if own_size is None or other_size is None:
            self.keeper.assume(None, "a length")
        elif not isinstance(own_size, int) or isinstance(other, Length) and not isinstance(other_size, int):
            test = f"{own_size} {symbol} {other_size}"
            self.keeper.assume(test if answer else f"not {test}", "a length")
        return answer


def number(x: Any) -> Any:
    """Returns the number in a Length without adding a guard. Anything else is returned unchanged."""
    return x.value if isinstance(x, Length) else x


def size_of(x: int | float | Length) -> Any:
    """Returns the origin of an operand. A plain number is its own origin."""
    return x.size if isinstance(x, Length) else x


def _size_text(symbol: str, left: Size, right: Size, value: int) -> Size:
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
        setattr(Length, f"__{name}__", lambda self, other, f=function, s=symbol: self._combine(f, s, other))
        setattr(Length, f"__r{name}__", lambda self, other, f=function, s=symbol: self._combine(f, s, other, True))
    for name, symbol in _COMPARISONS.items():
        function = getattr(operator, name)
        setattr(Length, f"__{name}__", lambda self, other, f=function, s=symbol: self._compare(f, s, other))
    setattr(Length, "__neg__", lambda self: self._combine(operator.mul, "*", -1))  # noqa: B010


_install_operators()
