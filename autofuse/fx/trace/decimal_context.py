"""The context of `decimal`: arithmetic of Decimals reads its precision and rounding, and raises its signals.

No name in the code says so, and operators are not reported as calls. So a forward that reaches a Decimal, or a class or
a function of `decimal`, is guarded by the context in which it was traced.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from autofuse.fx.trace.guards import Guards
from autofuse.torch_private import assumed_constant

_MODULES = frozenset({"decimal", "_decimal", "_pydecimal"})
_CONTAINERS = (tuple, list, set, frozenset)
_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_DEPTH = 4  # of containers


@contextmanager
def keep_decimal_signals() -> Iterator[None]:
    """Raises the signals in the block in a copy of the context, which starts without any."""
    with decimal.localcontext() as context:
        context.clear_flags()
        yield


def guard_decimal_context(guards: Guards, objects: Iterable[Any]) -> None:
    """Guards the current context if one of the objects, or one that the guards name, leads to a Decimal.

    Args:
        guards: The guards of a trace that has run in `keep_decimal_signals`.
        objects: What the traced code read.
    """
    if not any(map(_leads_to_decimal, (*guards.names.values(), *objects))):
        return
    guards.add(f"{guards.constant(decimal_context)}() == {guards.name_of(decimal_context())}")
    raised = frozenset(signal for signal, is_raised in decimal.getcontext().flags.items() if is_raised)
    if raised:  # the rewritten forward raises none, so they must have been raised before
        guards.add(f"{guards.constant(has_raised)}({guards.name_of(raised)})")


@assumed_constant
def decimal_context() -> tuple[Any, ...]:
    """The settings of the current context."""
    c = decimal.getcontext()
    return c.prec, c.rounding, c.Emin, c.Emax, c.capitals, c.clamp, *c.traps.values()


@assumed_constant
def has_raised(signals: frozenset[Any]) -> bool:
    """Whether all these signals were raised in the current context since it was cleared."""
    flags = decimal.getcontext().flags
    return all(flags[signal] for signal in signals)


def _leads_to_decimal(value: Any, depth: int = _DEPTH) -> bool:
    if isinstance(value, dict):
        return "__name__" not in value and _leads_to_decimal((*value, *value.values()), depth)  # no namespace
    if isinstance(value, _CONTAINERS):
        return depth > 0 and any(_leads_to_decimal(v, depth - 1) for v in value)
    if isinstance(value, type):
        return value.__module__ in _MODULES or issubclass(value, Decimal)
    if isinstance(value, ModuleType):
        return value.__name__ in _MODULES
    return isinstance(value, Decimal) or isinstance(value, _FUNCTIONS) and value.__module__ in _MODULES
