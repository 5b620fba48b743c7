"""Finds what a code object can load, and on which lines: globals, free variables, imported modules, attributes.

The facts are read from the bytecode, once for each code object. This file knows nothing of values.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_CELLS = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_READS_ATTRIBUTE = _ATTRIBUTES | {"LOAD_SUPER_ATTR", "IMPORT_FROM"}
_BY_NAME = frozenset({
    "getattr", "hasattr", "vars", "attrgetter", "methodcaller", "__dict__", "__getattribute__", "format", "format_map",
})  # fmt: skip
_STORES_BY_NAME = frozenset({"setattr", "delattr", "vars", "__dict__", "__setattr__", "__delattr__"})
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_ASSIGNS = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_INPLACE = frozenset({"out", "inplace"})  # names of arguments
_FORMATS = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"})
_REBINDS = frozenset({"STORE_DEREF", "DELETE_DEREF"})


@dataclass(frozen=True)
class Load:
    """A load of a name.

    Attributes:
        kind: "global", "free" or "import".
        name: the name.
        attributes: the attributes that are read from the value immediately: `b` and `c` in `a.b.c`.
        line: the line of the load.
        called: whether the value is called where it is loaded: `print(x)`, and not `map(print, xs)`.
    """

    kind: str
    name: str
    attributes: tuple[str, ...]
    line: int
    called: bool = False


@dataclass
class CodeFacts:
    """The names that one code object can load and store.

    Attributes:
        loads: the loads of globals, free variables and modules.
        names: the names of the attributes that are read, with their lines.
        unchained: those of `names` that are not read immediately from a load.
        texts: the string constants. Code may use such a name to read an attribute or a key.
        stored: the globals that the code sets.
        rebound: the free variables that the code sets.
        assigned: the attributes that the code sets, of any object.
        writes: whether the code may write to a tensor in place.
        by_name: whether the code can read attributes whose names it computes, as `case Point(x)` does.
        stores_by_name: whether the code can set attributes whose names it computes.
        formats: the lines on which values become parts of a text: `f"{value}"`.
        remainders: the lines with `%`, which makes a text or a remainder.
    """

    loads: list[Load] = field(default_factory=list)
    names: list[tuple[str, int]] = field(default_factory=list)
    unchained: list[tuple[str, int]] = field(default_factory=list)
    texts: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    rebound: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    writes: bool = False
    by_name: bool = False
    stores_by_name: bool = False
    formats: tuple[int, ...] = ()
    remainders: tuple[int, ...] = ()

    def loaded(self, lines: Collection[int] | None) -> Iterator[Load]:
        """The loads on these lines; all loads if `lines` is None, because it is unknown which lines ran."""
        return (load for load in self.loads if lines is None or load.line in lines)

    def attribute_names(self, lines: Collection[int] | None) -> Iterator[str]:
        """The names of the attributes that are read on these lines, and every string constant that may be one."""
        yield from (name for name, line in self.names if lines is None or line in lines)
        yield from self.texts


_CACHE: dict[int, tuple[types.CodeType, CodeFacts]] = {}  # holds the code, so that its id is not used again


def facts_of(code: types.CodeType) -> CodeFacts:
    """The names that `code` can load, without the functions that it defines."""
    known = _CACHE.get(id(code))
    if known is None:
        known = _CACHE[id(code)] = code, _read_bytecode(code)
    return known[1]


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of the functions and comprehensions that `code` defines, at every depth."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from nested(constant)


def _read_bytecode(code: types.CodeType) -> CodeFacts:
    facts, line, stored, rebound = CodeFacts(), code.co_firstlineno, set[str](), set[str]()
    chained = 0  # the index of the last attribute that is read immediately from a load
    steps = list(dis.get_instructions(code))
    for index, step in enumerate(steps):
        line = _line(step) or line
        if step.opname in _GLOBALS:
            called = "NULL" in step.argrepr  # Python loads NULL for a call
            facts.loads.append(Load("global", str(step.argval), _attributes(steps, index + 1), line, called))
        elif step.opname in _CELLS and step.argval in code.co_freevars:
            facts.loads.append(Load("free", str(step.argval), _attributes(steps, index + 1), line))
        elif step.opname == "IMPORT_NAME":
            facts.loads.append(Load("import", "." * _level(steps[:index]) + str(step.argval), (), line))
        elif step.opname in _STORES:
            stored.add(str(step.argval))
        elif step.opname in _REBINDS and step.argval in code.co_freevars:
            rebound.add(str(step.argval))
        if facts.loads and (step.opname in _GLOBALS or step.opname in _CELLS and step.argval in code.co_freevars):
            chained = index + len(facts.loads[-1].attributes)
        if step.opname == "MATCH_CLASS":
            facts.names.append(("__match_args__", line))
        if step.opname in _READS_ATTRIBUTE:
            facts.names.append((_attribute_name(step), line))
            if index > chained:
                facts.unchained.append((_attribute_name(step), line))
    facts.assigned = frozenset(_attribute_name(step) for step in steps if step.opname in _ASSIGNS)
    facts.texts = frozenset(_texts(code.co_consts))
    facts.stored, facts.rebound = frozenset(stored), frozenset(rebound)
    names = {load.name for load in facts.loads} | {name for name, _ in facts.names}
    facts.writes = any(_writes(step) for step in steps) or not _INPLACE.isdisjoint(facts.texts)
    facts.by_name = not names.isdisjoint(_BY_NAME) or any(step.opname == "MATCH_CLASS" for step in steps)
    facts.stores_by_name = not names.isdisjoint(_STORES_BY_NAME)
    facts.formats = tuple(_line(step) or code.co_firstlineno for step in steps if step.opname in _FORMATS)
    facts.remainders = tuple(
        _line(step) or code.co_firstlineno for before, step in pairwise(steps) if _is_remainder(before, step)
    )
    return facts


def _writes(step: dis.Instruction) -> bool:
    """Whether a step stores an element, computes in place, or looks up a method such as `copy_`."""
    if step.opname in _READS_ATTRIBUTE:
        name = _attribute_name(step)
        return name.endswith("_") and not name.endswith("__") or name == "data"
    return step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE") or (
        step.opname == "BINARY_OP" and step.argrepr.endswith("=")
    )


def _is_remainder(before: dis.Instruction, step: dis.Instruction) -> bool:
    """Whether a step is `%`, and its right operand is not a constant."""
    return step.opname == "BINARY_OP" and step.argrepr.startswith("%") and before.opname != "LOAD_CONST"


def _line(step: dis.Instruction) -> int | None:
    return step.positions.lineno if step.positions is not None else None


def _level(before: list[dis.Instruction]) -> int:
    """The number of dots of an import statement. The instruction before the names of the module loads it."""
    level = before[-2].argval if len(before) > 1 else 0
    return level if isinstance(level, int) else 0


def _attributes(steps: list[dis.Instruction], index: int) -> tuple[str, ...]:
    names: list[str] = []
    while index < len(steps) and steps[index].opname in _ATTRIBUTES:
        names.append(_attribute_name(steps[index]))
        index += 1
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
