"""Turns everything that the user's code can have read, besides its arguments and its module, into guards.

user_code.py and code_facts.py report the names that the code loads. Each is guarded: plain values by value, functions,
classes and modules by identity, containers and objects by identity and by what they hold under the names that are read.
What cannot be guarded is refused. Guards name objects directly, so a guard is one lookup in a dict.
"""

from __future__ import annotations

import abc
import builtins
import collections
import contextvars
import enum
import functools
import os
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.code_facts import Load, facts_of, nested
from autofuse.fx.trace.functions_found import FunctionsFound, receiving_class, wrapped_functions
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.identity_tests import compares_objects, names_compared_with_outside
from autofuse.fx.trace.own_forward import ENTRY, definer_of, own_forward, own_function
from autofuse.fx.trace.reachable import EVERYTHING, closure_values
from autofuse.fx.trace.read_names import (
    asks_for_classes,
    attributes_asked_of_values,
    makes_library_namedtuple,
    readable_attributes,
    uses_type_itself,
)
from autofuse.fx.trace.roots import NOTHING, imported_names, root_of
from autofuse.fx.trace.source_lines import SourceLine
from autofuse.fx.trace.special_names import is_special
from autofuse.fx.trace.twin import is_twin, original_class
from autofuse.fx.trace.type_calls import line_of_type_use
from autofuse.fx.trace.unreplaced import (
    OPERATORS,
    combined_test,
    unreplaced_forwards,
    unreplaced_functions,
    unreplaced_methods,
    unreplaced_names,
    unshadowed,
    without_attributes,
    without_new_methods,
)
from autofuse.fx.trace.user_code import Execution
from autofuse.fx.trace.value_facts import (
    IDENTICAL,
    is_bound_builtin,
    is_mutable_class,
    is_plain,
    is_user_class,
    lookup_classes,
)
from autofuse.fx.trace.value_guards import Refuse, ValueGuards
from autofuse.reasons import forwards
from autofuse.reasons.reason import because

_FUNCTION_ATTRIBUTES = frozenset({"__defaults__", "__kwdefaults__", "__code__", "signature", "getfullargspec"})
_PYTHON_NAMES = frozenset({"Ellipsis", "NotImplemented", "__build_class__", "__spec__", "__loader__", "_"})
# Attributes that lead to state by no name that code loads: globals and cells of any function, all subclasses.
_LEAD_ANYWHERE = frozenset({"__globals__", "__builtins__", "__subclasses__", "__doc__", "f_globals", "f_locals",
                            "f_back", "f_builtins", "gi_frame", "cr_frame", "tb_frame", "cell_contents"})  # fmt: skip
_SPECIAL_DATA = frozenset({"__annotations__", "__match_args__"})  # a program may assign them
_ATTRIBUTE_METHODS = frozenset({"__getattribute__", "__getattr__"})

# Descriptors without a state: the fields of named tuples, and attributes that are implemented in C.
_FIELDS = (type(collections.namedtuple("_Example", "field").field), types.GetSetDescriptorType)  # type: ignore[attr-defined]


class ReadSet(ValueGuards):
    """Turns executions into guards. `refuse` raises."""

    def __init__(self, guards: Guards, functions: FunctionsFound, refuse: Refuse) -> None:
        super().__init__(guards, functions, refuse)
        self._more: list[Execution] = []  # further functions that may run
        self._absent: dict[int, tuple[dict[str, Any], set[str]]] = {}  # namespace -> names that must stay unbound
        self._ran: dict[int, types.FunctionType] = {}
        self.descriptors: list[tuple[type, str]] = []  # classes, and names of their descriptors that were read
        self._classes_tested: set[type] = set()  # classes whose special methods are guarded
        self._upwards = False  # whether the code calls `super`, which also reads the bases of classes
        self._of_values: frozenset[str] = frozenset()  # names that may be read from anything but a module
        self._within: list[types.ModuleType] = []  # the modules that guard_attributes has entered
        self._batches: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # namespace -> its names and values

    def close(
        self,
        ran: list[Execution],
        classes: Iterable[type] = (),
        argument_classes: Iterable[type] = (),
        operators: Iterable[str] = (),
    ) -> None:
        """Guards everything that these functions can have loaded. Refuses what cannot be guarded.

        Args:
            ran: The functions that ran.
            classes: Classes of observed objects. They are guarded if the code asks for classes.
            argument_classes: Classes of the arguments.
            operators: The methods behind operators of tensors that were called.
        """
        ran = [each for each in ran if not makes_library_namedtuple(each)]
        for each in filter(uses_type_itself, ran):
            self.place = SourceLine(each.code.co_filename, line_of_type_use(each.code) or 0)
            self.refuse(because(forwards.GOES_BY_TYPE, name=each.code.co_name))
        classes, argument_classes = list(classes), list(argument_classes)
        every, before = ran, dict(self.seen)
        progress = -1, False
        while progress != (progress := self._walk(every, ran, classes, argument_classes)):
            every, self.seen = [*ran, *self._more], dict(before)
        if self._ran:
            self.parts.append(unreplaced_functions(self._ran.values()))
        methods = {n for n in self._of_values if n[:2] != "__" and hasattr(Tensor, n)}
        self.parts.append(unreplaced_methods(Tensor, methods | OPERATORS | {*operators}))
        for key in dict.fromkeys((*self._batches, *self._absent)):
            namespace, absent = self._absent.get(key) or (self._batches[key][0], set())
            self.parts.append(unreplaced_names(namespace, self._batches.get(key, ({}, {}))[1], absent))
        if self.parts:
            self.guards.add(f"{self.guards.constant(combined_test(self.parts))}()")

    def _walk(
        self, every: list[Execution], ran: list[Execution], classes: Iterable[type], argument_classes: Iterable[type]
    ) -> tuple[int, bool]:
        """Guards everything that all these functions can have loaded.

        Returns:
            The number of functions, including those that may run, and whether attributes are read by computed names.
        """
        self.names = readable_attributes(every)
        self.literal = frozenset(n for r in every for n in facts_of(r.code).attribute_names(r.lines))
        self._of_values = frozenset(n for r in every for n in attributes_asked_of_values(r))
        self.asks = any(facts_of(r.code).by_name or r.code.co_exceptiontable for r in every)
        self.compares = any(compares_objects(r.code) for r in every)
        self._upwards = any(load.name == "super" for r in every for load in r.loads())
        if self.computed:
            self.names = EVERYTHING
        if any(asks_for_classes(each) for each in every):
            for cls in filter(is_user_class, dict.fromkeys(classes)):
                self.guard_class(cls)
        for cls in filter(is_user_class, dict.fromkeys(argument_classes)):
            self.guard_class(cls)
        for cls, name in self.descriptors:
            self._guard_descriptor(cls, name)
        for each in every:
            self._refuse_unfollowed_reads(each)
            for load in each.loads():
                self.place = SourceLine(each.code.co_filename, load.line)
                self._guard_load(each, load)
            self._refuse_identity_tests(each)
            self.place = None
            self._guard_function(each, ran)
            self._guard_class_arguments(each)
            if any(load.name == "super" for load in each.loads()) and is_user_class(cls := receiving_class(each)):
                self.guard_class(cls)
        for function in list(self.reached.values()):
            self._guard_function_attributes(function)
        return len(ran) + len(self._more), self.computed

    def _refuse_identity_tests(self, ran: Execution) -> None:
        """Refuses comparisons by `is` of a stand-in, which is not the object that the program compares."""
        for name, line in names_compared_with_outside(ran.code).items():
            if is_twin(ran.arguments.get(name, ran.free.get(name))):
                self.place = SourceLine(ran.code.co_filename, line)
                self.refuse(because(forwards.COMPARES_ARGUMENT, name=name))

    def _guard_class_arguments(self, ran: Execution) -> None:
        """Guards classes among the arguments: the class on which a class method is called."""
        for value in ran.arguments.values():
            if isinstance(value, type) and is_user_class(original_class(value)):
                self.guard_class(original_class(value))

    def add_function(self, function: types.FunctionType) -> None:
        """Adds a function that may have run earlier, and whose stored result is used, to those that ran."""
        if all(each.code is not function.__code__ for each in self._more):
            self._more.append(Execution(function.__code__, function.__globals__, {}, dict(closure_values(function))))

    def _refuse_unfollowed_reads(self, ran: Execution) -> None:
        """Refuses reads that reach no listener, and reads of state that no guard follows."""
        read = set(facts_of(ran.code).attribute_names(ran.lines))
        unfollowed = read & _LEAD_ANYWHERE
        if "__getattribute__" in read and ran.code.co_name not in _ATTRIBUTE_METHODS:
            unfollowed.add("__getattribute__()")
        for name in sorted(unfollowed):
            self.place = SourceLine(ran.code.co_filename, ran.code.co_firstlineno)
            self.refuse(because(forwards.READS_DICT, name=name))

    def guard_unshadowed(self, cls: type, names: Iterable[str]) -> None:
        """Guards that a class does not get attributes of these names."""
        if lacking := {n for n in names if not any(n in vars(c) for c in cls.__mro__)}:
            self.parts.append(unshadowed(cls, lacking))

    def guard_constants(self, ran: Iterable[Execution]) -> None:
        """Guards the plain values of the globals that these functions load."""
        for each in ran:
            for load in each.loads():
                value = root_of(each, load) if load.kind == "global" else NOTHING
                if value is not NOTHING and is_plain(value):
                    self._guard_name(each.namespace, load.name)

    # Guards by the place of a value.

    def _guard_load(self, ran: Execution, load: Load) -> None:
        if load.kind == "import":
            for name in imported_names(ran, load.name):
                self._guard_name(sys.modules, name)
                self.guard_attributes(sys.modules[name], ())
            return
        value = root_of(ran, load)
        if value is NOTHING and load.kind == "global":
            self._absent.setdefault(id(ran.namespace), (ran.namespace, set()))[1].add(load.name)
            self._guard_builtin_name(load.name)
        if value is NOTHING or load.kind == "free":
            return
        if load.kind == "global":
            self._guard_name(ran.namespace, load.name)
        if isinstance(value, types.FunctionType) and effects.is_standard(value.__globals__.get("__name__")):
            self.guard_content(value, load.name)  # a function that a functools decorator made
        if isinstance(value, types.FunctionType) and not effects.is_library(value.__module__):
            if any(ran is each for each in self._more):
                self.add_function(value)
            if not _FUNCTION_ATTRIBUTES.isdisjoint(self.literal):
                self._ran[id(value)] = value
                self.guard_content(value.__defaults__, load.name)
                self.guard_content(value.__kwdefaults__, load.name)
            if "__annotations__" in self.literal:
                self.guard_content(value.__annotations__, load.name)
        self.guard_attributes(value, load.attributes)

    def _guard_builtin_name(self, name: str) -> None:
        """Guards a built-in name that the user added or replaced."""
        value = vars(builtins).get(name)
        if value is id:  # the id of a stand-in differs
            self.refuse(because(forwards.READS_STATE, name="id()", kind="memory address"))
        if value is dir:
            self.refuse(because(forwards.READS_DICT, name="dir()"))
        if (
            value is not None
            and not isinstance(value, (type, bool, types.BuiltinFunctionType))
            and name not in _PYTHON_NAMES
        ):
            self._guard_name(vars(builtins), name)

    def _guard_name(self, namespace: dict[str, Any], name: str) -> None:
        value = namespace[name]
        if isinstance(value, types.FunctionType):
            self.functions.remember(value)  # a decorator's function is bound to another name than its own
        if value is torch.inference_mode:  # inference_mode(False) changes nothing here, but it does under no_grad
            self.guards.add(f"{self.guards.constant(torch.is_grad_enabled)}()")
            self.guards.add(f"not {self.guards.constant(torch.is_inference_mode_enabled)}()")
        if isinstance(value, IDENTICAL) and not is_bound_builtin(value):
            self._batches.setdefault(id(namespace), (namespace, {}))[1][name] = value
            return
        self.guard(f"{self.guards.constant(namespace)}[{name!r}]", value, name)

    def guard_attributes(self, value: Any, attributes: tuple[str, ...]) -> None:
        """Guards what is read from a module or class at once, or everything that is read if it is used as a value."""
        if isinstance(value, types.ModuleType):
            attributes = () if attributes[:1] == ("__dict__",) else attributes
            if not attributes and value in self._within:  # modules refer to each other: `torch.torch`
                return
            self._within.append(value)
            inside = vars(value)
            library = effects.is_library(value.__name__) or effects.is_standard(value.__name__)
            names = self.literal if library else self.names  # computed names in a library are not followed
            for name in attributes[:1] or sorted(n for n in (*inside, *self.missing_names(inside)) if n in names):
                if name in inside:
                    self._guard_name(inside, name)
                    self.guard_attributes(inside[name], attributes[1:])
                else:  # the module's __getattr__ returns it, or it is missing
                    if "__getattr__" in inside:
                        self._guard_name(inside, "__getattr__")
                    self._absent.setdefault(id(inside), (inside, set()))[1].add(name)
            self._guard_flags(value, attributes[:1] or self.names)
            self._within.pop()
        elif attributes and type(value).__module__.startswith("torch.backends"):
            self._guard_flags(value, attributes[:1])
        elif isinstance(value, type) and is_mutable_class(value):
            self.guard_class(value, attributes)
            if is_user_class(value) and isinstance(value, abc.ABCMeta):  # changes if a class is registered
                self.guards.add(f"{self.guards.constant(abc.get_cache_token)}() == {abc.get_cache_token()}")
        elif isinstance(value, types.FunctionType):
            self._guard_function_attributes(value)
            self._guard_dispatch_tables(value)

    def _guard_dispatch_tables(self, function: types.FunctionType) -> None:
        """Guards the tables that a function of Python's own keeps for the user, such as functools.singledispatch."""
        if effects.is_standard(function.__globals__.get("__name__")):
            for name, closed in (c for inner in wrapped_functions(function) for c in closure_values(inner)):
                if isinstance(closed, dict):
                    self.guard_content(closed, name)

    def _guard_flags(self, value: Any, names: Iterable[str]) -> None:
        """Guards attributes that torch computes when they are read: `torch.backends.cudnn.benchmark`."""
        if type(value) is types.ModuleType or not type(value).__module__.startswith("torch."):
            return
        computed = {n for c in type(value).__mro__ if effects.is_library(c.__module__) for n in vars(c)}
        computed = computed if not hasattr(type(value), "__getattr__") else computed | {*names}
        for name in sorted(n for n in names if n in computed and n[:2] != "__"):
            found = getattr(value, name, None)
            if is_plain(found):
                self.guards.alike(f"{self.guards.constant(value)}.{name}", found)

    def _guard_function_attributes(self, function: Any) -> None:
        """Guards attributes of a function: `helper.calls`."""
        inside = getattr(function, "__dict__", {})
        for name in [n for n in inside if n in self.names and not is_special(n)]:
            owner = own_function(function)
            # The dispatcher of a forward shares the attributes of a forward that wraps another function.
            shared = name == "__wrapped__" and vars(owner) is inside
            if not shared and (owner is not function or function.__name__ == "forward"):
                self.refuse(because(forwards.READS_UNREACHED, name=name, kind="function"))
            self.guard(f"{self.guards.constant(owner)}.__dict__[{name!r}]", inside[name], name)
        if missing := self.missing_names(inside):
            self.guard_absence(f"{self.guards.constant(function)}.__dict__", (), (), missing)

    def guard_class(self, cls: type, attributes: tuple[str, ...] = ()) -> None:
        """Guards the chain `attributes` of a class, or, if it is empty, everything that is read from the class."""
        attributes = () if attributes[:1] == ("__dict__",) else attributes
        if attributes:
            names: Iterable[str] = attributes[:1]
        elif id(cls) in self.seen:
            return
        else:
            self.seen[id(cls)] = cls
            self.guard_special_methods(cls)
            names = sorted(set(self._names_in_classes(cls)))
        for name in names:
            found = next((vars(c)[name] for c in _classes_of_lookup(cls) if name in vars(c)), NOTHING)
            if issubclass(cls, enum.Enum):
                found = cls.__members__.get(name, found)
            if found is NOTHING:
                self._guard_class_absence(cls, [name])
            elif not is_special(name) or name in _SPECIAL_DATA and name in self.literal:
                self._guard_class_attribute(cls, name, found)
        if not attributes:
            missing = [n for n in self.missing_names(()) if not any(n in vars(c) for c in lookup_classes(cls))]
            self._guard_class_absence(cls, missing)
            for base in filter(is_mutable_class, cls.__mro__[1:] if self._upwards else ()):
                self.guard_class(base)

    def _names_in_classes(self, cls: type) -> Iterator[str]:
        """Yields the names in a class, its bases and its metaclass that are read. Computed names are the user's."""
        for each in _classes_of_lookup(cls):
            names = self.names if is_user_class(each) else self.literal
            yield from (n for n in vars(each) if n in names)

    def guard_special_methods(self, cls: type, runs: bool = False) -> None:
        """Guards that the classes in the MRO get or lose no method that Python looks up implicitly.

        `runs` says whether instances run the rewritten forward.
        """
        for base in filter(is_mutable_class, cls.__mro__):
            if base not in self._classes_tested:
                self._classes_tested.add(base)
                self.parts.append(without_new_methods(base, runs and base is definer_of(cls)))

    def guard_machinery(self, cls: type, names: Iterable[str]) -> None:
        """Guards the methods of nn.Module that forward called, and those that they called."""
        here = {n for n in names if n not in ("forward", ENTRY) and hasattr(cls, n)}
        if here:
            self.parts.append(unreplaced_methods(cls, here))

    def _guard_descriptor(self, cls: type, name: str) -> None:
        """Guards a property, or another descriptor, that a class of the user's defines."""
        definer = next((c for c in cls.__mro__ if name in vars(c)), object)
        if is_user_class(definer):
            self._guard_class_attribute(cls, name, vars(definer)[name])

    def _guard_class_absence(self, cls: type, missing_names: list[str]) -> None:
        for base in filter(is_mutable_class, lookup_classes(cls) if missing_names else ()):
            if is_user_class(base):
                self.guard_absence(f"{self.guards.constant(base)}.__dict__", (), (), missing_names)
            else:
                self.parts.append(without_attributes(base, missing_names))

    def guard_lacking(self, cls: type, names: Collection[str]) -> None:
        """Guards that a class and its bases get no attribute of these names."""
        self._guard_class_absence(cls, sorted(names))

    def _guard_class_attribute(self, cls: type, name: str, found: Any) -> None:
        if name == "forward" and issubclass(cls, nn.Module):
            self._guard_function_attributes(own_forward(cls))
            self.parts.append(unreplaced_forwards([cls]))
            return
        text = f"{self.guards.constant(cls)}.{name}"
        in_library = all(name not in vars(c) for c in _classes_of_lookup(cls) if is_user_class(c))
        if not in_library:
            self.functions.remember(found)
        if isinstance(found, classmethod):
            self.guards.same(f"{text}.__func__", found.__func__)
        elif isinstance(found, (staticmethod, types.FunctionType)):
            function = getattr(found, "__func__", found)
            self.guards.same(text, function) if getattr(cls, name, None) is function else None
            self._guard_function_attributes(function) if isinstance(function, types.FunctionType) else None
        elif type(found) is types.MemberDescriptorType:
            return
        elif hasattr(type(found), "__get__"):
            self.guards.same(f"_inherited({self.guards.constant(cls)}, {name!r})", found)
            for part in () if in_library else _parts_of_descriptor(found):
                self.guard_content(part, name)
        else:
            self.guard(text, found, f"{cls.__name__}.{name}")

    def _guard_function(self, ran: Execution, others: list[Execution]) -> None:
        """Guards the function that ran: where it was found, its defaults, and what it closes over."""
        is_local = any(ran.code in nested(other.code) for other in others)
        function = self.functions.of(ran, everywhere=not is_local)
        if function is None:
            if ran.free and not is_local:
                self.refuse(because(forwards.RUNS_UNKNOWN, name=ran.code.co_name))
            return
        owner = self.functions.owner(ran)
        if owner is not None and ran is others[0] and owner[1] == "forward":
            self._guard_function_attributes(own_forward(owner[0]))  # a replaced forward no longer runs these guards
        elif owner is not None:
            self._guard_class_attribute(owner[0], owner[1], vars(owner[2])[owner[1]])
        if owner is not None and self._upwards:
            self._guard_super(ran, owner[1], owner[2])
        self._ran[id(function)] = function
        if function.__defaults__ or function.__kwdefaults__:
            self.guard_content(function.__defaults__, function.__name__)
            self.guard_content(function.__kwdefaults__, function.__name__)
        for cell, (name, value) in zip(function.__closure__ or (), closure_values(function), strict=False):
            contents = f"{self.guards.constant(cell)}.cell_contents"
            if isinstance(value, types.FunctionType) and own_function(value) is own_function(function):
                # A wrapper that looks for itself. Its cell holds the dispatcher while the class has one.
                self.guards.same(f"{self.guards.constant(own_function)}({contents})", own_function(value))
            elif name != "__class__" and not is_twin(value) and not isinstance(value, (Tensor, nn.Module)):
                self.guard(contents, value, name)

    def _guard_super(self, ran: Execution, name: str, definer: type) -> None:
        """Guards that `super` still finds `name` in `definer`, past the classes before it in the MRO."""
        cls = receiving_class(ran)
        before = cls.__mro__[: cls.__mro__.index(definer)] if definer in cls.__mro__ else ()
        if any(name in vars(base) for base in before):
            self.guards.same(f"{self.guards.constant(cls)}.__mro__", cls.__mro__)
            for base in (b for b in before if is_user_class(b) and name not in vars(b)):
                self.guard_absence(f"{self.guards.constant(base)}.__dict__", (), (), [name])

    # Guards of torch's and the process's state.

    def guard_torch_query(self, function: Callable[[], Any]) -> None:
        """Guards the answer of a function that returns torch's state and takes no arguments."""
        if "autocast" in getattr(function, "__name__", ""):
            self._guard_autocast_query(function)
            return
        try:
            answer = function()
        except TypeError:  # it takes arguments
            return
        except Exception as error:  # torch was built without that kind of device
            self.guards.same(f"{self.guards.constant(_error_of)}({self.guards.constant(function)})", type(error))
            return
        if is_plain(answer) or type(answer).__module__ == "torch":
            self.guards.alike(f"{self.guards.constant(function)}()", answer)

    def _guard_autocast_query(self, function: Callable[..., Any]) -> None:
        """Guards the answer about autocast for each device type for which it may have been called."""
        for arguments in ((), ("cpu",), ("cuda",)):
            try:
                answer = function(*arguments)
            except Exception:  # it takes another number of arguments, or does not support this device
                continue
            if is_plain(answer):
                self.guards.alike(f"{self.guards.constant(function)}{arguments!r}", answer)

    def guard_environment(self, key: object) -> None:
        """Guards an environment variable."""
        if not isinstance(key, str):
            self.refuse(because(forwards.READS_STATE, name="os.environ", kind="mapping"))
            return
        self.guards.alike(f"{self.guards.constant(os.environ.get)}({key!r})", os.environ.get(key))

    def guard_context_variable(self, variable: contextvars.ContextVar[Any]) -> None:
        """Guards a context variable."""
        text = f"{self.guards.constant(variable.get)}({self.guards.constant(NOTHING)})"
        self.guard(text, variable.get(NOTHING), variable.name)

    def guard_idle_variable(self, variable: contextvars.ContextVar[Any]) -> None:
        """Guards that no outputs are requested in a context variable in which a library collects outputs."""
        self.guards.add(f"not {self.guards.constant(variable.get)}()")


def _classes_of_lookup(cls: type) -> list[type]:
    """Returns the classes in which an attribute of a class can be added or replaced."""
    return [c for c in lookup_classes(cls) if is_mutable_class(c)]


def _parts_of_descriptor(found: Any) -> tuple[Any, ...]:
    """Returns what a descriptor calls: the functions of a property, or the descriptor itself."""
    if isinstance(found, _FIELDS):
        return ()
    if isinstance(found, property):
        return found.fget, found.fset, found.fdel
    return (found.func,) if isinstance(found, functools.cached_property) else (found,)


def _error_of(function: Callable[[], Any]) -> type[Exception] | None:
    """The class of the error that a function raises."""
    try:
        function()
    except Exception as error:
        return type(error)
    return None
