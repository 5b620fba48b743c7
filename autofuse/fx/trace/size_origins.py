"""Defines the origins of sizes, and what several rules for sizes need.

A size is a number, Python text over forward's arguments (`x.shape[1]`), or None if it is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from autofuse.fx.trace.symbolic_sizes import Length, Size

Sizes = tuple[Size, ...]
Lookup = Callable[[Tensor], Sizes]  # returns the sizes of an operand
Rule = Callable[[Lookup, Sequence[Any], dict[str, Any]], "Sizes | list[Sizes] | None"]


def size(x: Any) -> Size:
    """Returns the origin of a size that was passed to an operation."""
    return x.size if isinstance(x, Length) else int(x) if isinstance(x, int) and x >= 0 else None


def broadcast(operands: list[Sizes]) -> Sizes:
    """Returns the sizes after broadcasting operands against each other."""
    rank = max(map(len, operands))
    return tuple(common_size([o[d] for o in operands if len(o) >= -d]) for d in range(-rank, 0))


def common_size(sizes: list[Size]) -> Size:
    """Returns the size of a broadcast dimension.

    A number above 1 is the result, because every other size must equal it or be 1. Of two different texts, either may
    be 1.
    """
    for s in sizes:
        if isinstance(s, int) and s != 1:
            return s
    others = {s for s in sizes if s != 1}
    return others.pop() if len(others) == 1 else None if others else 1


def variadic(values: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the sizes or dimensions of a variadic call: `view(a, b)` or `view((a, b))`."""
    every = [*values, *kwargs.values()]
    return list(every[0]) if len(every) == 1 and isinstance(every[0], (tuple, list)) else every


def product(sizes: Sequence[Size]) -> Size:
    """Returns the product of sizes."""
    number, texts = 1, list[str]()
    for s in sizes:
        if s is None:
            return None
        if isinstance(s, int):
            number *= s
        else:
            texts.append(s)
    if not texts:
        return number
    return f"({' * '.join([*texts, *([str(number)] if number != 1 else [])])})"
