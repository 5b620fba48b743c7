"""Which children code has in hand for another reason than to call them: `isinstance(self.drop, nn.Identity)`.

A call of a child runs whatever stands there by then. What code found out of a child's class, or that it is no None,
holds only while a child of the same class stands there. Knows Python's code objects and where a child was read.
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

CALLED, NONE, KEPT, USED = range(4)  # it is called at once; compared with None; kept for later; anything else
_ASKS = frozenset({
    "isinstance", "issubclass", "type", "id", "hash", "repr", "str", "callable", "bool", "any", "all", "filter",
    "sorted", "getattr", "hasattr", "vars", "dir", "__class__",
})  # fmt: skip
_COMPARES = frozenset({"IS_OP", "CONTAINS_OP", "COMPARE_OP", "MATCH_CLASS", "BINARY_SUBSCR"})
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_ELEMENTS = frozenset({"GET_ITER", "BINARY_SUBSCR"})


@dataclass
class ChildReads:
    """The children that were read: those of which the class is of consequence, and those that may be."""

    _sure: dict[int, nn.Module] = field(default_factory=dict)
    _compared: dict[int, nn.Module] = field(default_factory=dict)  # with None
    _maybe: dict[int, nn.Module] = field(default_factory=dict)

    def read(self, child: nn.Module) -> None:
        """The user's code, or torch's on its behalf, reads a child by its name."""
        use = _use(sys._getframe(1), isinstance(child, _LISTS))
        {USED: self._sure, NONE: self._compared, KEPT: self._maybe, CALLED: {}}[use][id(child)] = child

    def listed(self, children: Iterable[nn.Module | None]) -> None:
        """Code goes through a table of children."""
        self._maybe.update((id(child), child) for child in children if child is not None)

    def of_class(self, module: nn.Module) -> None:
        """Code reads what the class of a child holds."""
        self._sure[id(module)] = module

    def asked(self, ran: Iterable[Execution], called: Iterable[nn.Module]) -> list[nn.Module]:
        """The children of which the class is of consequence. `called`: those that the graph calls, which raises an
        error where None stands there, and then the original runs."""
        found = {**self._sure}
        known = set(map(id, called))
        found.update((i, child) for i, child in self._compared.items() if i not in known)
        if any(_asks(each) for each in ran):
            found.update(self._maybe)
        return list(found.values())


def _asks(ran: Execution) -> bool:
    """Whether code may find out what a value is that it has in hand."""
    facts = facts_of(ran.code)
    named = {load.name for load in facts.loaded(ran.lines)} | set(facts.attribute_names(ran.lines))
    return not named.isdisjoint(_ASKS) or _compares(ran.code)


@cache
def _compares(code: types.CodeType) -> bool:
    return any(step.opname in _COMPARES for step in dis.get_instructions(code))


def _use(frame: types.FrameType | None, is_list: bool) -> int:
    """What the code that reads a child does with it next."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return USED
    steps = _uses(frame.f_code)
    use, following = steps.get(frame.f_lasti, (USED, ""))
    return KEPT if is_list and following in _ELEMENTS else use


@cache
def _uses(code: types.CodeType) -> dict[int, tuple[int, str]]:
    """Offset of each read of an attribute -> what becomes of it, and the next instruction."""
    steps = [s for s in dis.get_instructions(code) if s.opname not in ("CACHE", "EXTENDED_ARG", "NOP")]
    return {
        step.offset: (_becomes(step, steps[place + 1 : place + 3]), steps[place + 1].opname)
        for place, step in enumerate(steps[:-1])
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD")
    }


def _becomes(step: dis.Instruction, after: list[Any]) -> int:
    if (
        step.opname == "LOAD_METHOD"
        or step.opname == "LOAD_ATTR"
        and str(step.argrepr).startswith(("NULL|", "method "))
    ):
        return CALLED
    opname = after[0].opname
    if opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return USED if after[0].argval == "__class__" else CALLED  # what is read of it is looked at by itself
    if opname.startswith("POP_JUMP") and "NONE" in opname:
        return NONE
    compares = opname == "LOAD_CONST" and after[0].argval is None and after[-1].opname == "IS_OP"
    return NONE if compares else KEPT if opname == "STORE_FAST" else USED
