"""Modules that are equal in everything but the numbers in their parameters, so that one plan serves all of them.

Equal are class, children, hooks (none), attributes, the form of each tensor, which tensors are one, and what buffers
hold. What is neither a plain value nor a container of such is compared by identity. Where anything is not understood,
a module is equal to none. Knows modules and calls; must not know what is planned for them.
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

_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, range, slice)
_LARGEST = 2**24  # elements of a buffer of which the contents are read
_DEPTH = 6  # of containers in containers


class _Alone(Exception):
    """A module that is taken for equal to none."""


class Structure:
    """What a module and its call are like. Equal `key`s, and there is one: a plan for one is a plan for the other."""

    def __init__(self, module: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], once: frozenset[int]) -> None:
        """`once`: the ids of the parameters and buffers that belong to one module of the model only."""
        self._once = once
        self._numbers: dict[int, int] = {}
        self.paths: dict[nn.Module, str] = {}
        self.key: Hashable = None
        try:
            self.key = self._module(module, ""), self._value(call, _DEPTH, contents=False)
        except (_Alone, RecursionError, RuntimeError, TypeError):
            self.key = None

    def may_own(self, value: object, depth: int = 3) -> bool:
        """Whether `value` could lead to something of this very module: all but code, classes and plain values."""
        if isinstance(value, (*_SCALARS, type, types.ModuleType, types.BuiltinFunctionType)):
            return False
        if isinstance(value, types.FunctionType) and depth:
            held = [c.cell_contents for c in value.__closure__ or () if _is_filled(c)]
            held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            return any(self.may_own(part, depth - 1) for v in held for part in (v if type(v) is tuple else (v,)))
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
                    raise _Alone
                parts.append((name, type(value), repr(value)))
            elif name == "_modules":
                parts += [
                    (n, None if m is None else self._module(m, f"{path}.{n}".lstrip("."))) for n, m in value.items()
                ]
            elif name in ("_parameters", "_buffers"):
                contents = name == "_buffers"
                parts += [(n, None if t is None else self._held(t, contents)) for n, t in value.items()]
            elif isinstance(value, types.MethodType) or name == "forward":
                raise _Alone
            else:
                parts.append((name, self._value(value, _DEPTH, contents=True)))
        return tuple(parts)

    def _held(self, x: Tensor, contents: bool) -> Hashable:
        if id(x) not in self._once:
            raise _Alone
        return self._tensor(x, contents)

    def _tensor(self, x: Tensor, contents: bool) -> Hashable:
        if type(x) not in (Tensor, nn.Parameter, nn.Buffer, FakeTensor) or x.layout is not torch.strided:
            raise _Alone
        if x._backward_hooks or vars(x) and type(x) is not FakeTensor:
            raise _Alone
        storage = x.untyped_storage()._cdata
        self._numbers.setdefault(storage, len(self._numbers))
        about = (
            type(x), tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, x.device, x.requires_grad, x.is_leaf,
            x.is_conj(), x.is_neg(), x.is_inference(), self._number(x), self._numbers[storage],
        )  # fmt: skip
        return (*about, _contents(x)) if contents else about

    def _value(self, value: Any, depth: int, contents: bool) -> Hashable:
        if depth == 0 or isinstance(value, types.MethodType):
            raise _Alone
        if isinstance(value, _SCALARS):
            return type(value), repr(value)
        if isinstance(value, Tensor):
            return self._tensor(value, contents)
        if isinstance(value, nn.Module):  # beside the tables of modules
            raise _Alone
        if type(value) in (list, tuple, dict, set, frozenset, OrderedDict):
            if not self._is_new(value):
                return "again", self._number(value)
            if type(value) in (dict, OrderedDict):
                items: Iterable[Any] = [
                    part for item in value.items() for part in item
                ]  # numbered objects must live on
            else:
                items = value if type(value) in (list, tuple) else sorted(map(repr, value))
                if type(value) in (set, frozenset) and not all(isinstance(v, _SCALARS) for v in value):
                    raise _Alone
            return type(value), tuple(self._value(v, depth - 1, contents) for v in items)
        return "the same", id(value)


def held_once(models: Iterable[nn.Module]) -> frozenset[int]:
    """The ids of parameters and buffers that only one module below these holds."""
    found: dict[int, int] = {}
    for module in {m for model in models for m in model.modules()}:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                found[id(tensor)] = found.get(id(tensor), 0) + 1
    return frozenset(key for key, count in found.items() if count == 1)


def _is_module_dict(value: object) -> bool:
    """Whether it is the namespace of an imported module."""
    name = value.get("__name__") if type(value) is dict else None
    return isinstance(name, str) and vars(sys.modules.get(name, types)) is value


def _contents(x: Tensor) -> Hashable:
    """A digest of the numbers. Raises _Alone where there are too many."""
    if x.numel() > _LARGEST or x.is_meta or type(x) is FakeTensor or x.device.type != "cpu":
        raise _Alone
    plain = x.detach().resolve_conj().resolve_neg().flatten()
    if not plain.numel():
        return b""
    own = plain.clone()  # memory that numpy was given cannot be watched any more (autofuse/fx/install/mask_contents.py)
    return sha256(own.view(torch.uint8).numpy().tobytes()).digest()


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
