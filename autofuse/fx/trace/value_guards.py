"""Guards of values: plain ones by value, functions, classes and modules by identity, containers and objects by identity
and by what they hold under the names that are read.

Objects are named in guards themselves, so a guard is one look into a dict. Knows values; must not know which names code
loads: where a value leads back to names, it asks (`of_attributes`, `of_class`, `may_run`).
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
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.cached_tensors import holds_tensors
from autofuse.fx.trace.contents import is_sentinel
from autofuse.fx.trace.functions_found import FunctionsFound, unwrapped
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.same_values import needs_strict_comparison
from autofuse.fx.trace.slots import has_hidden_state, slots
from autofuse.fx.trace.snapshots import EVERYTHING, closed_over, is_opaque
from autofuse.fx.trace.source_lines import SourceLine
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
    is_users_class,
    matters_only_when_called,
)
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because

Refuse = Callable[..., None]  # of a reason and a place; raises
_LARGEST, _LARGEST_ARRAY, _MOST = 256, 4096, 400  # elements, bytes, values
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodWrapperType)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_CALLABLES = (*_FUNCTIONS, types.MethodType, functools.partial)


class ValueGuards(ABC):
    """Turns values into guards. `refuse` raises."""

    def __init__(self, guards: Guards, functions: FunctionsFound, refuse: Refuse) -> None:
        self.guards, self.functions, self._refuse_at = guards, functions, refuse
        self.place: SourceLine | None = None  # of what is looked at
        self.names: Collection[str] = frozenset()
        self.seen: dict[int, Any] = {}
        self.parts: list[Comparisons] = []  # of one test for all that is compared by identity
        self.computed = False  # whether attributes are read by names that the code does not write out
        self.compares = False  # whether two objects are compared by identity
        self.asks = False  # whether it is of consequence that an object lacks an attribute
        self.literal: frozenset[str] = frozenset()  # the names that are written out

    @abstractmethod
    def of_attributes(self, value: Any, attributes: tuple[str, ...]) -> None:
        """Guard what is asked of a module or of a class: `attributes` one after the other, or all that is ever read."""

    @abstractmethod
    def of_class(self, cls: type, attributes: tuple[str, ...] = ()) -> None:
        """Guard what is asked of a class."""

    @abstractmethod
    def may_run(self, function: types.FunctionType) -> None:
        """A function that may have run before, and what it kept is used."""

    def refuse(self, reason: Reason) -> None:
        """Raise for this reason, at what is looked at."""
        self._refuse_at(reason, place=self.place)

    def missing(self, inside: Collection[str]) -> list[str]:
        """The names that are asked for and are not there, where somebody may go on without them."""
        return sorted(n for n in self.literal if n not in inside and n[:2] != "__") if self.asks else []

    def value(self, text: str, value: Any, name: str, names: Collection[str] = EVERYTHING) -> None:
        """Guard what an attribute of the module holds, that is no twin."""
        before, self.names = self.names, names
        try:
            self.guard(text, value, name)
        finally:
            self.names = before

    def guard(self, text: str, value: Any, name: str) -> None:
        """`text` must give what it gives now."""
        if isinstance(value, Tensor):
            return  # who computes with it is refused
        if is_plain(value):
            self.guards.alike(text, value)
            return
        if kind := effects.kind_of_state(value):
            self.refuse(because(forwards.READS_STATE, name=name, kind=kind))
        self.guards.same(text, value)
        if isinstance(value, types.ModuleType):
            self.of_attributes(value, ())
        elif isinstance(value, type):
            self.of_class(value) if is_users_class(value) else None
        else:
            self.held(value, name)

    def held(self, value: Any, name: str) -> None:
        """What a value that stays the same object holds."""
        if value is None or is_plain(value) or id(value) in self.seen or is_twin(value):
            return
        self.seen[id(value)] = value
        if self.compares and isinstance(value, nn.Module):  # what is compared with it may be a stand-in for it
            self.refuse(because(forwards.COMPARES_ARGUMENT, name=name))
        if isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self.computed = True
        if isinstance(value, enum.Enum):
            self.guard(f"{self.guards.constant(value)}._value_", value._value_, name)
        if len(self.seen) > _MOST:
            self.refuse(because(forwards.READS_TOO_MUCH, name=name))
        if isinstance(value, _CALLABLES):
            self._callable(value, name)
        elif isinstance(value, weakref.ref):
            self.guard(f"{self.guards.constant(value)}()", value(), name)
        elif isinstance(value, contextvars.ContextVar):
            return  # asked when it is read
        elif effects.is_array(value):
            self._array(value, name)
        elif isinstance(value, array.array):
            self.guards.equal(f"{self.guards.constant(value)}.tobytes()", value.tobytes())
        elif isinstance(value, functools._lru_cache_wrapper):
            if value.cache_info().currsize:  # those that hold tensors were emptied
                self.parts.append(uncleared_cache(value))
            if holds_tensors(value):
                self.parts.append(unwritten_cache(value))
            self.functions.know(value)
            for function in unwrapped(value):  # it may have run before, and then does not run again
                self.may_run(function)
        else:
            self._container(value, name)
            self._object(value, name)

    def _callable(self, value: Any, name: str) -> None:
        self.functions.know(value)
        if isinstance(value, types.MethodType):
            self.held(value.__self__, name)
            self.functions.know(value.__func__)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            if is_bound_builtin(value):
                self.guard(f"{self.guards.constant(value)}.__self__", value.__self__, name)
        elif isinstance(value, functools.partial):
            text = self.guards.constant(value)
            for part in ("func", "args", "keywords"):
                self.guards.same(f"{text}.{part}", getattr(value, part))
                self.held(getattr(value, part), name)
        else:
            for inner, closed in closed_over(value):
                called = isinstance(closed, (types.FunctionType, types.MethodType))
                if called or isinstance(closed, dict) and effects.is_standard(value.__globals__.get("__name__")):
                    self.held(closed, inner)  # a dict: what functools' dispatch goes by

    def _array(self, value: Any, name: str) -> None:
        if value.nbytes > _LARGEST_ARRAY or value.dtype.hasobject:
            self.refuse(because(forwards.READS_TOO_MUCH, name=name))
        text = self.guards.constant(value)
        self.guards.equal(f"{text}.shape", value.shape)
        self.guards.add(f"{text}.dtype == {self.guards.constant(value.dtype)}")
        self.guards.equal(f"{text}.tobytes()", value.tobytes())

    def _container(self, value: Any, name: str) -> None:
        if not isinstance(value, _CONTAINERS):
            return
        if len(value) > _LARGEST and not isinstance(value, (tuple, frozenset)):
            self.refuse(because(forwards.READS_TOO_MUCH, name=name))
        inside = list(dict.values(value)) if isinstance(value, dict) else list(value)
        keys = list(dict.keys(value)) if isinstance(value, dict) else []
        if all(is_plain(v) or isinstance(v, IDENTICAL) for v in (*inside, *keys)):
            self._same_content(value)
        else:
            self._items(value, keys, name)
        for part in (v for v in inside if not is_plain(v) and not isinstance(v, Tensor)):
            if isinstance(part, (type, types.ModuleType)):
                self.of_attributes(part, ())
            else:
                self.held(part, name)

    def _same_content(self, value: Any) -> None:
        if not isinstance(value, (tuple, frozenset)):
            kind = next(k for k in (dict, list, set, deque) if isinstance(value, k))
            now, before = self.guards.constant(value), self.guards.constant(comparison_copy(value, kind))
            self.guards.add(f"_holds({now}, {before})" if needs_strict_comparison(value) else f"{now} == {before}")

    def _items(self, value: Any, keys: list[Any], name: str) -> None:
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

    def _object(self, value: Any, name: str) -> None:
        """The attributes that are read, of an object of the user's; all, of one of Python's own classes."""
        if isinstance(value, (type, types.ModuleType)) or matters_only_when_called(value):
            self._logger(value, name) if effects.is_logger(value) else None
            return
        if is_sentinel(value):
            missing = self.missing(getattr(value, "__dict__", ())) if hasattr(value, "__dict__") else []
            self.lacks(f"{self.guards.constant(value)}.__dict__", (), self.names, missing)
            self._of_class(value, self.guards.constant(value), {}, name)
            return
        if not hasattr(value, "__dict__") and not slots(value) and not isinstance(value, _CONTAINERS):
            self.refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
        text, inside = self.guards.constant(value), getattr(value, "__dict__", {})
        if has_hidden_state(type(value)) and not isinstance(value, Tensor):
            self.refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
        names = EVERYTHING if has_custom_lookup(type(value)) or is_opaque(value) else self.names
        missing = self.missing(inside)
        if hasattr(value, "__dict__") and (missing or has_custom_lookup(type(value))):
            self.lacks(f"{text}.__dict__", inside, names, missing)
        for attribute in [n for n in inside if n in names]:
            self.guard(f'{text}.__dict__["{attribute}"]', inside[attribute], f"{name}.{attribute}")
        if self.asks and any(n in names and not hasattr(value, n) for n in slots(value)):
            self.refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
        for attribute in (n for n in slots(value) if n in names and hasattr(value, n)):
            self.guard(f"{text}.{attribute}", getattr(value, attribute), f"{name}.{attribute}")
        if isinstance(value, nn.Module):
            self._tables(value, text, name)
        self._of_class(value, text, inside, name)

    def _logger(self, value: Any, name: str) -> None:
        """What is asked of a logger without calling it: `log.level`."""
        for attribute in [n for n in vars(value) if n in self.literal]:
            text = f'{self.guards.constant(value)}.__dict__["{attribute}"]'
            self.guard(text, vars(value)[attribute], f"{name}.{attribute}")

    def lacks(self, text: str, inside: Collection[str], names: Collection[str], missing: list[str]) -> None:
        """Attributes that an object must not get."""
        if names is EVERYTHING:
            self.guards.add(f"len({text}) == {len(inside)}")
        elif missing:
            self.guards.add(f"{self.guards.name_of(frozenset(missing))}.isdisjoint({text})")

    def _tables(self, module: nn.Module, text: str, name: str) -> None:
        for table in ("_parameters", "_buffers", "_modules"):
            for attribute, held in vars(module)[table].items():
                if attribute in self.names:
                    self.guard(f'{text}.{table}["{attribute}"]', held, f"{name}.{attribute}")

    def _of_class(self, value: Any, text: str, inside: Mapping[str, Any], name: str) -> None:
        """What the object's class holds, and that the object does not hide it."""
        cls = type(value)
        if not is_users_class(cls):
            return
        self.guards.same(f"type({text})", cls)
        in_dict = hasattr(value, "__dict__")
        for attribute in sorted({n for c in cls.__mro__ if is_users_class(c) for n in vars(c) if n in self.names}):
            found = next(vars(c)[attribute] for c in cls.__mro__ if attribute in vars(c))
            if attribute not in inside and attribute[:2] != "__" and not hasattr(type(found), "__set__") and in_dict:
                self.guards.add(f'"{attribute}" not in {text}.__dict__')
        self.of_class(cls)
