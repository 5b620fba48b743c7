"""Modules that differ only in the numbers in their parameters, so that one plan serves all of them.

Two equal modules have the same class, the same children, no hooks, the same attributes, tensors of the same shape and
dtype, the same tensors that occur twice, and the same numbers in buffers. A value that is neither plain nor a container
of plain values is compared by identity. An object among the arguments is compared by its class only, because each layer
gets the same cache in another state. If this file does not understand something, a module is equal to no other. This
file does not depend on plans.
"""

from __future__ import annotations

import enum
import functools
import gc
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace.contents import is_mutable
from autofuse.fx.trace.twin import original_class
from autofuse.torch_private import FakeTensor

_SCALARS: tuple[Any, ...] = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.Size,
    range,
    slice,
)
_MAX_ELEMENTS = 2**24  # elements of a buffer whose numbers are read
_OPERATIONS = ("autofuse.ops.", "autofuse.kernels.")
_DEPTH = 6  # of nested containers
_MOST_PARTS = 10_000  # objects to which the constant of a guard may lead
_ABSTRACT: Any = type(vars(Hashable)["_abc_impl"])  # what an abstract class knows about classes
_NEVER_OWN: tuple[Any, ...] = (*_SCALARS, type, types.ModuleType, types.CodeType, _ABSTRACT)
# Values among the arguments that are compared by identity.
_NAMED_OBJECTS = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, functools.partial, enum.Enum)
# Garbage collection does not see all that runs in a frame.
_ALWAYS_OWN: tuple[Any, ...] = (
    nn.Module,
    Tensor,
    *weakref.ProxyTypes,
    types.FrameType,
    types.GeneratorType,
)


class _NotComparable(Exception):
    """The module counts as equal to no other."""


class Structure:
    """The structure of a module and its call.

    A plan for one module fits another if both keys are equal and not None, and if no trace of the first module depended
    on an integer or an object in which they differ (session/equal_layers.py).

    Attributes:
        key: equal for modules that are equal apart from `integers` and from the objects among the arguments; None if
            the module counts as equal to no other.
        integers: plain integers that modules of user classes hold, by the module's place and the attribute's name.
        objects: the ids of the objects among the arguments.
        paths: the names of the modules below this one.
    """

    def __init__(self, module: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], once: frozenset[int]) -> None:
        """Compute the structure.

        Args:
            module: the module.
            call: its arguments.
            once: the ids of the parameters and buffers that belong to only one module of the model.
        """
        self._held_once = once
        self._call = call  # keeps the numbered objects alive, so that their ids are not used again
        self._numbers: dict[int, int] = {}
        self.paths: dict[nn.Module, str] = {}
        self.integers: dict[tuple[str, str], int] = {}
        self.objects: list[int] = []
        self.key: Hashable = None
        try:
            self.key = self._module(module, ""), self._value(call, _DEPTH, contents=False)
        except (_NotComparable, RecursionError, RuntimeError, TypeError):
            self.key = None

    @property
    def strict_key(self) -> Hashable:
        """Equal for modules that have equal integers and the same objects, too; None if `key` is None."""
        return None if self.key is None else (self.key, tuple(self.integers.items()), tuple(self.objects))

    def differing_integers(self, other: Structure) -> set[tuple[str, str]]:
        """The integers in which two structures with equal keys differ."""
        return {place for place, n in self.integers.items() if other.integers.get(place) != n}

    def may_own(self, value: object) -> bool:
        """Whether `value` may refer to a part of this module: to any module or tensor, or to a container that it holds.

        Other objects that equal modules hold are the same objects. What code, classes and autofuse's operations refer
        to is no part of a module.
        """
        todo, seen = [value], dict[int, object]()
        while todo:
            part = todo.pop()
            if id(part) in seen or isinstance(part, _NEVER_OWN) or _is_operation(part) or _is_module_dict(part):
                continue
            if len(seen) >= _MOST_PARTS or isinstance(part, _ALWAYS_OWN) or id(part) in self.ids:
                return True
            seen[id(part)] = part
            todo += _parts_of(part)
        return False

    @cached_property
    def ids(self) -> frozenset[int]:
        """The ids of the modules, of their tables, and of the containers that were compared by their contents."""
        tables = (t for m in self.paths for t in (vars(m), m._modules, m._parameters, m._buffers))
        return frozenset((*self._numbers, *map(id, tables)))

    def _number(self, value: object) -> int:
        return self._numbers.setdefault(id(value), len(self._numbers))

    def _is_new(self, value: object) -> bool:
        known = id(value) in self._numbers
        self._number(value)
        return not known

    def _module(self, module: nn.Module, path: str) -> Hashable:
        if not self._is_new(module):
            return "again", self._number(module)
        self.paths[module] = path
        inside = vars(module)
        parts: list[Any] = [type(module), module.training]
        is_users = _is_user_class(type(module))
        for name, value in inside.items():
            if "hook" in name:
                if value:
                    raise _NotComparable
                parts.append((name, type(value), repr(value)))
            elif name == "_modules":
                parts += [
                    (n, None if m is None else self._module(m, f"{path}.{n}".lstrip("."))) for n, m in value.items()
                ]
            elif name in ("_parameters", "_buffers"):
                contents = name == "_buffers"
                parts += [(n, None if t is None else self._own_tensor(t, contents)) for n, t in value.items()]
            elif isinstance(value, types.MethodType) or name == "forward":
                raise _NotComparable
            elif type(value) is int and is_users:
                self.integers[path, name] = value
                parts.append((name, int))
            else:
                parts.append((name, self._value(value, _DEPTH, contents=True)))
        return tuple(parts)

    def _own_tensor(self, x: Tensor, contents: bool) -> Hashable:
        if id(x) not in self._held_once:
            raise _NotComparable
        return self._tensor(x, contents)

    def _tensor(self, x: Tensor, contents: bool) -> Hashable:
        if type(x) not in (Tensor, nn.Parameter, nn.Buffer, FakeTensor) or x.layout is not torch.strided:
            raise _NotComparable
        if x._backward_hooks or vars(x) and type(x) is not FakeTensor:
            raise _NotComparable
        # The number of the storage shows which tensors share memory.
        storage = x.untyped_storage()._cdata
        self._numbers.setdefault(storage, len(self._numbers))
        form = (
            type(x), tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, x.device, x.requires_grad, x.is_leaf,
            x.is_conj(), x.is_neg(), x.is_inference(), self._number(x), self._numbers[storage],
        )  # fmt: skip
        return (*form, _digest(x)) if contents else form

    def _value(self, value: Any, depth: int, contents: bool) -> Hashable:
        if depth == 0 or isinstance(value, types.MethodType):
            raise _NotComparable
        if isinstance(value, _SCALARS):
            return type(value), repr(value)
        if isinstance(value, Tensor):
            return self._tensor(value, contents)
        if isinstance(value, nn.Module):  # a module outside of `_modules`
            raise _NotComparable
        if type(value) in (list, tuple, dict, set, frozenset, OrderedDict):
            if not self._is_new(value):
                return "again", self._number(value)
            if type(value) in (dict, OrderedDict):
                # A list keeps the numbered objects alive, so that their ids are not used again.
                items: Iterable[Any] = [part for item in value.items() for part in item]
            else:
                items = value if type(value) in (list, tuple) else sorted(map(repr, value))
                if type(value) in (set, frozenset) and not all(isinstance(v, _SCALARS) for v in value):
                    raise _NotComparable
            return type(value), tuple(self._value(v, depth - 1, contents) for v in items)
        if contents or isinstance(value, _NAMED_OBJECTS) or is_mutable(value):
            return "the same", id(value)
        self.objects.append(id(value))
        return "an object", original_class(type(value)), self._number(value)


def _is_user_class(cls: type[nn.Module]) -> bool:
    """Whether no module class of torch but nn.Module takes part in a class: others are read without a trace."""
    return not any(c is not nn.Module and (c.__module__ or "").partition(".")[0] == "torch" for c in cls.__mro__)


def tensors_held_once(models: Iterable[nn.Module]) -> frozenset[int]:
    """The ids of the parameters and buffers that only one module below these holds."""
    counts: dict[int, int] = {}
    for module in {m for model in models for m in model.modules()}:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                counts[id(tensor)] = counts.get(id(tensor), 0) + 1
    return frozenset(key for key, count in counts.items() if count == 1)


def _is_module_dict(value: object) -> bool:
    """Whether a value is the namespace of an imported module."""
    name = value.get("__name__") if type(value) is dict else None
    return isinstance(name, str) and vars(sys.modules.get(name, types)) is value


def _is_operation(value: object) -> bool:
    """Whether a value is a function that autofuse's operations or kernels define. These never hold modules."""
    if not isinstance(value, types.FunctionType) or not (value.__module__ or "").startswith(_OPERATIONS):
        return False
    return vars(sys.modules.get(value.__module__, types)) is value.__globals__


def _digest(x: Tensor) -> Hashable:
    """A digest of the numbers.

    Raises:
        _NotComparable: the tensor is too large, or its numbers cannot be read cheaply.
    """
    if x.numel() > _MAX_ELEMENTS or x.is_meta or type(x) is FakeTensor or x.device.type != "cpu":
        raise _NotComparable
    plain = x.detach().resolve_conj().resolve_neg().flatten()
    if not plain.numel():
        return b""
    # A copy: autofuse/fx/install/mask_contents.py cannot observe memory that numpy has seen.
    own = plain.clone()
    return sha256(own.view(torch.uint8).numpy().tobytes()).digest()


def _parts_of(value: object) -> list[object]:
    """The objects that a value refers to. A function refers to what it was made with, not to its globals."""
    if isinstance(value, types.FunctionType):
        return [*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, types.BuiltinFunctionType):
        return [value.__self__]
    if isinstance(value, weakref.ReferenceType):
        return [value()]
    return gc.get_referents(value)
