"""Stores timings of sites and steps on disk, so that a later process does not measure them again.

An entry belongs to a machine, its number of threads, and versions (kernels/decisions.py). Its key covers everything
that a time depends on: the code before and after, the shapes, strides and dtypes of inputs and parameters, the mode and
the settings. Sites that call user code, and noisy results, are not stored.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from hashlib import sha256
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from autofuse.fx.rewrite.excerpt import Excerpt
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.twin import plain_class
from autofuse.kernels.cache import KEPT, Cache
from autofuse.kernels.decisions import hardware, versions
from autofuse.kernels.policy import settings
from autofuse.torch_private import pytree

_T = TypeVar("_T")
_OF_TORCH = ("torch", "autofuse", "operator", "_operator", "math", "builtins")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_loaded: dict[object, dict[str, Any]] = {}  # by the path of the cache file


class _Indescribable(Exception):
    """A value that a time may depend on has no stable description."""


def site_key(excerpt: Excerpt, module: nn.Module, training: bool) -> str:
    """The key of a site; "" if its timing is not stored."""
    try:
        parts = [
            *(_graph_text(graph) for graph in (excerpt.before, excerpt.after)),
            *(_describe(value) for value in excerpt.example_inputs),
            *_parameters(excerpt, module),
            excerpt.operation, excerpt.kernel, f"{training}", _settings_text(),
        ]  # fmt: skip
    except _Indescribable:
        return ""
    return sha256("\n".join(parts).encode()).hexdigest()


def step_key(model: nn.Module, given: object, forwards: Iterable[str], training: bool) -> str:
    """The key of a whole step; "" if its timing is not stored.

    Args:
        model: The model.
        given: The arguments of the call.
        forwards: The code of each rewritten forward, with the name of its module.
        training: Whether it is a training step.
    """
    try:
        values = [_describe(leaf) for leaf in pytree.tree_leaves(given)]
        parts = ["step", _describe(model), *values, *forwards, f"{training}", _settings_text()]
    except _Indescribable:
        return ""
    return sha256("\n".join(parts).encode()).hexdigest()


def load(key: str, device: torch.device, kind: Callable[..., _T]) -> _T | None:
    """The stored entry for a key as a dataclass `kind` with plain fields; None if there is no usable entry."""
    entry = _entries(_cache(device)).get(key) if key and settings().measured else None
    if not isinstance(entry, Mapping):
        return None
    # The file may be damaged, or written by a version with other fields.
    names = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    alike = all(n in names and type(v) is type(names[n].default) for n, v in entry.items())
    return kind(**entry) if alike and entry.keys() == names.keys() else None


def store(key: str, device: torch.device, timing: Any) -> None:
    """Store a timing for later processes. A failure to write is ignored."""
    if key and settings().measured:
        cache, entry = _cache(device), asdict(timing)
        _entries(cache)[key] = entry
        cache.add({key: entry})


def forget() -> None:
    """Read the files again at the next use."""
    _loaded.clear()


def _cache(device: torch.device) -> Cache:
    # Times on a CPU depend on the number of threads.
    threads = {"threads": str(torch.get_num_threads())} if device.type == "cpu" else {}
    identity = hardware(device.type) | versions() | threads | {"of": "places of models"}
    return Cache(f"places-{device.type}", tuple(sorted(identity.items())), KEPT)


def _entries(cache: Cache) -> dict[str, Any]:
    path = cache.path
    if path not in _loaded:
        _loaded[path] = dict(cache.read())
    return _loaded[path]


def _graph_text(graph: fx.Graph) -> str:
    """The code of a graph with numbered nodes. Raises _Indescribable if it calls user code."""
    numbers = {node: f"%{i}" for i, node in enumerate(graph.nodes)}
    return "\n".join(f"{n.op} {_target(n)} {_operands(n, numbers)}" for n in graph.nodes)


def _operands(node: fx.Node, numbers: Mapping[fx.Node, str]) -> str:
    operands = fx.node.map_arg((node.args, node.kwargs), lambda n: _Number(numbers[n]))
    text = repr(operands)
    if _ADDRESS.search(text):  # the repr of an object without content differs in each process
        raise _Indescribable
    return text


class _Number(str):
    def __repr__(self) -> str:
        return str(self)


def _target(node: fx.Node) -> str:
    if node.op == "placeholder":
        return ""
    if isinstance(node.target, str):
        return node.target
    module = getattr(node.target, "__module__", None) or ""
    names = {getattr(node.target, n, "") for n in ("__qualname__", "__name__")}
    found = [n for n in sorted(names) if module.partition(".")[0] in _OF_TORCH and _resolves_to(node.target, module, n)]
    if not found:
        raise _Indescribable
    return f"{module}.{found[0]}"


def _resolves_to(target: Any, module: str, name: str) -> bool:
    """Whether importing the name gives this object."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is not None and (value is target or value == target)


def _parameters(excerpt: Excerpt, module: nn.Module) -> list[str]:
    """Descriptions of the attributes that the code reads and of the layers that it calls."""
    nodes = [n for g in (excerpt.before, excerpt.after) for n in g.nodes]
    read = {str(n.target): _attribute(module, str(n.target)) for n in nodes if n.op in ("get_attr", "call_module")}
    return [f"{name} {_describe(value)}" for name, value in sorted(read.items())]


def _attribute(module: nn.Module, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _describe(value: Any) -> str:
    """A tensor's sizes, strides, dtype and device; the repr of a plain value. Raises _Indescribable for others."""
    if isinstance(value, Tensor):
        description = tuple(value.shape), tuple(value.stride()), value.dtype, value.device.type, value.requires_grad
        return repr(description)
    if isinstance(value, nn.Module):
        tensors = (*value.parameters(), *value.buffers())
        return f"{value!r} {[_code(m) for m in value.modules()]} {[_describe(t) for t in tensors]}"
    text = repr(value)
    if _ADDRESS.search(text):
        raise _Indescribable
    return text


def _code(module: nn.Module) -> str:
    """A module's class, the digest of its forward, and its plain attributes."""
    code = getattr(own_forward(plain_class(type(module))), "__code__", None)
    plain = {k: v for k, v in vars(module).items() if isinstance(v, bool | int | float | str)}
    digest = sha256(_code_text(code).encode()).hexdigest() if code else ""
    return f"{type(module).__qualname__} {digest} {sorted(plain.items())}"


def _code_text(code: types.CodeType) -> str:
    """The content of a code object. marshal is not used, because its output depends on reference counts."""
    constants = [_code_text(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code!r} {code.co_names} {code.co_varnames} {code.co_freevars} {constants}"


def _settings_text() -> str:
    """The settings of autofuse and torch that a time depends on."""
    preferences = settings()
    return repr((
        preferences.policy, preferences.repeatable,
        sorted(preferences.providers) if preferences.providers is not None else None,
        torch.get_float32_matmul_precision(), torch.get_default_dtype(), torch.backends.mkldnn.enabled,
        torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"),
    ))  # fmt: skip
