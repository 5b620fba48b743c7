"""Finds where code tests whether two values are the same object: `if key is query`, `if mask is self.mask`.

A trace runs on stand-ins, so the result for an argument needs a check. This file knows Python's code objects.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from torch import nn

from autofuse.fx.trace.own_forward import own_function

_LOADS = frozenset("LOAD_FAST LOAD_GLOBAL LOAD_DEREF LOAD_ATTR LOAD_CLASSDEREF".split())
_Operand = tuple[dis.Instruction, ...]


def names_compared_with_nonlocal(code: types.CodeType) -> frozenset[str]:
    """The local names that code compares by `is` with a value that is neither a constant nor another local name."""
    names = set[str]()
    for left, right in _operands_of_is(code):
        for one, other in ((left, right), (right, left)):
            if _is_local(one) and other and not _is_local(other):
                names.add(one[0].argval)
    return frozenset(names)


@cache
def names_compared_with_outside(code: types.CodeType) -> Mapping[str, int]:
    """The arguments and free variables that code compares by `is` with a value that may come from outside.

    Constants, other local names and attributes of local names have the same source as the name itself, so they do not
    count.

    Returns:
        Name -> line.
    """
    lines = dict[str, int]()
    steps = _steps(code)
    for index, step in enumerate(steps):
        if step.opname != "IS_OP":
            continue
        right, before = _operand(steps, index - 1)
        left, _ = _operand(steps, before)
        ends = (left, steps[max(before, 0)]), (right, steps[index - 1])
        for (one, _), (other, last) in (ends, ends[::-1]):
            inside = _is_own(other[0], code) if other else last.opname == "LOAD_CONST"
            if len(one) == 1 and one[0].opname in ("LOAD_FAST", "LOAD_DEREF") and not inside:
                line = one[0].positions.lineno if one[0].positions else None
                lines.setdefault(one[0].argval, line or code.co_firstlineno)
    return lines


@cache
def compares_objects(code: types.CodeType) -> bool:
    """Whether code compares two values by `is`, neither of which is a constant."""
    steps = _steps(code)
    for index, step in enumerate(steps):
        if step.opname == "IS_OP" and steps[index - 1].opname != "LOAD_CONST":
            right, before = _operand(steps, index - 1)
            if not right or steps[max(before, 0)].opname != "LOAD_CONST":
                return True
    return False


def _is_own(load: dis.Instruction, code: types.CodeType) -> bool:
    """Whether a variable belongs to the function itself, not to one around it."""
    return load.opname == "LOAD_FAST" or load.opname == "LOAD_DEREF" and load.argval in code.co_cellvars


@cache
def compares_arguments(cls: type[nn.Module]) -> bool:
    """Whether a method of a module's class compares two local names by `is`."""
    functions = [
        own_function(f) for c in cls.__mro__ if not c.__module__.startswith("torch.") for f in vars(c).values()
    ]
    codes = [f.__code__ for f in functions if isinstance(f, types.FunctionType)]
    return any(_is_local(a) and _is_local(b) for code in codes for a, b in _operands_of_is(code))


def _is_local(operand: _Operand) -> bool:
    return len(operand) == 1 and operand[0].opname == "LOAD_FAST"


def _operands_of_is(code: types.CodeType) -> Iterator[tuple[_Operand, _Operand]]:
    """The operands of each `is`; () for an operand that is not a name."""
    steps = _steps(code)
    for index, step in enumerate(steps):
        if step.opname == "IS_OP":
            right, before = _operand(steps, index - 1)
            left, _ = _operand(steps, before)
            if right or left:
                yield left, right


def _steps(code: types.CodeType) -> list[dis.Instruction]:
    # The instructions that are left out load no value, and may stand between a load and its use.
    return [s for s in dis.get_instructions(code) if s.opname not in ("CACHE", "EXTENDED_ARG", "PUSH_NULL")]


def _operand(steps: list[Any], last: int) -> tuple[_Operand, int]:
    """The loads that produce the operand that ends at `last`, and the index before it."""
    # `a.b.c` is one load of a name, followed by one LOAD_ATTR for each attribute.
    first = last
    while first > 0 and steps[first].opname == "LOAD_ATTR":
        first -= 1
    known = last >= 0 and all(s.opname in _LOADS for s in steps[first : last + 1])
    return (tuple(steps[first : last + 1]) if known else ()), first - 1
