"""What timing said, kept on the disk: the next process that meets an equal place, or step, does not time it again.

An entry belongs to a machine, its number of threads, and versions (kernels/decisions.py), and is found by all that a
time depends on: the code before and after, the forms of what it is given and of the parameters, the mode and the
settings. A place that calls code of the user's is not kept, nor what noise left open.
Knows excerpts and files; must not know how a place is timed, nor what is concluded from it.
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
_read: dict[object, dict[str, Any]] = {}  # by the path of the file


class _Unknown(Exception):
    """Something that a time may depend on, and that no text describes."""


def place_of(excerpt: Excerpt, module: nn.Module, training: bool) -> str:
    """What an entry is found by; "" for a place that is not kept."""
    try:
        parts = [
            *(_text_of(graph) for graph in (excerpt.before, excerpt.after)),
            *(_form(value) for value in excerpt.example_inputs),
            *_parameters(excerpt, module),
            excerpt.operation, excerpt.kernel, f"{training}", _state(),
        ]  # fmt: skip
    except _Unknown:
        return ""
    return sha256("\n".join(parts).encode()).hexdigest()


def step_of(model: nn.Module, given: object, forwards: Iterable[str], training: bool) -> str:
    """What an entry of a whole step is found by, "" for one that is not kept.

    given: what `model` is called with. forwards: the code of each rewritten forward, with the name of its module.
    """
    try:
        values = [_form(leaf) for leaf in pytree.tree_leaves(given)]
        parts = ["step", _form(model), *values, *forwards, f"{training}", _state()]
    except _Unknown:
        return ""
    return sha256("\n".join(parts).encode()).hexdigest()


def found(place: str, device: torch.device, kind: Callable[..., _T]) -> _T | None:
    """What is kept for a place, a dataclass of `kind` with plain fields; None where nothing is, or nothing usable."""
    entry = _entries(_cache(device)).get(place) if place and settings().measured else None
    if not isinstance(entry, Mapping):
        return None
    names = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    alike = all(n in names and type(v) is type(names[n].default) for n, v in entry.items())
    return kind(**entry) if alike and entry.keys() == names.keys() else None


def keep(place: str, device: torch.device, said: Any) -> None:
    """Keep what timing said of a place, for processes to come. Nothing is raised where that cannot be done."""
    if place and settings().measured:
        cache, entry = _cache(device), asdict(said)
        _entries(cache)[place] = entry
        cache.add({place: entry})


def forget() -> None:
    """Read the files again when they are next needed."""
    _read.clear()


def _cache(device: torch.device) -> Cache:
    threads = {"threads": str(torch.get_num_threads())} if device.type == "cpu" else {}
    belongs = hardware(device.type) | versions() | threads | {"of": "places of models"}
    return Cache(f"places-{device.type}", tuple(sorted(belongs.items())), KEPT)


def _entries(cache: Cache) -> dict[str, Any]:
    path = cache.path
    if path not in _read:
        _read[path] = dict(cache.read())
    return _read[path]


def _text_of(graph: fx.Graph) -> str:
    """The code of a graph, its nodes by number. Raises _Unknown where it calls what is neither torch's nor ours."""
    numbers = {node: f"%{i}" for i, node in enumerate(graph.nodes)}
    return "\n".join(f"{n.op} {_target(n)} {_operands(n, numbers)}" for n in graph.nodes)


def _operands(node: fx.Node, numbers: Mapping[fx.Node, str]) -> str:
    operands = fx.node.map_arg((node.args, node.kwargs), lambda n: _Number(numbers[n]))
    text = repr(operands)
    if _ADDRESS.search(text):
        raise _Unknown
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
    found = [n for n in sorted(names) if module.partition(".")[0] in _OF_TORCH and _is_found(node.target, module, n)]
    if not found:
        raise _Unknown
    return f"{module}.{found[0]}"


def _is_found(target: Any, module: str, name: str) -> bool:
    """Whether the name leads to it."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is not None and (value is target or value == target)


def _parameters(excerpt: Excerpt, module: nn.Module) -> list[str]:
    """The forms of what the code reads of its module, and the children that it calls, which have to be torch's own."""
    nodes = [n for g in (excerpt.before, excerpt.after) for n in g.nodes]
    read = {str(n.target): _attribute(module, str(n.target)) for n in nodes if n.op in ("get_attr", "call_module")}
    return [f"{name} {_form(value)}" for name, value in sorted(read.items())]


def _attribute(module: nn.Module, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _form(value: Any) -> str:
    """A tensor by its sizes, strides, dtype and device; a plain value by its text. Raises _Unknown for others."""
    if isinstance(value, Tensor):
        about = tuple(value.shape), tuple(value.stride()), value.dtype, value.device.type, value.requires_grad
        return repr(about)
    if isinstance(value, nn.Module):
        tensors = (*value.parameters(), *value.buffers())
        return f"{value!r} {[_code(m) for m in value.modules()]} {[_form(t) for t in tensors]}"
    text = repr(value)
    if _ADDRESS.search(text):
        raise _Unknown
    return text


def _code(module: nn.Module) -> str:
    """The code of a forward and the plain values that its module holds: a time may be wrong by what is missing here."""
    code = getattr(own_forward(plain_class(type(module))), "__code__", None)
    plain = {k: v for k, v in vars(module).items() if isinstance(v, bool | int | float | str)}
    digest = sha256(_written(code).encode()).hexdigest() if code else ""
    return f"{type(module).__qualname__} {digest} {sorted(plain.items())}"


def _written(code: types.CodeType) -> str:
    """All that a code object does, as a text: what marshal makes of one differs with who holds its parts."""
    constants = [_written(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code!r} {code.co_names} {code.co_varnames} {code.co_freevars} {constants}"


def _state() -> str:
    """What else a time depends on: the settings of autofuse and torch."""
    wishes = settings()
    return repr((
        wishes.policy, wishes.repeatable, sorted(wishes.providers) if wishes.providers is not None else None,
        torch.get_float32_matmul_precision(), torch.get_default_dtype(), torch.backends.mkldnn.enabled,
        torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"),
    ))  # fmt: skip
