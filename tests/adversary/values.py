"""Snapshots of what a program holds, as plain data. They can be compared after the program has continued."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import io
import itertools
import operator
import random
import threading
import types
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autofuse.fx.lazy.head import forward as lazy_forward
from autofuse.fx.lazy.tensor import LazyLogits
from autofuse.fx.trace.own_forward import original_of

_SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_OF_MODULES = ("_parameters", "_buffers", "_modules")


@dataclasses.dataclass(frozen=True, eq=False)
class Numbers:
    """A tensor or an array at one moment."""

    values: Tensor
    kind: str  # type, dtype, shape, and whether it is a leaf or has a gradient function


def plain(value: Any, own: str, seen: dict[int, Any] | None = None) -> Any:
    """A snapshot of a value, as numbers and text. own: the module whose classes and functions are read too."""
    seen = {} if seen is None else seen
    if type(value) in weakref.ProxyTypes:
        return "a weak proxy"  # any question about it reads its object, which may be gone
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, _SIMPLE):
        return value if type(value) in _SIMPLE else f"{type(value).__name__} {value!r}"
    if type(value).__module__.startswith("autofuse") and not isinstance(value, LazyLogits):
        return f"{type(value).__name__}, of autofuse"
    if id(value) in seen and not (type(value) is tuple and not value):
        return f"the object {seen[id(value)][0]}"
    seen[id(value)] = len(seen), value  # kept, so that no other object gets its id
    kept = _numbers(value)
    if kept is not None:
        lazy = isinstance(value, LazyLogits)
        marks = {n: v for n, v in getattr(value, "__dict__", {}).items() if not n.startswith("_dynamo_")}  # torch's own
        return (kept, _plain_parts(marks, own, seen)) if marks and not lazy else kept
    return _structure(value, own, seen)


def _numbers(value: Any) -> Numbers | None:
    if isinstance(value, Tensor):
        grad = "" if not value.requires_grad else ", a leaf" if value.is_leaf else ", with a gradient"
        with torch.no_grad():
            kind = "Tensor" if type(value) in (Tensor, LazyLogits) else type(value).__name__  # logits: docs/limits.md
            return Numbers(_copy(value), f"{kind} {value.dtype} {tuple(value.shape)}{grad}")
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiub":
        copied = np.array(value)
        return Numbers(torch.from_numpy(np.atleast_1d(copied).copy()), f"array {value.dtype} {value.shape}")
    return None


def _copy(value: Tensor) -> Tensor:
    try:
        return value.detach().clone() if isinstance(value, LazyLogits) else value.detach().as_subclass(Tensor).clone()
    except Exception as error:  # for example a leaked fake tensor, which its kind shows
        return torch.tensor(float(len(str(type(error)))))


def _structure(value: Any, own: str, seen: dict[int, Any]) -> Any:
    if isinstance(value, nn.Module):
        return _of_module(value, own, seen)
    if isinstance(value, weakref.WeakKeyDictionary):
        return type(value).__name__  # a cache of a library, such as that of functools.singledispatch
    if isinstance(value, weakref.WeakSet | weakref.WeakValueDictionary):
        return (type(value).__name__, len(value))
    if isinstance(value, Mapping):
        inside = [(plain(k, own, seen), plain(v, own, seen)) for k, v in value.items()]
        return (type(value).__name__, inside, _plain_parts(getattr(value, "__dict__", {}), own, seen))
    if isinstance(value, list | tuple | collections.deque):
        return (type(value).__name__, [plain(v, own, seen) for v in value])
    if isinstance(value, set | frozenset):
        return (type(value).__name__, sorted(map(str, value)))
    if isinstance(value, type):
        return _of_class(value, own, seen)
    if isinstance(value, types.FunctionType):
        return _of_function(value, own, seen)
    if isinstance(value, types.MethodType):
        return ("method", value.__func__.__qualname__, plain(value.__self__, own, seen))
    return _of_object(value, own, seen)


def _of_module(value: nn.Module, own: str, seen: dict[int, Any]) -> Any:
    names = [n for n in vars(value) if n in _OF_MODULES or not n.startswith("_")]
    if getattr(vars(value).get("forward"), "__func__", None) is lazy_forward:
        names.remove("forward")
    hooks = (len(value._forward_hooks), len(value._forward_pre_hooks), len(value._backward_hooks))
    return (type(value).__name__, hooks, _plain_parts({n: vars(value)[n] for n in names}, own, seen))


def _of_class(value: type, own: str, seen: dict[int, Any]) -> Any:
    if value.__module__ != own:
        return f"class {value.__qualname__}"
    data = {k: v for k, v in vars(value).items() if not k.startswith(("__", "_autofuse")) and k != "_abc_impl"}
    return (f"class {value.__qualname__}", _plain_parts(data, own, seen))


def _of_function(value: types.FunctionType, own: str, seen: dict[int, Any]) -> Any:
    """What a function holds. A replacement by autofuse has the same snapshot as its original."""
    if value.__module__ != own:
        return f"function {value.__qualname__}"
    names = value.__code__.co_freevars
    cells = [_cell(c) for _, c in zip(names, value.__closure__ or (), strict=True)]
    attributes = dict(vars(value))
    options = {n: v for n, v in (value.__kwdefaults__ or {}).items() if not n.startswith("_autofuse")}
    if (stood_for := original_of(value)) is not None:
        original = vars(stood_for)
        attributes = {k: v for k, v in attributes.items() if k != "__wrapped__" or "__wrapped__" in original}
        attributes |= {k: v for k, v in original.items() if k == "__wrapped__"}
    parts = (value.__defaults__, options or None, dict(sorted(attributes.items())), cells)
    return (f"function {value.__qualname__}", [plain(p, own, seen) for p in parts])


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _of_object(value: Any, own: str, seen: dict[int, Any]) -> Any:
    name = type(value).__name__
    match value:
        case types.ModuleType():
            inside = vars(value) if value.__name__.startswith("adversary") else {}
            return (name, value.__name__, _plain_parts(_data(inside), own, seen))
        case random.Random():
            return (name, hash(value.getstate()))
        case np.random.Generator():
            return (name, str(value.bit_generator.state))
        case torch.Generator():
            return (name, hash(value.get_state().numpy().tobytes()))
        case weakref.ref():
            return (name, plain(value(), own, seen))
        case contextvars.ContextVar():
            return (name, plain(value.get(None), own, seen))
        case io.StringIO() | io.BytesIO():
            return (name, value.closed or value.getvalue())
        case itertools.count():
            return str(value)
        case types.GeneratorType():
            frame = value.gi_frame
            return (name, frame and frame.f_lineno, plain(dict(frame.f_locals) if frame else {}, own, seen))
        case _ if type(value).__module__ == "builtins" and hasattr(value, "__length_hint__"):
            return (name, operator.length_hint(value))
    return (name, _plain_parts(_attributes(value), own, seen))


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, from its dict and from the slots of its classes."""
    if isinstance(value, threading.Thread) or type(value).__module__ in ("logging", "_thread", "queue", "_io"):
        return {}
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__"):
                with_value = getattr(value, slot, None)
                found[slot] = with_value
    return found


def _data(namespace: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in namespace.items() if not k.startswith("__") and not isinstance(v, types.ModuleType)}


def _plain_parts(parts: Mapping[str, Any], own: str, seen: dict[int, Any]) -> dict[str, Any]:
    return {
        str(k): plain(v, own, seen) for k, v in parts.items() if k != "_hidden"
    }  # `_hidden` differs from run to run


def of_namespace(module: types.ModuleType) -> Any:
    """A snapshot of a program's module: its data, its classes and functions, and the modules that it added."""
    inside = {k: v for k, v in vars(module).items() if not k.startswith(("__", "autofuse_"))}
    own = {k: v for k, v in inside.items() if _is_own(v, module.__name__)}
    return _plain_parts(own, module.__name__, {})


def _is_own(value: Any, module: str) -> bool:
    kind = type(value)  # isinstance would ask a proxy for the class of an object that may be gone
    if issubclass(kind, types.ModuleType):
        return value.__name__.startswith("adversary")
    if issubclass(kind, (type, types.FunctionType, types.BuiltinFunctionType)):
        return getattr(value, "__module__", "") == module
    return True
