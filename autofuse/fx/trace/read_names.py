"""Collects the names of attributes, types and classes that code can ask of values. It adds no guards."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator

from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.reachable import EVERYTHING
from autofuse.fx.trace.roots import NOTHING, root_of
from autofuse.fx.trace.twin import is_twin
from autofuse.fx.trace.type_calls import line_of_type_use
from autofuse.fx.trace.user_code import Execution


def attributes_asked_of_values(ran: Execution) -> Iterator[str]:
    """Yields the attributes that a function may read from anything but a module: not `sqrt` of `math.sqrt`."""
    facts = facts_of(ran.code)
    yield from facts.texts
    yield from (name for name, line in facts.unchained if ran.lines is None or line in ran.lines)
    for load in ran.loads():
        value = root_of(ran, load)
        for name in load.attributes:
            if not isinstance(value, types.ModuleType):
                yield name
            value = vars(value).get(name, NOTHING) if isinstance(value, types.ModuleType) else NOTHING


def uses_type_itself(ran: Execution) -> bool:
    """Returns whether code used the type of a value itself. The type of a stand-in differs from the original's."""
    line = line_of_type_use(ran.code, str(ran.namespace.get("__name__")))
    arguments = [p for v in ran.arguments.values() for p in (v, *(v if type(v) in (list, tuple) else ()))]
    if not any(is_twin(v) or isinstance(v, (Tensor, nn.Module)) for v in arguments):
        return False  # the code can only ask for the type of values that forward made itself
    return line is not None and (ran.lines is None or any(n >= line for n in ran.lines))


def makes_library_namedtuple(ran: Execution) -> bool:
    """Returns whether this is the code that creates instances of a library's named tuple. It has its own namespace."""
    cls = next(iter(ran.arguments.values()), None)
    own = str(ran.namespace.get("__name__")).startswith("namedtuple_")
    return own and isinstance(cls, type) and effects.is_library(cls.__module__)


def asks_for_classes(ran: Execution) -> bool:
    """Returns whether code calls `type` or reads `__class__`."""
    loaded = any(load.name == "type" and load.kind == "global" for load in ran.loads())
    return loaded or "__class__" in set(facts_of(ran.code).attribute_names(ran.lines))


def readable_attributes(ran: list[Execution]) -> Collection[str]:
    """Returns the names of all attributes that the code can read."""
    if any(facts_of(r.code).by_name for r in ran):
        return EVERYTHING
    return frozenset(n for r in ran for n in facts_of(r.code).attribute_names(r.lines))
