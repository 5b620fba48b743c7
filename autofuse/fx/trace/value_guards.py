"""Guards values: plain ones by value, functions, classes and modules by identity, the others by identity and content.

The content is what a container or an object holds under the names that are read. Guards name objects directly, so a
guard is one lookup in a dict. This file knows values. It does not know which names code loads: where a value leads back
to names, it calls `guard_attributes`, `guard_class` and `add_function`.
"""

from __future__ import annotations

import array
import contextvars
import enum
import functools
import operator
import types
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.cached_tensors import holds_tensors
from autofuse.fx.trace.contents import is_sentinel
from autofuse.fx.trace.functions_found import FunctionsFound, wrapped_functions
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.reachable import EVERYTHING, closure_values, is_opaque
from autofuse.fx.trace.same_values import needs_strict_comparison
from autofuse.fx.trace.slots import has_hidden_state, slots
from autofuse.fx.trace.source_lines import SourceLine
from autofuse.fx.trace.special_names import is_special
from autofuse.fx.trace.twin import is_twin
from autofuse.fx.trace.unreplaced import (
    Comparisons,
    uncleared_cache,
    unwritten_cache,
)
from autofuse.fx.trace.value_facts import (
    IDENTICAL,
    comparison_copy,
    has_custom_lookup,
    is_bound_builtin,
    is_plain,
    is_user_class,
    matters_only_when_called,
)
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because

Refuse = Callable[..., None]  # takes a reason and a place, and raises
_MAX_LENGTH, _MAX_ARRAY_BYTES, _MAX_VALUES = 256, 4096, 400
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodWrapperType)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_CALLABLES = (*_FUNCTIONS, types.MethodType, functools.partial)


class ValueGuards(ABC):
    """Turns values into guards. `refuse` must raise."""

    def __init__(self, guards: Guards, functions: FunctionsFound, refuse: Refuse) -> None:
        self.guards, self.functions, self._refuse_at = guards, functions, refuse
        self.place: SourceLine | None = None  # the line of the code that is examined
        self.names: Collection[str] = frozenset()
        self.seen: dict[int, Any] = {}
        self.reached: dict[int, types.FunctionType] = {}  # the user's functions that values lead to
        self.parts: list[Comparisons] = []  # the parts of one test for everything that is compared by identity
        self.computed = False  # whether attributes are read by names that are not literals in the code
        self.compares = False  # whether two objects are compared by identity
        self.asks = False  # whether the code can go on if an object lacks an attribute
        self.literal: frozenset[str] = frozenset()  # the names that are literals in the code

    @abstractmethod
    def guard_attributes(self, value: Any, attributes: tuple[str, ...]) -> None:
        """Guards what is read from a module or class: the chain `attributes`, or, if it is empty, all that is read."""

    @abstractmethod
    def guard_class(self, cls: type, attributes: tuple[str, ...] = ()) -> None:
        """Guards what is read from a class."""

    @abstractmethod
    def add_function(self, function: types.FunctionType) -> None:
        """Adds a function that may have run earlier, and whose stored result is used."""

    def compared_objects(self) -> Iterator[Any]:
        """Yields the objects that are compared by identity."""
        for part in self.parts:
            yield from part.objects

    def refuse(self, reason: Reason) -> None:
        """Raises for this reason, at the current line."""
        self._refuse_at(reason, place=self.place)

    def missing_names(self, inside: Collection[str]) -> list[str]:
        """Returns the names that are read but missing, if the code can go on without them."""
        return sorted(n for n in self.literal if n not in inside and not is_special(n)) if self.asks else []

    def guard_value(self, text: str, value: Any, name: str, names: Collection[str] = EVERYTHING) -> None:
        """Guards what an attribute of the module holds, if it is not a twin."""
        before, self.names = self.names, names
        try:
            self.guard(text, value, name)
        finally:
            self.names = before

    def guard(self, text: str, value: Any, name: str) -> None:
        """Guards that `text` evaluates to the same value."""
        if isinstance(value, Tensor):
            return  # a computation with it is refused elsewhere
        if is_plain(value):
            self.guards.alike(text, value)
            return
        if kind := effects.kind_of_state(value):
            self.refuse(because(forwards.READS_STATE, name=name, kind=kind))
        if type(value) is types.MethodType:  # its parts, so that guards do not keep its object
            self.guards.same(f"type({text})", types.MethodType)
            self.guards.same(f"{text}.__func__", value.__func__)
            self.guards.same(f"{text}.__self__", value.__self__)
        else:
            self.guards.same(text, value)
        if isinstance(value, types.ModuleType):
            self.guard_attributes(value, ())
        elif isinstance(value, type):
            self.guard_class(value) if is_user_class(value) else None
        else:
            self.guard_content(value, name)

    def guard_content(self, value: Any, name: str) -> None:
        """Guards the content of a value that stays the same object."""
        if value is None or is_plain(value) or id(value) in self.seen or is_twin(value):
            return
        self.seen[id(value)] = value
        if self.compares and isinstance(value, nn.Module):  # the other operand may be a stand-in for it
            self.refuse(because(forwards.COMPARES_ARGUMENT, name=name))
        if isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self.computed = True
        if isinstance(value, enum.Enum):
            self.guard(f"{self.guards.constant(value)}._value_", value._value_, name)
        if len(self.seen) > _MAX_VALUES:
            self.refuse(because(forwards.READS_TOO_MUCH, name=name))
        if isinstance(value, _CALLABLES):
            self._guard_callable(value, name)
        elif isinstance(value, weakref.ref):
            self.guard(f"{self.guards.constant(value)}()", value(), name)
        elif isinstance(value, contextvars.ContextVar):
            return  # guarded when it is read
        elif effects.is_array(value):
            self._guard_array(value, name)
        elif isinstance(value, array.array):
            self.guards.equal(f"{self.guards.constant(value)}.tobytes()", value.tobytes())
        elif isinstance(value, functools._lru_cache_wrapper):
            if value.cache_info().currsize:  # caches that hold tensors are empty now
                self.parts.append(uncleared_cache(value))
            if holds_tensors(value):
                self.parts.append(unwritten_cache(value))
            self.functions.remember(value)
            for function in wrapped_functions(value):  # if it ran earlier, the cache answers and it does not run again
                self.add_function(function)
        else:
            self._guard_container(value, name)
            self._guard_object(value, name)

    def _guard_callable(self, value: Any, name: str) -> None:
        self.functions.remember(value)
        if isinstance(value, types.MethodType):
            self.guard_content(value.__self__, name)
            self.functions.remember(value.__func__)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            if is_bound_builtin(value):
                self.guard(f"{self.guards.constant(value)}.__self__", value.__self__, name)
        elif isinstance(value, functools.partial):
            text = self.guards.constant(value)
            for part in ("func", "args", "keywords"):
                self.guards.same(f"{text}.{part}", getattr(value, part))
                self.guard_content(getattr(value, part), name)
        else:
            if not effects.is_library(value.__module__) and not effects.is_standard(value.__module__):
                self.reached[id(value)] = value
            for inner, closed in closure_values(value):
                called = isinstance(closed, (types.FunctionType, types.MethodType))
                if called or isinstance(closed, dict) and effects.is_standard(value.__globals__.get("__name__")):
                    self.guard_content(closed, inner)  # a dict: the dispatch table of functools

    def _guard_array(self, value: Any, name: str) -> None:
        if value.nbytes > _MAX_ARRAY_BYTES or value.dtype.hasobject:
            self.refuse(because(forwards.READS_TOO_MUCH, name=name))
        text = self.guards.constant(value)
        self.guards.equal(f"{text}.shape", value.shape)
        self.guards.add(f"{text}.dtype == {self.guards.constant(value.dtype)}")
        self.guards.equal(f"{text}.tobytes()", value.tobytes())

    def _guard_container(self, value: Any, name: str) -> None:
        if not isinstance(value, _CONTAINERS):
            return
        if len(value) > _MAX_LENGTH and not isinstance(value, (tuple, frozenset)):
            self.refuse(because(forwards.READS_TOO_MUCH, name=name))
        inside = list(dict.values(value)) if isinstance(value, dict) else list(value)
        keys = list(dict.keys(value)) if isinstance(value, dict) else []
        if all(is_plain(v) or isinstance(v, IDENTICAL) for v in (*inside, *keys)):
            self._guard_plain_content(value)
        else:
            self._guard_items(value, keys, name)
        for part in (v for v in inside if not is_plain(v) and not isinstance(v, Tensor)):
            if isinstance(part, (type, types.ModuleType)):
                self.guard_attributes(part, ())
            else:
                self.guard_content(part, name)

    def _guard_plain_content(self, value: Any) -> None:
        if not isinstance(value, (tuple, frozenset)):
            kind = next(k for k in (dict, list, set, deque) if isinstance(value, k))
            now, before = self.guards.constant(value), self.guards.constant(comparison_copy(value, kind))
            self.guards.add(f"_holds({now}, {before})" if needs_strict_comparison(value) else f"{now} == {before}")

    def _guard_items(self, value: Any, keys: list[Any], name: str) -> None:
        if isinstance(value, (tuple, frozenset)):
            return
        if isinstance(value, set) or not all(map(is_plain, keys)):
            self.refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
        text = self.guards.constant(value)
        ordered = isinstance(value, dict) and len(keys) > 1
        self.guards.add(
            f"tuple({text}) == {self.guards.name_of(tuple(keys))}" if ordered else f"len({text}) == {len(value)}"
        )
        for key in keys or range(len(value)):
            part = value[key] if not isinstance(value, dict) else dict.__getitem__(value, key)
            reach = f"{text}[{self.guards.name_of(key)}]"
            self.guards.alike(reach, part) if is_plain(part) else self.guards.same(reach, part)

    def _guard_object(self, value: Any, name: str) -> None:
        """Guards the attributes that are read from a user's object, or all those of an object of a Python class."""
        if isinstance(value, (type, types.ModuleType)) or matters_only_when_called(value):
            self._guard_logger(value, name) if effects.is_logger(value) else None
            return
        if is_sentinel(value):
            missing_names = self.missing_names(getattr(value, "__dict__", ())) if hasattr(value, "__dict__") else []
            self.guard_absence(f"{self.guards.constant(value)}.__dict__", (), self.names, missing_names)
            self._guard_class_of(value, self.guards.constant(value), {}, name)
            return
        if not hasattr(value, "__dict__") and not slots(value) and not isinstance(value, _CONTAINERS):
            self.refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
        text, inside = self.guards.constant(value), getattr(value, "__dict__", {})
        if has_hidden_state(type(value)) and not isinstance(value, Tensor):
            self.refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
        names = EVERYTHING if has_custom_lookup(type(value)) or is_opaque(value) else self.names
        missing_names = self.missing_names(inside)
        if hasattr(value, "__dict__") and (missing_names or has_custom_lookup(type(value))):
            self.guard_absence(f"{text}.__dict__", inside, names, missing_names)
        for attribute in [n for n in inside if n in names]:
            self.guard(f'{text}.__dict__["{attribute}"]', inside[attribute], f"{name}.{attribute}")
        if self.asks and any(n in names and not hasattr(value, n) for n in slots(value)):
            self.refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
        for attribute in (n for n in slots(value) if n in names and hasattr(value, n)):
            self.guard(f"{text}.{attribute}", getattr(value, attribute), f"{name}.{attribute}")
        if isinstance(value, nn.Module):
            self._guard_tables(value, text, name)
        self._guard_class_of(value, text, inside, name)

    def _guard_logger(self, value: Any, name: str) -> None:
        """Guards what is read from a logger without a call: `log.level`."""
        for attribute in [n for n in vars(value) if n in self.literal]:
            text = f'{self.guards.constant(value)}.__dict__["{attribute}"]'
            self.guard(text, vars(value)[attribute], f"{name}.{attribute}")

    def guard_absence(
        self, text: str, inside: Collection[str], names: Collection[str], missing_names: list[str]
    ) -> None:
        """Guards that an object does not get attributes."""
        if names is EVERYTHING:
            self.guards.add(f"len({text}) == {len(inside)}")
        elif missing_names:
            self.guards.add(f"{self.guards.name_of(frozenset(missing_names))}.isdisjoint({text})")

    def _guard_tables(self, module: nn.Module, text: str, name: str) -> None:
        for table in ("_parameters", "_buffers", "_modules"):
            for attribute, guard_content in vars(module)[table].items():
                if attribute in self.names:
                    self.guard(f'{text}.{table}["{attribute}"]', guard_content, f"{name}.{attribute}")

    def _guard_class_of(self, value: Any, text: str, inside: Mapping[str, Any], name: str) -> None:
        """Guards what the object's class holds, and that the object does not hide it."""
        cls = type(value)
        if not is_user_class(cls):
            return
        self.guards.same(f"type({text})", cls)
        in_dict = hasattr(value, "__dict__")
        for attribute in sorted({n for c in cls.__mro__ if is_user_class(c) for n in vars(c) if n in self.names}):
            found = next(vars(c)[attribute] for c in cls.__mro__ if attribute in vars(c))
            if (
                attribute not in inside
                and not is_special(attribute)
                and not hasattr(type(found), "__set__")
                and in_dict
            ):
                self.guards.add(f'"{attribute}" not in {text}.__dict__')
        self.guard_class(cls)
