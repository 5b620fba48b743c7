"""Names of classes and functions, which a program may assign: `Attention.__name__ = "FusedAttention"`.

Code reads a name as an attribute, or turns a value into text. Then the names of all classes and functions that the
guards reach are guarded.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.derived_class import NAMES
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.own_forward import own_function
from autofuse.fx.trace.twin import original_class
from autofuse.fx.trace.unreplaced import Comparisons, combined_test
from autofuse.fx.trace.user_code import Execution

# Functions of Python and torch that read the names of classes and functions, or turn values into text.
_READERS = frozenset({
    *NAMES, "str", "repr", "format", "ascii", "format_map", "substitute", "safe_substitute", "wraps", "update_wrapper",
    "_get_name", "extra_repr", "__repr__", "__str__", "__format__", "__dict__",
})  # fmt: skip
_CONTAINERS = (tuple, list, set, frozenset)
_METHODS = (types.MethodType, staticmethod, classmethod)
_DEPTH = 6  # of containers and wrapped functions
_IS_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def reads_assigned_names(ran: Execution, guards: Guards, objects: Iterable[Any]) -> bool:
    """Returns whether code can read the name of a class or a function. `objects` are those that it reads."""
    facts = facts_of(ran.code)
    read = {load.name for load in ran.loads()}.union(facts.attribute_names(ran.lines))
    if not _READERS.isdisjoint(read) or _runs(ran, facts.formats):
        return True
    if not _runs(ran, facts.remainders):
        return False
    values = (*ran.code.co_consts, *guards.names.values(), *objects)
    return any("%" in test for test in guards.tests) or any(map(_is_template, values))


def _runs(ran: Execution, lines: Iterable[int]) -> bool:
    return any(ran.lines is None or line in ran.lines for line in lines)


def _is_template(value: Any, depth: int = _DEPTH) -> bool:
    """Returns whether a value is, or holds, a text with `%`."""
    if isinstance(value, dict):
        return "__name__" not in value and _is_template(tuple(value.values()), depth)
    if isinstance(value, _CONTAINERS):
        return depth > 0 and any(_is_template(v, depth - 1) for v in value)
    return isinstance(value, str) and "%" in value


def guard_assigned_names(guards: Guards, objects: Iterable[Any]) -> None:
    """Guards the names of the classes and functions that these objects are, or that the guards name."""
    found: dict[int, Any] = {}
    for value in (*guards.names.values(), *objects):
        _collect(value, found)
    if found:
        guards.add(f"{guards.constant(combined_test([_same_names(found.values())]))}()")


def _same_names(named: Iterable[Any]) -> Comparisons:
    """Tests that these classes and functions have the same names."""
    named = list(named)
    part = Comparisons(f"the names of {', '.join(dict.fromkeys(each.__name__ for each in named))} are the same")
    for each in named:
        for name in NAMES:
            part.add(f"{{0}}.{name} is {{1}}", each, getattr(each, name))
        forward = own_function(each.forward) if isinstance(each, type) and issubclass(each, nn.Module) else None
        if isinstance(forward, types.FunctionType):
            for name in NAMES:  # the class may show a dispatcher in place of its forward
                part.add(f"{{0}}.forward.{name} is {{1}}", each, getattr(forward, name))
    return part


def _collect(value: Any, found: dict[int, Any], depth: int = _DEPTH) -> None:
    """Adds the classes and functions that a value is, holds or belongs to."""
    if depth < 0 or id(value) in found:
        return
    if isinstance(value, weakref.ref):
        _collect(value(), found, depth - 1)
    elif isinstance(value, type):
        found.update((id(c), c) for c in original_class(value).__mro__ if _may_be_renamed(c))
    elif isinstance(value, types.FunctionType):
        if not effects.is_library(name := value.__globals__.get("__name__")) and not effects.is_standard(name):
            found[id(value)] = value
            _collect(tuple(vars(value).values()), found, depth - 1)
            _collect(tuple(value.__annotations__.values()), found, depth - 1)
    else:
        for part in _parts(value):
            _collect(part, found, depth - 1)


def _parts(value: Any) -> Iterator[Any]:
    """Yields the parts of a container, a method or a partial function, and the class of any other value."""
    if isinstance(value, dict):
        yield from () if "__name__" in value else (*value, *value.values())  # a namespace has its own guards
    elif isinstance(value, _CONTAINERS):
        yield from value
    elif isinstance(value, _METHODS):
        yield value.__func__
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    yield type(value)


def _may_be_renamed(cls: type) -> bool:
    of_torch = cls.__module__.partition(".")[0] == "torch" and not issubclass(cls, nn.Module)
    return not cls.__flags__ & _IS_IMMUTABLE and not of_torch and not effects.is_standard(cls.__module__)
