"""Whether the user's code can run on stand-ins without side effects. The code itself decides this, before it runs.

A callback that prints, appends to a list in its closure, or draws a random number must run on the real tensors only.
Code is harmless if everything that it names is a constant, a harmless function, or torch. It may change the objects
that are passed to it. If the code does not show this, it is not harmless. This file knows Python's code objects and
runs
nothing.
"""

from __future__ import annotations

import builtins
import collections
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace.contents import is_mutable, slots_of, state_of
from autofuse.fx.trace.foreign_objects import is_unusable
from autofuse.fx.trace.source_lines import is_user_file
from autofuse.fx.trace.twin import SCALARS, original_class

_MODULES = frozenset("torch math operator functools itertools collections typing dataclasses enum einops copy".split())
_SETTERS = frozenset(
    "manual_seed seed save load set_rng_state set_default_dtype set_default_device set_num_threads backward "
    "use_deterministic_algorithms register_hook initial_seed".split()
)
_BUILTINS = frozenset(
    """
    abs all any bool bytes callable chr complex dict divmod enumerate filter float frozenset getattr hasattr hash
    id int isinstance issubclass iter len list map max min next object ord pow property range repr reversed round set
    slice sorted staticmethod classmethod str sum super tuple type zip NotImplemented Ellipsis __debug__
""".split()
)
_WRITES_NAMES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "STORE_NAME", "DELETE_NAME"})
_WRITES_OBJECTS = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR"})
_IGNORED_METHODS = frozenset(
    "__repr__ __str__ __format__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __del__".split()
)
_MODULES_WITH_EFFECTS = frozenset(
    "io threading logging random subprocess socket queue multiprocessing weakref ctypes".split()
)
_METHODS = (types.FunctionType, property, staticmethod, classmethod)
_LIBRARIES = ("site-packages", "dist-packages")


def is_harmless(function: Any) -> bool:
    """Whether a function can run on stand-ins and changes nothing, not even its arguments."""
    return _EffectSearch(False, ()).function(function)


def is_harmless_method(owner: Any, name: str, changes: bool = True) -> bool:
    """Whether a method can run on a copy of its object.

    Args:
        owner: the object.
        name: the name of the method.
        changes: whether the method may change the object.
    """
    search = _EffectSearch(changes, classes_in(owner))
    method = inspect.getattr_static(original_class(type(owner)), name, None)
    return method is None or search.function(method)


def harmful_methods(cls: type, classes: tuple[type, ...]) -> tuple[str, ...]:
    """The methods of a class that may do more than change their object.

    Args:
        cls: the class.
        classes: the user's classes of the objects that such an object refers to.
    """
    found = {
        n: v for c in reversed(cls.__mro__) if is_user_class(c) for n, v in vars(c).items() if n not in _IGNORED_METHODS
    }
    return tuple(
        n for n, v in found.items() if isinstance(v, _METHODS) and not _EffectSearch(True, classes).function(v)
    )


def classes_in(value: Any) -> tuple[type, ...]:
    """The user's classes of an object and of everything that it refers to."""
    kinds = dict.fromkeys(
        original_class(type(v)) for v in _reachable_objects(value) if not isinstance(v, (Tensor, nn.Module))
    )
    return tuple(k for k in kinds if is_user_class(k))


def is_user_class(cls: type) -> bool:
    """Whether a class is defined in the user's own program."""
    top = cls.__module__.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__" or top in ("torch", "numpy", "autofuse"):
        return False
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return not any(place in file for place in _LIBRARIES)


def _reachable_objects(value: Any) -> Iterator[Any]:
    todo, seen = [value], dict[int, Any]()
    while todo:
        v = todo.pop()
        if is_unusable(v) or isinstance(v, SCALARS) or id(v) in seen:
            continue
        seen[id(v)] = v
        yield v
        if isinstance(v, tuple):
            todo += v
        elif isinstance(v, (Tensor, nn.Module, type, types.FunctionType, types.ModuleType)):
            continue
        else:
            state = state_of(v)
            todo += [*state.values(), *(state.items or ())]
            todo += [v.default_factory] if isinstance(v, collections.defaultdict) else []


def is_copied(value: Any) -> bool:
    """Whether a value itself, without its contents, can be copied or never changes."""
    if isinstance(value, (Tensor, nn.Module, type, tuple, frozenset)) or is_mutable(value):
        return True
    if callable(value) and isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return is_harmless(value)
    cls = original_class(type(value))
    if cls.__module__ == "numpy" or cls is object or cls is torch.Generator:
        return cls.__name__ != "memmap" and "random" not in cls.__module__
    top = cls.__module__.partition(".")[0]
    if top in sys.stdlib_module_names and top not in ("__main__", "types", "collections"):
        return False  # for example files, locks, loggers and iterators
    plain = not isinstance(cls.__new__, types.FunctionType)
    return (hasattr(value, "__dict__") or bool(slots_of(cls))) and plain


@dataclass
class _EffectSearch:
    """One search through code and what it calls.

    Attributes:
        changes: whether the code may change its arguments.
        classes: classes of the objects whose methods the code may call.
    """

    changes: bool
    classes: tuple[type, ...]
    _seen: set[int] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)

    def function(self, value: Any) -> bool:
        """Whether a function, a method, a property or a class is harmless."""
        if id(value) in self._seen:
            return True
        self._seen.add(id(value))
        if isinstance(value, property):
            return all(f is None or self.function(f) for f in (value.fget, value.fset))
        if isinstance(value, (staticmethod, classmethod, types.MethodType)):
            bound = getattr(value, "__self__", None)
            is_bound_to_class = bound is None or isinstance(bound, (type, nn.Module))
            return is_bound_to_class and self.function(value.__func__)
        if isinstance(value, functools.partial):
            return self.function(value.func) and all(
                map(self._is_safe_constant, (*value.args, *value.keywords.values()))
            )
        if isinstance(value, type):
            return self._is_harmless_class(value)
        if isinstance(value, types.FunctionType):
            return self._is_harmless_code(value)
        return _is_harmless_builtin(value)

    def _is_harmless_class(self, cls: type) -> bool:
        """Whether code may construct an object of a class and use operators on it."""
        if issubclass(cls, BaseException) or not is_user_class(cls):
            top = cls.__module__.partition(".")[0]
            return cls.__name__ in _BUILTINS if top == "builtins" else top not in _MODULES_WITH_EFFECTS
        self.classes = (*self.classes, cls)
        # Operators and statements call the special methods without naming them.
        names = {*self._names, *(n for n in dir(cls) if n[:2] == "__" and n not in _IGNORED_METHODS)}
        return all(self._is_harmless_in(cls, n) for n in names)

    def _is_harmless_code(self, function: types.FunctionType) -> bool:
        code = function.__code__
        if not is_user_file(code.co_filename) or any(place in code.co_filename for place in _LIBRARIES):
            return True
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        if not all(map(self._is_safe_constant, defaults)):
            return False
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        scope = {**vars(builtins), **function.__globals__}
        return all(
            self._is_harmless_instruction(i, code, scope, cells)
            for c in _nested_code(code)
            for i in dis.get_instructions(c)
        )

    def _is_harmless_instruction(
        self, step: dis.Instruction, code: types.CodeType, scope: dict[str, Any], cells: dict[str, types.CellType]
    ) -> bool:
        if step.opname in _WRITES_NAMES or step.opname in _WRITES_OBJECTS and not self.changes:
            return False
        if step.opname in ("STORE_DEREF", "DELETE_DEREF"):
            return step.argval not in code.co_freevars
        if step.opname == "LOAD_GLOBAL":
            return step.argval in scope and self._is_safe_global(step.argval, scope[step.argval])
        if step.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF") and step.argval in cells:
            return self._is_safe_cell(cells[step.argval])
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            return step.argval not in _SETTERS and self._is_harmless_attribute(step.argval)
        return True

    def _is_harmless_attribute(self, name: str) -> bool:
        """Whether an attribute is harmless in each of the known classes."""
        self._names.add(name)
        return all(self._is_harmless_in(c, name) for c in self.classes)

    def _is_harmless_in(self, cls: type, name: str) -> bool:
        found = inspect.getattr_static(cls, name, None)
        return not isinstance(found, _METHODS) or self.function(found)

    def _is_safe_global(self, name: str, value: Any) -> bool:
        if getattr(builtins, name, self) is value:
            return name in _BUILTINS or isinstance(value, type) and issubclass(value, BaseException)
        return self._is_safe_constant(value)

    def _is_safe_cell(self, cell: types.CellType) -> bool:
        try:
            return self._is_safe_constant(cell.cell_contents)
        except ValueError:  # the variable is not bound yet
            return False

    def _is_safe_constant(self, value: Any) -> bool:
        """Whether code that names a value cannot change it and a call of it has no side effect."""
        if isinstance(value, SCALARS) or type(value) is object:
            return True
        if isinstance(value, (tuple, frozenset)):
            return all(map(self._is_safe_constant, value))
        if isinstance(value, types.ModuleType):
            return value.__name__.partition(".")[0] in _MODULES
        code = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, type)
        return isinstance(value, code) and self.function(value)


def _nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested_code(constant)


def _is_harmless_builtin(value: Callable[..., Any]) -> bool:
    """Whether a function written in C belongs to torch or Python and changes nothing but its arguments."""
    bound = getattr(value, "__self__", None)
    if bound is not None and not isinstance(bound, (types.ModuleType, type)):
        return False  # a bound method such as `seen.append`
    name, module = getattr(value, "__name__", ""), str(getattr(value, "__module__", None) or "")
    if module == "builtins":
        return name in _BUILTINS
    return module.partition(".")[0] in ("torch", "math", "_operator", "operator", "") and name not in _SETTERS
