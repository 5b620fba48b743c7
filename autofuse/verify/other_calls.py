"""Calls that an example leads to but did not make: other masks of the same shape, larger activations, extreme indices.

An example whose mask keeps everything says nothing about a row that is dropped whole. A tensor counts as a mask by what
it holds: booleans, zeros and ones, or zeros and very low numbers. Knows arguments; must not know what is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from autofuse.verify.runs import ModuleCall, ModuleRun

_FACTOR = 30.0  # of activations: scores become 900 times as large
_LOW = -1e3  # what is added to drop a score
_LARGEST = 2**22  # elements of a tensor that is looked through
_TOLERANCE = 1e-5  # of the largest entry: rounding in double, and constants that were written in single precision

Keeps = Callable[[Tensor], Tensor]


def other_calls(call: ModuleCall) -> Iterator[tuple[str, ModuleCall]]:
    """Each call with what is other about it."""
    kinds: dict[int, str] = {}
    for x in tensors_of_call((call.args, call.kwargs)):
        kinds[id(x)] = _kind(x)
    yield "larger activations", changed(call, lambda x: x * _FACTOR if kinds[id(x)] == "activation" else x)
    if "index" in kinds.values():
        for what, extreme in (("the lowest", torch.amin), ("the highest", torch.amax)):
            yield (
                f"integers that are all {what} of the example",
                changed(call, lambda x, of=extreme: of(x).expand_as(x).clone() if kinds[id(x)] == "index" else x),  # type: ignore[misc]
            )
    if {"kept", "added"} & set(kinds.values()):
        for what, keeps in MASKS.items():
            yield what, changed(call, lambda x, k=keeps: _masked(x, kinds[id(x)], k))  # type: ignore[misc]


def difference(wanted: ModuleRun, found: ModuleRun) -> str:
    """What a rewritten module computes otherwise in double, where the original has numbers; "" where nothing."""
    for name, right in wanted.tensors.items():
        ours = found.tensors.get(name)
        if ours is None or ours.shape != right.shape or _is_off(ours, right, _largest(right)):
            return name
    if any(bool(x.isnan().any()) for x in wanted.tensors.values()):
        return ""  # outside of where the original is defined
    if not all(g is None or bool(g.isfinite().all()) for g in wanted.gradients.values()):
        return ""
    largest = max((_largest(g) for g in wanted.gradients.values() if g is not None), default=0.0)
    for name, gradient in wanted.gradients.items():
        ours = found.gradients.get(name)
        one = gradient if gradient is not None else ours
        if one is None:
            continue
        zero = torch.zeros_like(one)
        if _is_off(zero if ours is None else ours, zero if gradient is None else gradient, largest):
            return f"gradient of {name}"
    return ""


def _is_off(ours: Tensor, right: Tensor, size: float) -> bool:
    compared = right.isfinite()
    return bool(((ours - right).abs()[compared] > _TOLERANCE * size + 1e-30).any()) or not bool(
        ours[compared].isfinite().all()
    )


def _largest(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def changed(call: ModuleCall, change: Callable[[Tensor], Tensor]) -> ModuleCall:
    """`call` with `change` made to each tensor among its arguments; what is given twice stays one."""
    made: dict[int, Any] = {}

    def of(value: Any) -> Any:
        if id(value) not in made:
            made[id(value)] = new(value)
        return made[id(value)]

    def new(value: Any) -> Any:
        if isinstance(value, Tensor):
            changed = change(value)
            return changed if changed is value else changed.detach().requires_grad_(value.requires_grad)
        if type(value) in (list, tuple):
            return type(value)(map(of, value))
        return {k: of(v) for k, v in value.items()} if type(value) is dict else value

    with torch.no_grad():
        return replace(call, args=tuple(map(of, call.args)), kwargs={k: of(v) for k, v in call.kwargs.items()})


def tensors_of_call(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif type(value) in (list, tuple, dict):
        for part in value.values() if type(value) is dict else value:
            yield from tensors_of_call(part)


def _kind(x: Tensor) -> str:
    """What a tensor's contents say that it is: "kept", "added", "activation", "index"; "other" where it is neither."""
    if type(x) is not Tensor or x.is_complex() or not x.numel() or x.numel() > _LARGEST or x.is_meta:
        return "other"
    wide = x.ndim > 1 and x.shape[-1] > 1
    if x.dtype is torch.bool:
        return "kept" if wide else "other"
    if wide and bool(((x == 0) | (x == 1)).all()):
        return "kept"
    if not x.is_floating_point():
        return "index"
    if wide and bool(((x == 0) | (x <= _LOW)).all()) and bool((x < 0).any()):
        return "added"
    return "activation"


def _masked(x: Tensor, kind: str, keeps: Keeps) -> Tensor:
    if kind == "kept":
        return keeps(x).to(x.dtype)
    return x.new_zeros(x.shape).masked_fill(~keeps(x), float(x.amin())) if kind == "added" else x


def _every_other(like: Tensor) -> Tensor:
    rows = torch.arange(like.shape[-2], device=like.device) % 2 == 0
    return rows.unsqueeze(-1).expand(like.shape).clone()


def _last_alone(like: Tensor) -> Tensor:
    return (torch.arange(like.shape[-1], device=like.device) == like.shape[-1] - 1).expand(like.shape).clone()


def _second_half(like: Tensor) -> Tensor:
    return (torch.arange(like.shape[-1], device=like.device) >= like.shape[-1] // 2).expand(like.shape).clone()


MASKS: dict[str, Keeps] = {
    "masks that keep everything": lambda like: torch.ones_like(like, dtype=torch.bool),
    "masks that keep nothing": lambda like: torch.zeros_like(like, dtype=torch.bool),
    "masks that drop every other row": _every_other,
    "masks that keep one entry of a row": _last_alone,
    "masks that drop one entry of a row": lambda like: ~_last_alone(like),
    "masks that drop the first half of each row": _second_half,
}
