"""What a compilation assumed of sizes: expressions of symbols, as text that Python can evaluate.

A text can be kept on disk, and is evaluated without sympy. Knows numbers and symbols; must not know what is compiled.
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
    """A number, or an expression of symbols: `text` is None where Python cannot evaluate what sympy printed."""

    number: int | None = None
    text: str | None = None
    expression: Any = None

    @property
    def symbol(self) -> str | None:
        """Its name, if it is a symbol and nothing else."""
        if self.text is not None:
            return self.text if self.text.isidentifier() and self.text not in ("True", "False") else None
        return str(self.expression) if getattr(self.expression, "is_Symbol", False) else None

    def value(self, symbols: Mapping[str, int]) -> Any:
        """With numbers for the symbols. Raises NameError or TypeError where one is missing."""
        if self.number is not None:
            return self.number
        if self.text is not None:
            return _code(self.text)(symbols)
        return self.expression.subs({s: symbols[str(s)] for s in self.expression.free_symbols})

    @property
    def plain(self) -> Plain | None:
        """What can be kept of it; None where nothing can."""
        return self.text if self.number is None else self.number


def size_of(value: Any) -> Size:
    """A number, a symbolic integer of torch's, or an expression of sympy's."""
    expression = value.node.expr if isinstance(value, torch.SymInt) else value
    if isinstance(expression, int) and not isinstance(expression, bool):
        return Size(expression)
    text = str(on_demand.sympy_printer().doprint(expression))
    return Size(None, text if _is_understood(text) else None, expression)


def _is_understood(text: str) -> bool:
    """Whether all names but those of symbols are known here."""
    try:
        names = compile(text, "<a size>", "eval").co_names
    except SyntaxError:
        return False
    return all(n in _NAMES or n in vars(math) or n.lstrip("suz").isdigit() for n in names)


@cache
def _code(text: str) -> Callable[[Mapping[str, int]], Any]:
    code = compile(text, "<a size>", "eval")
    return lambda symbols: eval(code, dict(_NAMES), symbols)  # what our own compiler printed, from a private folder


@dataclass(frozen=True)
class SizeConditions:
    """layout: each size and stride of the tensors, in order. guards: what was assumed of the symbols in them."""

    layout: tuple[Size, ...]
    guards: tuple[Size, ...]

    def hold(self, actual: Sequence[int]) -> bool:
        """Whether what was compiled may run for tensors of these sizes and strides."""
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
        """Layout and guards as plain data; None where one of them cannot be said so."""
        layout, guards = [s.plain for s in self.layout], [g.plain for g in self.guards]
        known = [x for x in layout if x is not None], [x for x in guards if x is not None]
        return known if (len(known[0]), len(known[1])) == (len(layout), len(guards)) else None

    @classmethod
    def from_texts(cls, layout: Sequence[Plain], guards: Sequence[Plain]) -> SizeConditions | None:
        """The inverse of `texts`; None for anything else."""
        made = [_from_plain(x) for x in (*layout, *guards)]
        known = [m for m in made if m is not None]
        return cls(tuple(known[: len(layout)]), tuple(known[len(layout) :])) if len(known) == len(made) else None


def _from_plain(value: object) -> Size | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if isinstance(value, int):
        return Size(value)
    return Size(None, value) if _is_understood(value) else None
