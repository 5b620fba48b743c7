"""Finds the children that code uses for something else than a call: `isinstance(self.drop, nn.Identity)`.

A call runs whichever child is there at that time. If code uses the class of a child, or tests whether it is None, the
trace is valid only for a child of the same class. This file knows Python's code objects and where a child was read.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import nn

from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.source_lines import is_user_file
from autofuse.fx.trace.user_code import Execution

CALLED, NONE, KEPT, USED = range(4)  # called immediately; compared with None; assigned to a local; anything else
_QUERIES = frozenset({
    "isinstance", "issubclass", "type", "id", "hash", "repr", "str", "callable", "bool", "any", "all", "filter",
    "sorted", "getattr", "hasattr", "vars", "dir", "__class__",
})  # fmt: skip
_COMPARES = frozenset({"IS_OP", "CONTAINS_OP", "COMPARE_OP", "MATCH_CLASS", "BINARY_SUBSCR"})
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_ELEMENTS = frozenset({"GET_ITER", "BINARY_SUBSCR"})


@dataclass
class ChildReads:
    """The children that were read, grouped by whether their classes matter.

    Attributes:
        _certain: the class matters.
        _compared_with_none: compared with None.
        _possible: the class matters if the code that ran queries classes.
    """

    _certain: dict[int, nn.Module] = field(default_factory=dict)
    _compared_with_none: dict[int, nn.Module] = field(default_factory=dict)
    _possible: dict[int, nn.Module] = field(default_factory=dict)

    def read(self, child: nn.Module) -> None:
        """The user's code, or torch's code called by it, reads a child by name."""
        use = _use(sys._getframe(1), isinstance(child, _LISTS))
        {USED: self._certain, NONE: self._compared_with_none, KEPT: self._possible, CALLED: {}}[use][id(child)] = child

    def read_table(self, children: Iterable[nn.Module | None]) -> None:
        """Code iterates over a table of children."""
        self._possible.update((id(child), child) for child in children if child is not None)

    def read_of_class(self, module: nn.Module) -> None:
        """Code reads an attribute of a child's class."""
        self._certain[id(module)] = module

    def with_class_guard(self, ran: Iterable[Execution], called: Iterable[nn.Module]) -> list[nn.Module]:
        """The children whose class must be guarded.

        Args:
            ran: the code that ran.
            called: the children that the graph calls. They need no test against None: a call of None raises an error,
                and
                then the original forward runs.
        """
        children = {**self._certain}
        known = set(map(id, called))
        children.update((i, child) for i, child in self._compared_with_none.items() if i not in known)
        if any(_queries_classes(each) for each in ran):
            children.update(self._possible)
        return list(children.values())


def _queries_classes(ran: Execution) -> bool:
    """Whether code may find out what a value in a local variable is."""
    facts = facts_of(ran.code)
    names = {load.name for load in facts.loaded(ran.lines)} | set(facts.attribute_names(ran.lines))
    return not names.isdisjoint(_QUERIES) or _compares(ran.code)


@cache
def _compares(code: types.CodeType) -> bool:
    return any(step.opname in _COMPARES for step in dis.get_instructions(code))


def _use(frame: types.FrameType | None, is_list: bool) -> int:
    """The next use of a child by the user's code that reads it."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return USED
    steps = _uses(frame.f_code)
    use, following = steps.get(frame.f_lasti, (USED, ""))
    return KEPT if is_list and following in _ELEMENTS else use


@cache
def _uses(code: types.CodeType) -> dict[int, tuple[int, str]]:
    """Offset of each attribute read -> how the value is used, and the next instruction."""
    steps = [s for s in dis.get_instructions(code) if s.opname not in ("CACHE", "EXTENDED_ARG", "NOP")]
    return {
        step.offset: (_next_use(step, steps[index + 1 : index + 3]), steps[index + 1].opname)
        for index, step in enumerate(steps[:-1])
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD")
    }


def _next_use(step: dis.Instruction, after: list[Any]) -> int:
    if (
        step.opname == "LOAD_METHOD"
        or step.opname == "LOAD_ATTR"
        and str(step.argrepr).startswith(("NULL|", "method "))
    ):
        return CALLED
    opname = after[0].opname
    if opname in ("LOAD_ATTR", "LOAD_METHOD"):
        # A read of any other attribute of the child is recorded separately.
        return USED if after[0].argval == "__class__" else CALLED
    if opname.startswith("POP_JUMP") and "NONE" in opname:
        return NONE
    compares = opname == "LOAD_CONST" and after[0].argval is None and after[-1].opname == "IS_OP"
    return NONE if compares else KEPT if opname == "STORE_FAST" else USED
