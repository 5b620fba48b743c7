"""Modules that differ only in the numbers in their parameters, so that one plan serves all of them.

Two equal modules have the same class, the same children, no hooks, the same attributes, tensors of the same shape and
dtype, the same tensors that occur twice, and the same numbers in buffers. A value that is neither plain nor a container
of plain values is compared by identity. If this file does not understand something, a module is equal to no other. This
file does not depend on plans.
"""

from __future__ import annotations

import sys
import types
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.torch_private import FakeTensor

_SCALARS = (
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


class _NotComparable(Exception):
    """The module counts as equal to no other."""


class Structure:
    """The structure of a module and its call. If two keys are equal and not None, a plan for one module fits the other.

    Attributes:
        key: equal for equal modules; None if the module counts as equal to no other.
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
        self._numbers: dict[int, int] = {}
        self.paths: dict[nn.Module, str] = {}
        self.key: Hashable = None
        try:
            self.key = self._module(module, ""), self._value(call, _DEPTH, contents=False)
        except (_NotComparable, RecursionError, RuntimeError, TypeError):
            self.key = None

    def may_own(self, value: object, depth: int = 3) -> bool:
        """Whether `value` may refer to a part of this module: anything but code, classes and plain values.

        An operation of autofuse may hold objects, but no part of a user's module.
        """
        if isinstance(value, (*_SCALARS, type, types.ModuleType, types.BuiltinFunctionType)):
            return False
        if _is_operation(value):
            return False
        if isinstance(value, types.FunctionType) and depth:
            values = [c.cell_contents for c in value.__closure__ or () if _is_filled(c)]
            values += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            return any(self.may_own(part, depth - 1) for v in values for part in (v if type(v) is tuple else (v,)))
        return not _is_module_dict(value)

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
        return "the same", id(value)


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


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
