"""What the numbers in a mask are, where they can be known: buffers, and what is computed from them and from sizes.

A form is a word for the last two dimensions of a tensor (see facts.Known): "lower", "upper" or "bias".
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse.fx.trace.ambient_state import unobserved
from autofuse.ir.vocabulary import OPS
from autofuse.torch_private import assumed_constant

_LARGEST = 1 << 26  # elements; a larger buffer is not read
_LOW = -1e3  # canonical/recognise/masks.py: so low a fill leaves no weight

_numbers: dict[int, tuple[weakref.ref[Tensor], tuple[int, int], float]] = {}
_States = dict[int, tuple[int, int]]  # id -> version and place of memory: `x.data = y` leaves the version as it is
_versions: dict[str, _States] = {"lower": {}, "upper": {}, "bias": {}}  # what guards ask of the proofs
_proofs: dict[int, tuple[weakref.ref[Tensor], tuple[int, int], str | None]] = {}


def buffer_form(x: Tensor | None) -> str | None:
    """The form that `x` is proved to have, None if none; proved once for each state of its memory."""
    if x is None or x.ndim < 2 or x.is_meta or type(x) not in (Tensor, nn.Buffer):
        return None
    known = _proofs.get(id(x))
    if known is not None and known[0]() is x and known[1] == _state(x):
        return known[2]
    with unobserved():
        form = _form(x)
    key = id(x)

    def forget(_: object) -> None:
        _proofs.pop(key, None)
        for versions in _versions.values():
            versions.pop(key, None)

    forget(None)
    _proofs[key] = (weakref.ref(x, forget), _state(x), form)
    if form is not None:
        _versions[form][key] = _state(x)
    return form


@assumed_constant
def holds_form(x: Tensor | None, form: str) -> bool:
    """The guard that generated code asks: does the buffer still have the form that a proof rested on?

    A compiler asks it once, of the buffer itself; where it has no numbers to show, they are taken to be the same. What
    is written through `x.data` or by others than torch is seen as little as autograd sees it.
    """
    known = _versions[form].get(id(x))
    if x is not None and known is not None and known == (x._version, x.data_ptr()):
        return True
    return buffer_form(x) == form or _is_compiled_without_numbers(x)


def buffer_number(x: Tensor | None) -> float | None:
    """The fill in a buffer of one element, such as GPT-2's `masked_bias`; None where it holds something else."""
    if x is None or x.ndim or x.is_meta or type(x) not in (Tensor, nn.Buffer) or not x.dtype.is_floating_point:
        return None
    key = id(x)
    known = _numbers.get(key)
    if known is None or known[0]() is not x or known[1] != _state(x):
        with unobserved():
            number = float(x)
        known = _numbers[key] = weakref.ref(x, lambda _: _numbers.pop(key, None)), _state(x), number
    return known[2] if known[2] <= _LOW else None


@assumed_constant
def holds_number(x: Tensor | None, number: float) -> bool:
    """The guard for such a buffer."""
    known = _numbers.get(id(x))
    if known is not None and x is not None and known[1] == _state(x) and known[2] == number and known[0]() is x:
        return True
    return buffer_number(x) == number or _is_compiled_without_numbers(x)


def _is_compiled_without_numbers(x: Tensor | None) -> bool:
    """Whether this is an export, which runs on tensors that are shapes only."""
    return isinstance(x, Tensor) and type(x) not in (Tensor, nn.Buffer) and torch.compiler.is_compiling()


def _state(x: Tensor) -> tuple[int, int]:
    return x._version, x.data_ptr()


@torch.no_grad()
def _form(x: Tensor) -> str | None:
    rows, columns = x.shape[-2:]
    if rows != columns or x.numel() != rows * columns or rows < 2 or x.numel() > _LARGEST:
        return None
    square = x.detach().reshape(rows, columns)
    inside = torch.ones(rows, columns, dtype=torch.bool, device=x.device).tril()
    if torch.equal(square.to(torch.bool), inside) and _is_zero_or_one(square):
        return "lower"
    if torch.equal(square.to(torch.bool), ~inside):
        return "upper" if _is_zero_or_one(square) else "bias" if _is_fill(square[~inside]) else None
    return None


def _is_zero_or_one(x: Tensor) -> bool:
    return x.dtype is torch.bool or bool(((x == 0) | (x == 1)).all())


def _is_fill(x: Tensor) -> bool:
    return x.dtype.is_floating_point and bool((x <= _LOW).all())


def constant(module: nn.Module, node: fx.Node) -> Tensor | None:
    """The tensor that `node` computes in the example call, if it depends on buffers, sizes and constants alone."""
    try:
        found = _evaluated(module, node, {})
    except _NotConstant:
        return None
    return found if isinstance(found, Tensor) else None


class _NotConstant(Exception):
    """A node depends on an argument or a parameter."""


def _evaluated(module: nn.Module, node: fx.Node, done: dict[fx.Node, Any]) -> Any:
    if node not in done:
        done[node] = _computed(module, node, done)
    return done[node]


def _computed(module: nn.Module, node: fx.Node, done: dict[fx.Node, Any]) -> Any:
    example = node.meta.get("v")
    if isinstance(example, (int, float, bool)):
        return example
    if node.op == "get_attr":
        found: Any = module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if not isinstance(found, nn.Parameter):
            return found
    if node.op not in ("call_function", "call_method") or node.meta.get("writes") or _is_random(node):
        raise _NotConstant
    args: Any = fx.node.map_arg(node.args, lambda n: _evaluated(module, n, done))
    kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: _evaluated(module, n, done))
    target: Any = node.target
    with torch.no_grad():
        return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)


def _is_random(node: fx.Node) -> bool:
    name = getattr(node.target, "__name__", str(node.target))
    return name in OPS and OPS[name].effect == "random" or name.startswith("rand")
