"""The conditions on sizes under which a compilation is valid, as expressions that Python can evaluate.

Text can be stored on disk and is evaluated without sympy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from autofuse.torch_private import on_demand

_NAMES = {"max": max, "min": min, "abs": abs, "int": int, "math": math, "__builtins__": {}}
Plain = int | str  # a number, or a text


@dataclass(frozen=True)
class Size:
    """A number, or an expression of symbols. `text` is None if Python cannot evaluate what sympy printed."""

    number: int | None = None
    text: str | None = None
    expression: Any = None

    @property
    def symbol(self) -> str | None:
        """The name of the symbol, if the size is a single symbol."""
        if self.text is not None:
            return self.text if self.text.isidentifier() and self.text not in ("True", "False") else None
        return str(self.expression) if getattr(self.expression, "is_Symbol", False) else None

    def value(self, symbols: Mapping[str, int]) -> Any:
        """The value for these symbols.

        Raises:
            NameError: if a symbol is missing.
            TypeError: if a symbol is missing in a sympy expression.
        """
        if self.number is not None:
            return self.number
        if self.text is not None:
            return _code(self.text)(symbols)
        return self.expression.subs({s: symbols[str(s)] for s in self.expression.free_symbols})

    @property
    def plain(self) -> Plain | None:
        """The number or text to store; None if there is none."""
        return self.text if self.number is None else self.number


def size_of(value: Any) -> Size:
    """The `Size` of a number, a torch.SymInt, or a sympy expression."""
    expression = value.node.expr if isinstance(value, torch.SymInt) else value
    if isinstance(expression, int) and not isinstance(expression, bool):
        return Size(expression)
    text = str(on_demand.sympy_printer().doprint(expression))
    return Size(None, text if _is_understood(text) else None, expression)


def _is_understood(text: str) -> bool:
    """Whether all names in the text are symbols or known functions."""
    try:
        names = compile(text, "<a size>", "eval").co_names
    except SyntaxError:
        return False
    return all(n in _NAMES or n in vars(math) or n.lstrip("suz").isdigit() for n in names)


@cache
def _code(text: str) -> Callable[[Mapping[str, int]], Any]:
    code = compile(text, "<a size>", "eval")
    return lambda symbols: eval(
        code, dict(_NAMES), symbols
    )  # the text comes from our compiler or from a private folder


@dataclass(frozen=True)
class SizeConditions:
    """The conditions of one compilation.

    Attributes:
        layout: each size and stride of the tensors, in order.
        guards: the assumptions about their symbols.
    """

    layout: tuple[Size, ...]
    guards: tuple[Size, ...]

    def hold(self, actual: Sequence[int]) -> bool:
        """Whether the compiled loop supports tensors of these sizes and strides."""
        if len(actual) != len(self.layout):
            return False
        symbols: dict[str, int] = {}
        for size, number in zip(self.layout, actual, strict=True):
            if size.symbol is not None and symbols.setdefault(size.symbol, number) != number:
                return False
        if any(size.value(symbols) != number for size, number in zip(self.layout, actual, strict=True)):
            return False
        return all(bool(guard.value(symbols)) for guard in self.guards)

    def texts(self) -> tuple[list[Plain], list[Plain]] | None:
        """Layout and guards as plain data; None if one of them has no such form."""
        layout, guards = [s.plain for s in self.layout], [g.plain for g in self.guards]
        known = [x for x in layout if x is not None], [x for x in guards if x is not None]
        return known if (len(known[0]), len(known[1])) == (len(layout), len(guards)) else None

    @classmethod
    def from_texts(cls, layout: Sequence[Plain], guards: Sequence[Plain]) -> SizeConditions | None:
        """The inverse of `texts`; None for invalid data."""
        sizes = [_from_plain(x) for x in (*layout, *guards)]
        known = [m for m in sizes if m is not None]
        return cls(tuple(known[: len(layout)]), tuple(known[len(layout) :])) if len(known) == len(sizes) else None


def _from_plain(value: object) -> Size | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if isinstance(value, int):
        return Size(value)
    return Size(None, value) if _is_understood(value) else None
