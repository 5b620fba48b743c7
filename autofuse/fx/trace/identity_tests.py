"""Where code asks whether two things are one: `if key is query`, `if mask is self.mask`.

A trace runs on stand-ins, so the answer for an argument has to be looked after. Knows Python's code objects.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import nn

from autofuse.fx.trace.own_forward import own_function

_LOADS = frozenset("LOAD_FAST LOAD_GLOBAL LOAD_DEREF LOAD_ATTR LOAD_CLASSDEREF".split())
_Operand = tuple[dis.Instruction, ...]


def outsiders(code: types.CodeType) -> frozenset[str]:
    """The local names that code compares, by identity, with what is neither a constant nor another local name."""
    found = set[str]()
    for left, right in _compared(code):
        for one, other in ((left, right), (right, left)):
            if _is_local(one) and other and not _is_local(other):
                found.add(one[0].argval)
    return frozenset(found)


@cache
def compares_arguments(cls: type[nn.Module]) -> bool:
    """Whether some function of a module's class compares two local names by identity."""
    functions = [
        own_function(f) for c in cls.__mro__ if not c.__module__.startswith("torch.") for f in vars(c).values()
    ]
    codes = [f.__code__ for f in functions if isinstance(f, types.FunctionType)]
    return any(_is_local(a) and _is_local(b) for code in codes for a, b in _compared(code))


def _is_local(operand: _Operand) -> bool:
    return len(operand) == 1 and operand[0].opname == "LOAD_FAST"


def _compared(code: types.CodeType) -> Iterator[tuple[_Operand, _Operand]]:
    """The operands of each `is`, () for one that is no name."""
    steps = [s for s in dis.get_instructions(code) if s.opname not in ("CACHE", "EXTENDED_ARG", "PUSH_NULL")]
    for place, step in enumerate(steps):
        if step.opname == "IS_OP":
            right, before = _operand(steps, place - 1)
            left, _ = _operand(steps, before)
            if right or left:
                yield left, right


def _operand(steps: list[Any], last: int) -> tuple[_Operand, int]:
    """The loads that make the operand which ends at `last`, and the place before it."""
    first = last
    while first > 0 and steps[first].opname == "LOAD_ATTR":
        first -= 1
    known = last >= 0 and all(s.opname in _LOADS for s in steps[first : last + 1])
    return (tuple(steps[first : last + 1]) if known else ()), first - 1
