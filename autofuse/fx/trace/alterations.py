"""Finds what a code object can alter: containers whose elements it sets, and attributes that it assigns.

The bytecode tells where the changed object comes from: a chain of attributes that begins with a global, a free variable
or a local variable. This file knows nothing of values.
"""

from __future__ import annotations

import dis
import functools
import types
from dataclasses import dataclass

_ROOTS = {
    "LOAD_GLOBAL": "global", "LOAD_NAME": "global", "LOAD_DEREF": "free", "LOAD_CLASSDEREF": "free",
    "LOAD_FAST": "local", "LOAD_FAST_CHECK": "local", "LOAD_FAST_BORROW": "local",
}  # fmt: skip
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_SETS_ELEMENT = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_SETS_ATTRIBUTE = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_MUTATORS = frozenset({
    "append", "appendleft", "extend", "insert", "remove", "pop", "popleft", "popitem", "clear", "update", "setdefault",
    "add", "discard", "sort", "reverse", "rotate", "__setitem__", "__delitem__", "fill", "put", "subtract",
})  # fmt: skip


@dataclass(frozen=True)
class Alteration:
    """A change that code can make.

    Attributes:
        kind: Where the chain begins: "global", "free" or "local".
        root: The name with which it begins.
        attributes: The attributes that lead to the changed object.
        attribute: The attribute that is assigned; "" if an element is set.
    """

    kind: str
    root: str
    attributes: tuple[str, ...] = ()
    attribute: str = ""


@functools.lru_cache(maxsize=4096)
def alterations_of(code: types.CodeType) -> tuple[Alteration, ...]:
    """Returns the changes that `code` can make, without the functions that it defines."""
    steps = [s for s in dis.get_instructions(code) if s.opname not in ("CACHE", "NOP", "EXTENDED_ARG")]
    names: dict[str, Alteration] = {}  # a local variable -> the chain that was assigned to it
    found = dict[Alteration, None]()
    for index, step in enumerate(steps):
        chain = None
        if step.opname in _SETS_ELEMENT or step.opname in _SETS_ATTRIBUTE:
            chain = _chain_at(steps, _start_of_target(steps, index))
        elif step.opname in _ATTRIBUTES and _name(step) in _MUTATORS:
            chain = _chain_before(steps, index)
        elif step.opname == "STORE_FAST" and (alias := _chain_before(steps, index)) is not None:
            names[str(step.argval)] = names.get(alias.root, alias) if not alias.attributes else alias
        if chain is not None:
            base = names.get(chain.root, Alteration(chain.kind, chain.root)) if chain.kind == "local" else chain
            path = base.attributes + chain.attributes if base is not chain else chain.attributes
            attribute = _name(step) if step.opname in _SETS_ATTRIBUTE else ""
            found[Alteration(base.kind, base.root, path, attribute)] = None
    return tuple(found)


def _start_of_target(steps: list[dis.Instruction], index: int) -> int:
    """Returns the index of the load with which the target of an assignment begins."""
    place = _position(steps[index])
    for before in range(index - 1, -1, -1):
        if steps[before].opname in _ROOTS and (place is None or _position(steps[before]) == place):
            return before
    return -1


def _position(step: dis.Instruction) -> tuple[int | None, int | None] | None:
    found = step.positions
    return None if found is None or found.lineno is None else (found.lineno, found.col_offset)


def _chain_at(steps: list[dis.Instruction], index: int) -> Alteration | None:
    """Returns the chain of attributes that begins at this load."""
    if index < 0:
        return None
    attributes = []
    for step in steps[index + 1 :]:
        if step.opname not in _ATTRIBUTES:
            break
        attributes.append(_name(step))
    return Alteration(_ROOTS[steps[index].opname], str(steps[index].argval), tuple(attributes))


def _chain_before(steps: list[dis.Instruction], index: int) -> Alteration | None:
    """Returns the chain of attributes that ends before this step."""
    first = index - 1
    while first >= 0 and steps[first].opname in _ATTRIBUTES:
        first -= 1
    if first < 0 or steps[first].opname not in _ROOTS:
        return None
    attributes = tuple(_name(s) for s in steps[first + 1 : index])
    return Alteration(_ROOTS[steps[first].opname], str(steps[first].argval), attributes)


def _name(step: dis.Instruction) -> str:
    name = step.argval
    return str(name[-1] if isinstance(name, tuple) else name)
