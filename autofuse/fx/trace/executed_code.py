"""Facts from the text of code before it runs: the attributes that it reads, and the functions that it passes on."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor

from autofuse.fx.trace import effects
from autofuse.fx.trace.code_effects import is_user_class
from autofuse.fx.trace.code_facts import Load, facts_of
from autofuse.fx.trace.reachable import EVERYTHING, is_foreign
from autofuse.fx.trace.twin import SCALARS
from autofuse.fx.trace.user_code import Execution


def callbacks(value: Any, load: Load) -> Iterator[types.FunctionType]:
    """The user's functions that a load passes on: the function itself, or the methods of a subclass of Tensor."""
    if isinstance(value, type) and issubclass(value, Tensor) and is_user_class(value):
        functions = [getattr(v, "__func__", v) for v in vars(value).values()]
    else:
        functions = [] if load.called or load.attributes else [value]
    for function in functions:
        if isinstance(function, types.FunctionType) and not is_foreign(function):
            yield function


def has_mutable_default(function: types.FunctionType) -> bool:
    """Whether a default of a function may change."""
    values = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return not all(isinstance(v, (*SCALARS, type, types.FunctionType)) for v in values)


def called_functions(attribute: Any) -> tuple[Any, ...]:
    """The functions that an attribute of a class calls."""
    if isinstance(attribute, property):
        return attribute.fget, attribute.fset, attribute.fdel
    return (
        attribute.__func__
        if isinstance(attribute, (staticmethod, classmethod))
        else getattr(attribute, "func", attribute),
    )


def sets_attribute_of_class(ran: Execution) -> bool:
    """Whether a function may set an attribute of a class by an instance: `type(self).calls += 1`."""
    facts = facts_of(ran.code)
    by_type = any(load.name == "type" for load in facts.loads) or "__class__" in set(facts.attribute_names(None))
    return by_type and bool(facts.assigned)


_NAMELESS = frozenset({"globals", "eval", "exec"})


def attribute_names_in(ran: Execution) -> Collection[str]:
    """The attributes that a function can read."""
    facts = facts_of(ran.code)
    return EVERYTHING if facts.by_name else frozenset(facts.attribute_names(None))


def reads_any_global(ran: Execution) -> bool:
    """Whether a function can reach the globals of its module by no name in its code: `globals()["meter"]`."""
    return any(load.name in _NAMELESS for load in facts_of(ran.code).loads)


def is_users_module(module: Any) -> bool:
    """Whether a value is a Python module that belongs neither to Python nor to a library that only computes."""
    if not isinstance(module, types.ModuleType):
        return False
    return not effects.is_library(module.__name__) and not effects.is_standard(module.__name__)
