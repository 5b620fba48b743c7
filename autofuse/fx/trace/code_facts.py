"""What a code object can load, and on which lines: globals, free variables, imported modules, names of attributes.

Read from the bytecode once for each code object. Knows nothing of values.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_CELLS = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_NAMED = _ATTRIBUTES | {"LOAD_SUPER_ATTR", "IMPORT_FROM"}
_BY_NAME = frozenset({
    "getattr", "hasattr", "vars", "attrgetter", "methodcaller", "__dict__", "__getattribute__", "format", "format_map",
})  # fmt: skip
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_ASSIGNS = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_INPLACE = frozenset({"out", "inplace"})  # arguments
_REBINDS = frozenset({"STORE_DEREF", "DELETE_DEREF"})


@dataclass(frozen=True)
class Load:
    """A name that is loaded, the attributes asked of it at once, and the line. `kind`: global, free, import."""

    kind: str
    name: str
    attributes: tuple[str, ...]
    line: int


@dataclass
class CodeFacts:
    """What one code object can load."""

    loads: list[Load] = field(default_factory=list)
    names: list[tuple[str, int]] = field(default_factory=list)  # of attributes, with their lines
    unchained: list[tuple[str, int]] = field(default_factory=list)  # of attributes of what is no load
    texts: frozenset[str] = frozenset()  # constants: an attribute or a key may be read by such a name
    stored: frozenset[str] = frozenset()  # globals that it sets
    rebound: frozenset[str] = frozenset()  # free variables that it sets
    assigned: frozenset[str] = frozenset()  # attributes that it sets, of whatever
    writes: bool = False  # whether it may write to a tensor in place
    by_name: bool = False  # whether it can read attributes whose names it computes

    def loaded(self, lines: Collection[int] | None) -> Iterator[Load]:
        """What is loaded on these lines; on all of them, where it is not known which ran."""
        return (load for load in self.loads if lines is None or load.line in lines)

    def attribute_names(self, lines: Collection[int] | None) -> Iterator[str]:
        """The names of attributes that are read on these lines, and every text that may be one."""
        yield from (name for name, line in self.names if lines is None or line in lines)
        yield from self.texts


_KNOWN: dict[int, tuple[types.CodeType, CodeFacts]] = {}  # the code is kept, so its id stays its own


def facts_of(code: types.CodeType) -> CodeFacts:
    """What `code` can load, not counting the functions that it defines."""
    known = _KNOWN.get(id(code))
    if known is None:
        known = _KNOWN[id(code)] = code, _read(code)
    return known[1]


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of the functions and comprehensions that `code` defines, at every depth."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from nested(constant)


def _read(code: types.CodeType) -> CodeFacts:
    found, line, stored, rebound = CodeFacts(), code.co_firstlineno, set[str](), set[str]()
    chained = 0  # the place of the last attribute that is asked of a load at once
    steps = list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        line = _line(step) or line
        if step.opname in _GLOBALS:
            found.loads.append(Load("global", str(step.argval), _attributes(steps, place + 1), line))
        elif step.opname in _CELLS and step.argval in code.co_freevars:
            found.loads.append(Load("free", str(step.argval), _attributes(steps, place + 1), line))
        elif step.opname == "IMPORT_NAME":
            found.loads.append(Load("import", "." * _level(steps[:place]) + str(step.argval), (), line))
        elif step.opname in _STORES:
            stored.add(str(step.argval))
        elif step.opname in _REBINDS and step.argval in code.co_freevars:
            rebound.add(str(step.argval))
        if found.loads and (step.opname in _GLOBALS or step.opname in _CELLS and step.argval in code.co_freevars):
            chained = place + len(found.loads[-1].attributes)
        if step.opname in _NAMED:
            found.names.append((_attribute_name(step), line))
            if place > chained:
                found.unchained.append((_attribute_name(step), line))
    found.assigned = frozenset(_attribute_name(step) for step in steps if step.opname in _ASSIGNS)
    found.texts = frozenset(_texts(code.co_consts))
    found.stored, found.rebound = frozenset(stored), frozenset(rebound)
    named = {load.name for load in found.loads} | {name for name, _ in found.names}
    found.writes = any(_writes(step) for step in steps) or not _INPLACE.isdisjoint(found.texts)
    found.by_name = not named.isdisjoint(_BY_NAME)
    return found


def _writes(step: dis.Instruction) -> bool:
    """Whether a step stores an element, computes in place, or asks for a method such as `copy_`."""
    if step.opname in _NAMED:
        name = _attribute_name(step)
        return name.endswith("_") and not name.endswith("__") or name == "data"
    return step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE") or (
        step.opname == "BINARY_OP" and step.argrepr.endswith("=")
    )


def _line(step: dis.Instruction) -> int | None:
    return step.positions.lineno if step.positions is not None else None


def _level(before: list[dis.Instruction]) -> int:
    """How many dots an import statement has: it is loaded before the names that are asked of the module."""
    level = before[-2].argval if len(before) > 1 else 0
    return level if isinstance(level, int) else 0


def _attributes(steps: list[dis.Instruction], place: int) -> tuple[str, ...]:
    names: list[str] = []
    while place < len(steps) and steps[place].opname in _ATTRIBUTES:
        names.append(_attribute_name(steps[place]))
        place += 1
    return tuple(names)


def _attribute_name(step: dis.Instruction) -> str:
    name = step.argval
    return str(name[-1] if isinstance(name, tuple) else name)


def _texts(constants: Iterable[object]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str) and constant.isidentifier():
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts(constant)
