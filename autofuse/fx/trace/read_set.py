"""What the user's code can have read besides its arguments and its module, as guards.

Which names it loads is known (user_code.py, code_facts.py). Each is guarded: plain values by value, functions, classes
and modules by identity, containers and objects by identity and by what they hold under the names that are read. What
cannot be guarded is a reason to refuse. Objects are named in guards themselves, so a guard is one look into a dict.
"""

from __future__ import annotations

import abc
import array
import builtins
import contextvars
import enum
import functools
import operator
import os
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.cached_tensors import holds_tensors
from autofuse.fx.trace.code_facts import Load, facts_of, nested
from autofuse.fx.trace.contents import is_sentinel
from autofuse.fx.trace.functions_found import FunctionsFound, receiving_class, unwrapped
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.identity_tests import compared_with_others, compares_objects
from autofuse.fx.trace.own_forward import own_forward, own_function
from autofuse.fx.trace.roots import NOTHING, imported_names, root_of
from autofuse.fx.trace.same_values import equals_others, is_same_value
from autofuse.fx.trace.slots import has_hidden_state, slots
from autofuse.fx.trace.snapshots import EVERYTHING, closed_over, is_opaque
from autofuse.fx.trace.source_lines import SourceLine
from autofuse.fx.trace.twin import is_twin, original_class
from autofuse.fx.trace.type_calls import uses_type_of_values
from autofuse.fx.trace.unreplaced import (
    OPERATORS,
    Comparisons,
    uncleared_cache,
    unreplaced_forwards,
    unreplaced_functions,
    unreplaced_methods,
    unreplaced_names,
    unshadowed,
    unwritten_cache,
    whole,
)
from autofuse.fx.trace.user_code import Ran
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because

Refuse = Callable[..., None]  # of a reason and a place; raises
_OF_FUNCTIONS = frozenset({"__defaults__", "__kwdefaults__", "__code__", "signature", "getfullargspec"})
_LARGEST, _LARGEST_ARRAY, _MOST = 256, 4096, 400  # elements, bytes, values
_IDENTICAL = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)  # equal only to themselves
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodWrapperType)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_PYTHONS = frozenset({"Ellipsis", "NotImplemented", "__build_class__", "__spec__", "__loader__", "_"})
_ANSWERING = frozenset({"__getattribute__", "__getattr__"})
_CALLABLES = (*_FUNCTIONS, types.MethodType, functools.partial)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class ReadSet:
    """Turns what ran into guards. `refuse` raises."""

    def __init__(self, guards: Guards, functions: FunctionsFound, refuse: Refuse) -> None:
        self.guards, self.functions, self._refuse_at = guards, functions, refuse
        self._place: SourceLine | None = None  # of what is looked at
        self._names: Collection[str] = frozenset()
        self._seen: dict[int, Any] = {}
        self._more: list[Ran] = []  # which may run, too
        self._parts: list[Comparisons] = []  # of one test for all that is compared by identity
        self._absent: dict[int, tuple[dict[str, Any], set[str]]] = {}  # namespace -> what must not be in it
        self._ran: dict[int, types.FunctionType] = {}
        self._computed = False  # whether attributes are read by names that the code does not write out
        self._upwards = False  # whether `super` is used
        self._compares = False  # whether two objects are compared by identity
        self._asks = False  # whether it is of consequence that an object lacks an attribute
        self._literal: frozenset[str] = frozenset()  # the names that are written out
        self._of_values: frozenset[str] = frozenset()  # those that may be asked of something else than a module
        self._within: list[types.ModuleType] = []  # modules of Python that are being looked into
        self._batches: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # namespace -> what must be in it

    def close(self, ran: list[Ran], classes: Iterable[type] = (), given: Iterable[type] = ()) -> None:
        """Guard everything that these functions can have loaded. Raises where something cannot be guarded.

        classes: of the objects that are watched, which the code may ask for their class; given: as arguments.
        """
        ran = [each for each in ran if not _makes_tuple_of_library(each)]
        for each in filter(type_is_used, ran):
            self._place = SourceLine(each.code.co_filename, uses_type_of_values(each.code) or 0)
            self._refuse(because(forwards.GOES_BY_TYPE, name=each.code.co_name))
        classes, given = list(classes), list(given)
        every, before = ran, dict(self._seen)
        looked = -1, False
        while looked != (looked := self._walk(every, ran, classes, given)):
            every, self._seen = [*ran, *self._more], dict(before)
        if self._ran:
            self._parts.append(unreplaced_functions(self._ran.values()))
        if methods := sorted({n for n in self._of_values if n[:2] != "__" and hasattr(Tensor, n)} | OPERATORS):
            self._parts.append(unreplaced_methods(Tensor, methods))
        for key in dict.fromkeys((*self._batches, *self._absent)):
            namespace, absent = self._absent.get(key) or (self._batches[key][0], set())
            self._parts.append(unreplaced_names(namespace, self._batches.get(key, ({}, {}))[1], absent))
        if self._parts:
            self.guards.add(f"{self.guards.constant(whole(self._parts))}()")

    def _walk(
        self, every: list[Ran], ran: list[Ran], classes: Iterable[type], given: Iterable[type]
    ) -> tuple[int, bool]:
        """Guard what all these functions can have loaded; how many there are once those are found that may run, and
        whether names of attributes were met that the code does not write out."""
        self._names = _names_read(every)
        self._literal = frozenset(n for r in every for n in facts_of(r.code).attribute_names(r.lines))
        self._of_values = frozenset(n for r in every for n in _asked_of_values(r))
        self._asks = any(facts_of(r.code).by_name or r.code.co_exceptiontable for r in every)
        self._compares = any(compares_objects(r.code) for r in every)
        self._upwards = any(load.name == "super" for r in every for load in r.loads())
        if self._computed:
            self._names = EVERYTHING
        if any(_asks_for_classes(each) for each in every):
            for cls in filter(_is_users, dict.fromkeys(classes)):
                self._class(cls)
        for cls in filter(_is_users, dict.fromkeys(given)):
            self._class(cls)
        for each in every:
            asked = "__getattribute__" in set(facts_of(each.code).attribute_names(each.lines))
            if asked and each.code.co_name not in _ANSWERING:  # it passes by who listens
                self._place = SourceLine(each.code.co_filename, each.code.co_firstlineno)
                self._refuse(because(forwards.READS_DICT, name="__getattribute__()"))
            for load in each.loads():
                self._place = SourceLine(each.code.co_filename, load.line)
                self._load(each, load)
            self._identities(each)
            self._place = None
            self._function(each, ran)
            self._given(each)
        return len(ran) + len(self._more), self._computed

    def _identities(self, ran: Ran) -> None:
        """A stand-in is not the object that the program may compare it with by `is`."""
        for name, line in compared_with_others(ran.code).items():
            if is_twin(ran.arguments.get(name, ran.free.get(name))):
                self._place = SourceLine(ran.code.co_filename, line)
                self._refuse(because(forwards.COMPARES_ARGUMENT, name=name))

    def _given(self, ran: Ran) -> None:
        """Classes among the arguments: that which a class method is called on."""
        for value in ran.arguments.values():
            if isinstance(value, type) and _is_users(original_class(value)):
                self._class(original_class(value))

    def _may_run(self, function: types.FunctionType) -> None:
        """A function that may have run before, and what it kept is used: it stands with those that ran."""
        if all(each.code is not function.__code__ for each in self._more):
            self._more.append(Ran(function.__code__, function.__globals__, {}, dict(closed_over(function))))

    def unshadowed(self, cls: type, names: Iterable[str]) -> None:
        """Guard that a class goes on having no attributes of these names."""
        if lacking := {n for n in names if not any(n in vars(c) for c in cls.__mro__)}:
            self._parts.append(unshadowed(cls, lacking))

    def constants(self, ran: Iterable[Ran]) -> None:
        """Guard the plain values among the globals that these functions load."""
        for each in ran:
            for load in each.loads():
                value = root_of(each, load) if load.kind == "global" else NOTHING
                if value is not NOTHING and is_plain(value):
                    self._in_namespace(each.namespace, load.name)

    def _refuse(self, reason: Reason) -> None:
        self._refuse_at(reason, place=self._place)

    # Where values are found.

    def _load(self, ran: Ran, load: Load) -> None:
        if load.kind == "import":
            for name in imported_names(ran, load.name):
                self._in_namespace(sys.modules, name)
                self._attributes(sys.modules[name], ())
            return
        value = root_of(ran, load)
        if value is NOTHING and load.kind == "global":
            self._absent.setdefault(id(ran.namespace), (ran.namespace, set()))[1].add(load.name)
            self._of_python(load.name)
        if value is NOTHING or load.kind == "free":
            return
        if load.kind == "global":
            self._in_namespace(ran.namespace, load.name)
        if isinstance(value, types.FunctionType) and effects.is_standard(value.__globals__.get("__name__")):
            self._held(value, load.name)  # a decorator of functools'
        if isinstance(value, types.FunctionType) and not effects.is_library(value.__module__):
            if any(ran is each for each in self._more):
                self._may_run(value)
            if not _OF_FUNCTIONS.isdisjoint(self._literal):
                self._ran[id(value)] = value
                self._held(value.__defaults__, load.name)
                self._held(value.__kwdefaults__, load.name)
        self._attributes(value, load.attributes)

    def _of_python(self, name: str) -> None:
        """A name that the user added to Python's own."""
        value = vars(builtins).get(name)
        if value is id:  # that of a stand-in is another
            self._refuse(because(forwards.READS_STATE, name="id()", kind="memory address"))
        if value is dir:
            self._refuse(because(forwards.READS_DICT, name="dir()"))
        if (
            value is not None
            and not isinstance(value, (type, bool, types.BuiltinFunctionType))
            and name not in _PYTHONS
        ):
            self._in_namespace(vars(builtins), name)

    def _in_namespace(self, namespace: dict[str, Any], name: str) -> None:
        value = namespace[name]
        if isinstance(value, types.FunctionType):
            self.functions.know(value)  # a decorator's function has another name
        if value is torch.inference_mode:  # inference_mode(False) changes nothing here, and much under no_grad
            self.guards.add(f"{self.guards.constant(torch.is_grad_enabled)}()")
            self.guards.add(f"not {self.guards.constant(torch.is_inference_mode_enabled)}()")
        if isinstance(value, _IDENTICAL) and not _is_bound(value):
            self._batches.setdefault(id(namespace), (namespace, {}))[1][name] = value
            return
        self._value(f"{self.guards.constant(namespace)}[{name!r}]", value, name)

    def _attributes(self, value: Any, attributes: tuple[str, ...]) -> None:
        """What is asked of a module or of a class at once; of one that is used as a value, all that is ever asked."""
        if isinstance(value, types.ModuleType):
            if not attributes and value in self._within:  # modules lead to each other: `torch.torch`
                return
            self._within.append(value)
            inside = vars(value)
            library = effects.is_library(value.__name__) or effects.is_standard(value.__name__)
            names = self._literal if library else self._names  # nobody goes through all that a library has
            for name in attributes[:1] or sorted(n for n in (*inside, *self._missing(inside)) if n in names):
                if name in inside:
                    self._in_namespace(inside, name)
                    self._attributes(inside[name], attributes[1:])
                else:  # its __getattr__ answers, or nobody
                    if "__getattr__" in inside:
                        self._in_namespace(inside, "__getattr__")
                    self._absent.setdefault(id(inside), (inside, set()))[1].add(name)
            self._flags(value, attributes[:1] or self._names)
            self._within.pop()
        elif attributes and type(value).__module__.startswith("torch.backends"):
            self._flags(value, attributes[:1])
        elif isinstance(value, type) and _is_users(value):
            self._class(value, attributes)
            if isinstance(value, abc.ABCMeta):  # any class may be registered with it, which is counted
                self.guards.add(f"{self.guards.constant(abc.get_cache_token)}() == {abc.get_cache_token()}")
        elif isinstance(value, types.FunctionType):
            self._function_attributes(value)
            self._dispatched(value)

    def _dispatched(self, function: types.FunctionType) -> None:
        """The tables that a function of Python's own keeps for the user: those of functools.singledispatch."""
        if effects.is_standard(function.__globals__.get("__name__")):
            for name, closed in (c for inner in unwrapped(function) for c in closed_over(inner)):
                if isinstance(closed, dict):
                    self._held(closed, name)

    def _flags(self, value: Any, names: Iterable[str]) -> None:
        """What torch computes when it is asked: `torch.backends.cudnn.benchmark`."""
        if type(value) is types.ModuleType or not type(value).__module__.startswith("torch."):
            return
        computed = {n for c in type(value).__mro__ if effects.is_library(c.__module__) for n in vars(c)}
        computed = computed if not hasattr(type(value), "__getattr__") else computed | {*names}
        for name in sorted(n for n in names if n in computed and n[:2] != "__"):
            found = getattr(value, name, None)
            if is_plain(found):
                self.guards.alike(f"{self.guards.constant(value)}.{name}", found)

    def _missing(self, inside: Collection[str]) -> list[str]:
        """The names that are asked for and are not there, where somebody may go on without them."""
        return sorted(n for n in self._literal if n not in inside and n[:2] != "__") if self._asks else []

    def _function_attributes(self, function: Any) -> None:
        """What is kept on a function: `helper.calls`."""
        inside = getattr(function, "__dict__", {})
        for name in [n for n in inside if n in self._names and not n.startswith("__")]:
            if own_function(function) is not function or function.__name__ == "forward":
                self._refuse(because(forwards.READS_UNREACHED, name=name, kind="function"))
            self._value(f"{self.guards.constant(function)}.__dict__[{name!r}]", vars(function)[name], name)

    def _class(self, cls: type, attributes: tuple[str, ...] = ()) -> None:
        if attributes:
            names: Iterable[str] = attributes[:1]
        elif id(cls) in self._seen:
            return
        else:
            self._seen[id(cls)] = cls
            bases = (c for c in _lookup(cls) if _is_users(c))
            names = sorted({n for c in bases for n in vars(c) if n in self._names})
        for name in names:
            found = next((vars(c)[name] for c in cls.__mro__ if name in vars(c) and _is_users(c)), NOTHING)
            if found is NOTHING:  # of the metaclass
                found = next((vars(c)[name] for c in _lookup(cls) if name in vars(c) and _is_users(c)), NOTHING)
            if issubclass(cls, enum.Enum):
                found = cls.__members__.get(name, found)
            if found is NOTHING:
                self._class_lacks(cls, [name])
            elif name[:2] != "__" or name == "__annotations__" and name in self._literal:
                self._class_attribute(cls, name, found)
        if not attributes:
            self._class_lacks(cls, [n for n in self._missing(()) if not any(n in vars(c) for c in _lookup(cls))])
            for base in filter(_is_users, cls.__mro__[1:] if self._upwards else ()):
                self._class(base)

    def _class_lacks(self, cls: type, missing: list[str]) -> None:
        for base in filter(_is_users, _lookup(cls) if missing else ()):
            self._lacks(f"{self.guards.constant(base)}.__dict__", (), (), missing)

    def _class_attribute(self, cls: type, name: str, found: Any) -> None:
        if name == "forward" and issubclass(cls, nn.Module):
            self._function_attributes(own_forward(cls))
            self._parts.append(unreplaced_forwards([cls]))
            return
        text = f"{self.guards.constant(cls)}.{name}"
        self.functions.know(found)
        if isinstance(found, classmethod):
            self.guards.same(f"{text}.__func__", found.__func__)
        elif isinstance(found, (staticmethod, types.FunctionType)):
            function = getattr(found, "__func__", found)
            self.guards.same(text, function) if getattr(cls, name, None) is function else None
            self._function_attributes(function) if isinstance(function, types.FunctionType) else None
        elif type(found) is types.MemberDescriptorType:
            return
        elif hasattr(type(found), "__get__"):
            self.guards.same(f"_inherited({self.guards.constant(cls)}, {name!r})", found)
            if isinstance(found, functools._lru_cache_wrapper) or _is_users(type(found)):
                self._held(found, name)
        else:
            self._value(text, found, f"{cls.__name__}.{name}")

    def _function(self, ran: Ran, others: list[Ran]) -> None:
        """The function that ran: where it was found, its defaults, and what it closes over."""
        made_here = any(ran.code in nested(other.code) for other in others)
        function = self.functions.of(ran, everywhere=not made_here)
        if function is None:
            if ran.free and not made_here:
                self._refuse(because(forwards.RUNS_UNKNOWN, name=ran.code.co_name))
            return
        owner = self.functions.owner(ran)
        if owner is not None and ran is others[0] and owner[1] == "forward":
            self._function_attributes(own_forward(owner[0]))  # who replaces it replaces the guards with it
        elif owner is not None:
            self._class_attribute(owner[0], owner[1], vars(owner[2])[owner[1]])
        if owner is not None and self._upwards:
            self._passed_over(ran, owner[1], owner[2])
        self._ran[id(function)] = function
        if function.__defaults__ or function.__kwdefaults__:
            self._held(function.__defaults__, function.__name__)
            self._held(function.__kwdefaults__, function.__name__)
        for cell, (name, value) in zip(function.__closure__ or (), closed_over(function), strict=False):
            if name != "__class__" and not is_twin(value) and not isinstance(value, (Tensor, nn.Module)):
                self._value(f"{self.guards.constant(cell)}.cell_contents", value, name)

    def _passed_over(self, ran: Ran, name: str, definer: type) -> None:
        """`super` goes past classes that define nothing of the name: they must not get it, nor stand elsewhere."""
        cls = receiving_class(ran)
        before = cls.__mro__[: cls.__mro__.index(definer)] if definer in cls.__mro__ else ()
        if any(name in vars(base) for base in before):
            self.guards.same(f"{self.guards.constant(cls)}.__mro__", cls.__mro__)
            for base in (b for b in before if _is_users(b) and name not in vars(b)):
                self._lacks(f"{self.guards.constant(base)}.__dict__", (), (), [name])

    # Values.

    def value(self, text: str, value: Any, name: str, names: Collection[str] = EVERYTHING) -> None:
        """Guard what an attribute of the module holds, that is no twin."""
        before, self._names = self._names, names
        try:
            self._value(text, value, name)
        finally:
            self._names = before

    def _value(self, text: str, value: Any, name: str) -> None:
        """`text` must give what it gives now."""
        if isinstance(value, Tensor):
            return  # who computes with it is refused
        if is_plain(value):
            self.guards.alike(text, value)
            return
        if kind := effects.kind_of_state(value):
            self._refuse(because(forwards.READS_STATE, name=name, kind=kind))
        self.guards.same(text, value)
        if isinstance(value, types.ModuleType):
            self._attributes(value, ())
        elif isinstance(value, type):
            self._class(value) if _is_users(value) else None
        else:
            self._held(value, name)

    def _held(self, value: Any, name: str) -> None:
        """What a value that stays the same object holds."""
        if value is None or is_plain(value) or id(value) in self._seen or is_twin(value):
            return
        self._seen[id(value)] = value
        if self._compares and isinstance(value, nn.Module):  # what is compared with it may be a stand-in for it
            self._refuse(because(forwards.COMPARES_ARGUMENT, name=name))
        if isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self._computed = True
        if isinstance(value, enum.Enum):
            self._value(f"{self.guards.constant(value)}._value_", value._value_, name)
        if len(self._seen) > _MOST:
            self._refuse(because(forwards.READS_TOO_MUCH, name=name))
        if isinstance(value, _CALLABLES):
            self._callable(value, name)
        elif isinstance(value, weakref.ref):
            self._value(f"{self.guards.constant(value)}()", value(), name)
        elif isinstance(value, contextvars.ContextVar):
            return  # asked when it is read
        elif effects.is_array(value):
            self._array(value, name)
        elif isinstance(value, array.array):
            self.guards.equal(f"{self.guards.constant(value)}.tobytes()", value.tobytes())
        elif isinstance(value, functools._lru_cache_wrapper):
            if value.cache_info().currsize:  # those that hold tensors were emptied
                self._parts.append(uncleared_cache(value))
            if holds_tensors(value):
                self._parts.append(unwritten_cache(value))
            self.functions.know(value)
            for function in unwrapped(value):  # it may have run before, and then does not run again
                self._may_run(function)
        else:
            self._container(value, name)
            self._object(value, name)

    def _callable(self, value: Any, name: str) -> None:
        self.functions.know(value)
        if isinstance(value, types.MethodType):
            self._held(value.__self__, name)
            self.functions.know(value.__func__)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            if _is_bound(value):
                self._value(f"{self.guards.constant(value)}.__self__", value.__self__, name)
        elif isinstance(value, functools.partial):
            text = self.guards.constant(value)
            for part in ("func", "args", "keywords"):
                self.guards.same(f"{text}.{part}", getattr(value, part))
                self._held(getattr(value, part), name)
        else:
            for inner, closed in closed_over(value):
                called = isinstance(closed, (types.FunctionType, types.MethodType))
                if called or isinstance(closed, dict) and effects.is_standard(value.__globals__.get("__name__")):
                    self._held(closed, inner)  # a dict: what functools' dispatch goes by

    def _array(self, value: Any, name: str) -> None:
        if value.nbytes > _LARGEST_ARRAY or value.dtype.hasobject:
            self._refuse(because(forwards.READS_TOO_MUCH, name=name))
        text = self.guards.constant(value)
        self.guards.equal(f"{text}.shape", value.shape)
        self.guards.add(f"{text}.dtype == {self.guards.constant(value.dtype)}")
        self.guards.equal(f"{text}.tobytes()", value.tobytes())

    def _container(self, value: Any, name: str) -> None:
        if not isinstance(value, _CONTAINERS):
            return
        if len(value) > _LARGEST and not isinstance(value, (tuple, frozenset)):
            self._refuse(because(forwards.READS_TOO_MUCH, name=name))
        inside = list(dict.values(value)) if isinstance(value, dict) else list(value)
        keys = list(dict.keys(value)) if isinstance(value, dict) else []
        if all(is_plain(v) or isinstance(v, _IDENTICAL) for v in (*inside, *keys)):
            self._same_content(value)
        else:
            self._items(value, keys, name)
        for part in (v for v in inside if not is_plain(v) and not isinstance(v, Tensor)):
            if isinstance(part, (type, types.ModuleType)):
                self._attributes(part, ())
            else:
                self._held(part, name)

    def _same_content(self, value: Any) -> None:
        if not isinstance(value, (tuple, frozenset)):
            kind = next(k for k in (dict, list, set, deque) if isinstance(value, k))
            now, before = self.guards.constant(value), self.guards.constant(_copy(value, kind))
            self.guards.add(f"_holds({now}, {before})" if equals_others(value) else f"{now} == {before}")

    def _items(self, value: Any, keys: list[Any], name: str) -> None:
        if isinstance(value, (tuple, frozenset)):
            return
        if isinstance(value, set) or not all(map(is_plain, keys)):
            self._refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
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
        if isinstance(value, (type, types.ModuleType)) or _is_idle(value):
            self._logger(value, name) if effects.is_logger(value) else None
            return
        if is_sentinel(value):
            missing = self._missing(getattr(value, "__dict__", ())) if hasattr(value, "__dict__") else []
            self._lacks(f"{self.guards.constant(value)}.__dict__", (), self._names, missing)
            self._of_class(value, self.guards.constant(value), {}, name)
            return
        if not hasattr(value, "__dict__") and not slots(value) and not isinstance(value, _CONTAINERS):
            self._refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
        text, inside = self.guards.constant(value), getattr(value, "__dict__", {})
        if has_hidden_state(type(value)) and not isinstance(value, Tensor):
            self._refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
        names = EVERYTHING if _looks_up_by_itself(type(value)) or is_opaque(value) else self._names
        missing = self._missing(inside)
        if hasattr(value, "__dict__") and (missing or _looks_up_by_itself(type(value))):
            self._lacks(f"{text}.__dict__", inside, names, missing)
        for attribute in [n for n in inside if n in names]:
            self._value(f'{text}.__dict__["{attribute}"]', inside[attribute], f"{name}.{attribute}")
        if self._asks and any(n in names and not hasattr(value, n) for n in slots(value)):
            self._refuse(because(forwards.READS_STATE, name=name, kind=type(value).__qualname__))
        for attribute in (n for n in slots(value) if n in names and hasattr(value, n)):
            self._value(f"{text}.{attribute}", getattr(value, attribute), f"{name}.{attribute}")
        if isinstance(value, nn.Module):
            self._tables(value, text, name)
        self._of_class(value, text, inside, name)

    def _logger(self, value: Any, name: str) -> None:
        """What is asked of a logger without calling it: `log.level`."""
        for attribute in [n for n in vars(value) if n in self._literal]:
            text = f'{self.guards.constant(value)}.__dict__["{attribute}"]'
            self._value(text, vars(value)[attribute], f"{name}.{attribute}")

    def _lacks(self, text: str, inside: Collection[str], names: Collection[str], missing: list[str]) -> None:
        """Attributes that an object must not get."""
        if names is EVERYTHING:
            self.guards.add(f"len({text}) == {len(inside)}")
        elif missing:
            self.guards.add(f"{self.guards.name_of(frozenset(missing))}.isdisjoint({text})")

    def _tables(self, module: nn.Module, text: str, name: str) -> None:
        for table in ("_parameters", "_buffers", "_modules"):
            for attribute, held in vars(module)[table].items():
                if attribute in self._names:
                    self._value(f'{text}.{table}["{attribute}"]', held, f"{name}.{attribute}")

    def _of_class(self, value: Any, text: str, inside: Mapping[str, Any], name: str) -> None:
        """What the object's class holds, and that the object does not hide it."""
        cls = type(value)
        if not _is_users(cls):
            return
        self.guards.same(f"type({text})", cls)
        in_dict = hasattr(value, "__dict__")
        for attribute in sorted({n for c in cls.__mro__ if _is_users(c) for n in vars(c) if n in self._names}):
            found = next(vars(c)[attribute] for c in cls.__mro__ if attribute in vars(c))
            if attribute not in inside and attribute[:2] != "__" and not hasattr(type(found), "__set__") and in_dict:
                self.guards.add(f'"{attribute}" not in {text}.__dict__')
        self._class(cls)

    # Questions.

    def question(self, function: Callable[[], Any]) -> None:
        """What torch says of its state, asked without arguments."""
        if "autocast" in getattr(function, "__name__", ""):
            self._autocast_question(function)
            return
        try:
            answer = function()
        except TypeError:  # it takes arguments
            return
        if is_plain(answer) or type(answer).__module__ == "torch":
            self.guards.alike(f"{self.guards.constant(function)}()", answer)

    def _autocast_question(self, function: Callable[..., Any]) -> None:
        """What torch says of autocast, for each kind of device that may have been asked for."""
        for given in ((), ("cpu",), ("cuda",)):
            try:
                answer = function(*given)
            except Exception:  # it takes another number of arguments, or is not there for this device
                continue
            if is_plain(answer):
                self.guards.alike(f"{self.guards.constant(function)}{given!r}", answer)

    def environment(self, key: object) -> None:
        """A variable of the environment."""
        if not isinstance(key, str):
            self._refuse(because(forwards.READS_STATE, name="os.environ", kind="mapping"))
            return
        self.guards.alike(f"{self.guards.constant(os.environ.get)}({key!r})", os.environ.get(key))

    def variable(self, variable: contextvars.ContextVar[Any]) -> None:
        """A context variable."""
        text = f"{self.guards.constant(variable.get)}({self.guards.constant(NOTHING)})"
        self._value(text, variable.get(NOTHING), variable.name)

    def idle(self, variable: contextvars.ContextVar[Any]) -> None:
        """A context variable by which a library asks for nothing; what it holds then is another object each time."""
        self.guards.add(f"not {self.guards.constant(variable.get)}()")


_COPIES: dict[int, tuple[Any, Any]] = {}
_KEPT = 4096


def _copy(value: Any, kind: type) -> Any:
    """A copy to compare a container with; the same one while the container holds the same."""
    known = _COPIES.get(id(value))
    if known is not None and known[0] is value and is_same_value(known[1], kind(value)):
        return known[1]
    if len(_COPIES) > _KEPT:
        _COPIES.clear()
    _COPIES[id(value)] = value, kind(value)
    return _COPIES[id(value)][1]


def is_plain(value: Any) -> bool:
    """Whether a value is immutable, and equal only to what does as well."""
    if isinstance(value, enum.Enum):
        return is_plain(value._value_) and vars(value).keys() <= _OF_MEMBERS
    if isinstance(value, _PLAIN):
        return not getattr(value, "__dict__", None) and not _is_users(type(value))
    if type(value).__module__ == "torch" and type(value).__name__ in _TORCHS:
        return True
    if isinstance(value, (tuple, frozenset)) and type(value) in (tuple, frozenset):
        return all(map(is_plain, value))
    kind = type(value)
    return kind.__module__ == "numpy" and hasattr(value, "item") and not hasattr(value, "__setitem__") or _is_atom(kind)


_OF_MEMBERS = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})
_TORCHS = frozenset({"dtype", "device", "layout", "memory_format", "Size", "finfo", "iinfo"})
_ATOMS = frozenset({("decimal", "Decimal"), ("fractions", "Fraction"), ("datetime", "date"), ("datetime", "timedelta"),
                    ("datetime", "datetime"), ("uuid", "UUID"), ("builtins", "range"), ("builtins", "ellipsis"),
                    ("re", "Pattern"), ("pathlib", "PosixPath"), ("builtins", "slice")})  # fmt: skip


def _is_atom(kind: type) -> bool:
    return (kind.__module__, kind.__name__) in _ATOMS


def _is_users(cls: type) -> bool:
    return not effects.is_library(cls.__module__) and not effects.is_standard(cls.__module__)


def _is_idle(value: Any) -> bool:
    """Whether a value of a library's or of Python's is only of use by calling it, which is looked at then."""
    kind = type(value)
    if effects.is_library(kind.__module__) or effects.is_logger(value) or kind.__module__ == "_abc":
        return True
    return isinstance(
        value, (property, staticmethod, classmethod, operator.itemgetter, operator.attrgetter, random.Random)
    )


def _is_bound(value: Any) -> bool:
    """Whether a function that is written in C belongs to an object: `table.get`."""
    if not isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return False
    return value.__self__ is not None and not isinstance(value.__self__, (types.ModuleType, type))


def _lookup(cls: type) -> list[type]:
    """Where an attribute of a class is looked up: in its bases, then in its metaclass."""
    meta: type = type(cls)
    return [*cls.__mro__, *meta.__mro__]


def _looks_up_by_itself(cls: type) -> bool:
    """Whether a class answers for names of its own accord."""
    own = [c for c in cls.__mro__ if _is_users(c)]
    return any(n in vars(c) for c in own for n in ("__getattr__", "__getattribute__"))


def _asked_of_values(ran: Ran) -> Iterator[str]:
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


def _makes_tuple_of_library(ran: Ran) -> bool:
    """Whether this is what makes a named tuple of a library: its code has a namespace of its own."""
    made = next(iter(ran.arguments.values()), None)
    own = str(ran.namespace.get("__name__")).startswith("namedtuple_")
    return own and isinstance(made, type) and effects.is_library(made.__module__)


def _asks_for_classes(ran: Ran) -> bool:
    loaded = any(load.name == "type" and load.kind == "global" for load in ran.loads())
    return loaded or "__class__" in set(facts_of(ran.code).attribute_names(ran.lines))


def _names_read(ran: list[Ran]) -> Collection[str]:
    """The attributes that the code can read, of whatever."""
    if any(facts_of(r.code).by_name for r in ran):
        return EVERYTHING
    return frozenset(n for r in ran for n in facts_of(r.code).attribute_names(r.lines))
