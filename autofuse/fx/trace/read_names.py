"""What code that ran can ask of values: the names of attributes, types and classes. Knows code; guards nothing."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator

from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.roots import NOTHING, root_of
from autofuse.fx.trace.snapshots import EVERYTHING
from autofuse.fx.trace.twin import is_twin
from autofuse.fx.trace.type_calls import uses_type_of_values
from autofuse.fx.trace.user_code import Ran


def asked_of_values(ran: Ran) -> Iterator[str]:
    """The names of attributes that a function may ask of something else than a module: not `sqrt` of `math.sqrt`."""
    facts = facts_of(ran.code)
    yield from facts.texts
    yield from (name for name, line in facts.unchained if ran.lines is None or line in ran.lines)
    for load in ran.loads():
        value = root_of(ran, load)
        for name in load.attributes:
            if not isinstance(value, types.ModuleType):
                yield name
            value = vars(value).get(name, NOTHING) if isinstance(value, types.ModuleType) else NOTHING


def type_is_used(ran: Ran) -> bool:
    """Whether the type of a value was used itself: that of a stand-in is another."""
    line = uses_type_of_values(ran.code, str(ran.namespace.get("__name__")))
    given = [p for v in ran.arguments.values() for p in (v, *(v if type(v) in (list, tuple) else ()))]
    if not any(is_twin(v) or isinstance(v, (Tensor, nn.Module)) for v in given):
        return False  # of what forward has made itself
    return line is not None and (ran.lines is None or any(n >= line for n in ran.lines))


def makes_tuple_of_library(ran: Ran) -> bool:
    """Whether this is what makes a named tuple of a library: its code has a namespace of its own."""
    made = next(iter(ran.arguments.values()), None)
    own = str(ran.namespace.get("__name__")).startswith("namedtuple_")
    return own and isinstance(made, type) and effects.is_library(made.__module__)


def asks_for_classes(ran: Ran) -> bool:
    loaded = any(load.name == "type" and load.kind == "global" for load in ran.loads())
    return loaded or "__class__" in set(facts_of(ran.code).attribute_names(ran.lines))


def names_read(ran: list[Ran]) -> Collection[str]:
    """The attributes that the code can read, of whatever."""
    if any(facts_of(r.code).by_name for r in ran):
        return EVERYTHING
    return frozenset(n for r in ran for n in facts_of(r.code).attribute_names(r.lines))
