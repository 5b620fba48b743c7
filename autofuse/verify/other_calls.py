"""Calls that differ from an example: other masks of the same shape, larger activations, extreme indices.

An example with a mask that keeps everything shows nothing about a row without any kept entry. The contents of a tensor
decide whether it is a mask: booleans, zeros and ones, or zeros and very low numbers. This file handles only arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from autofuse.verify.runs import ModuleCall, ModuleRun

_FACTOR = 30.0  # for activations, which makes scores 900 times as large
_LOW = -1e3  # numbers up to this one count as the fill of an added mask
_LARGEST = 2**22  # entries; the contents of a larger tensor are not examined
_TOLERANCE = 1e-5  # relative to the largest entry; covers rounding in double and constants in single precision

Keeps = Callable[[Tensor], Tensor]


def other_calls(call: ModuleCall) -> Iterator[tuple[str, ModuleCall]]:
    """Yield each call with a description of its difference."""
    kinds: dict[int, str] = {}
    for x in find_tensors((call.args, call.kwargs)):
        kinds[id(x)] = _tensor_kind(x)
    yield "larger activations", change_tensors(call, lambda x: x * _FACTOR if kinds[id(x)] == "activation" else x)
    if "index" in kinds.values():
        for description, extreme in (("the lowest", torch.amin), ("the highest", torch.amax)):
            yield (
                f"integers that are all {description} of the example",
                change_tensors(call, lambda x, f=extreme: f(x).expand_as(x).clone() if kinds[id(x)] == "index" else x),  # type: ignore[misc]
            )
    if {"kept", "added"} & set(kinds.values()):
        for description, keeps in MASKS.items():
            yield description, change_tensors(call, lambda x, k=keeps: _replace_mask(x, kinds[id(x)], k))  # type: ignore[misc]


def find_difference(original: ModuleRun, rewritten: ModuleRun) -> str:
    """Return the name of the first result or gradient that differs in double; "" if none does.

    Results and gradients are not compared at entries where the original is not finite: a row without a kept key is NaN
    there, and so is every gradient that it reaches. Gradients are not compared either in rows in which a result of the
    same shape is NaN: outside of the domain of a function, such as a logarithm, a formula may have finite gradients.
    """
    for name, expected in original.tensors.items():
        actual = rewritten.tensors.get(name)
        if actual is None or actual.shape != expected.shape or _differs(actual, expected, _largest_entry(expected)):
            return name
    largest = max((_largest_entry(g) for g in original.gradients.values() if g is not None), default=0.0)
    results = list(original.tensors.values())
    for name, gradient in original.gradients.items():
        actual = rewritten.gradients.get(name)
        template = gradient if gradient is not None else actual
        if template is None:
            continue
        zero = torch.zeros_like(template)
        expected = _without_undefined_rows(zero if gradient is None else gradient, results)
        if _differs(zero if actual is None else actual, expected, largest):
            return f"gradient of {name}"
    return ""


def _without_undefined_rows(gradient: Tensor, results: Sequence[Tensor]) -> Tensor:
    """The gradient, NaN in rows in which a result of the same shape is NaN."""
    if not gradient.ndim or not gradient.dtype.is_floating_point:
        return gradient
    for result in results:
        if result.shape == gradient.shape and bool((undefined := result.isnan().any(-1, keepdim=True)).any()):
            gradient = gradient.masked_fill(undefined, math.nan)
    return gradient


def _differs(actual: Tensor, expected: Tensor, size: float) -> bool:
    compared = expected.isfinite()
    return bool(((actual - expected).abs()[compared] > _TOLERANCE * size + 1e-30).any()) or not bool(
        actual[compared].isfinite().all()
    )


def _largest_entry(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def change_tensors(call: ModuleCall, change: Callable[[Tensor], Tensor]) -> ModuleCall:
    """Return `call` with `change` applied to each tensor among its arguments.

    An object that is passed twice stays one object.
    """
    copies: dict[int, Any] = {}

    def changed_once(value: Any) -> Any:
        if id(value) not in copies:
            copies[id(value)] = changed_value(value)
        return copies[id(value)]

    def changed_value(value: Any) -> Any:
        if isinstance(value, Tensor):
            changed = change(value)
            return changed if changed is value else changed.detach().requires_grad_(value.requires_grad)
        if type(value) in (list, tuple):
            return type(value)(map(changed_once, value))
        return {k: changed_once(v) for k, v in value.items()} if type(value) is dict else value

    with torch.no_grad():
        return replace(
            call, args=tuple(map(changed_once, call.args)), kwargs={k: changed_once(v) for k, v in call.kwargs.items()}
        )


def find_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif type(value) in (list, tuple, dict):
        for part in value.values() if type(value) is dict else value:
            yield from find_tensors(part)


def _tensor_kind(x: Tensor) -> str:
    """The kind of a tensor by its contents: "kept", "added", "activation", "index" or "other"."""
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


def _replace_mask(x: Tensor, kind: str, keeps: Keeps) -> Tensor:
    if kind == "kept":
        return keeps(x).to(x.dtype)
    return x.new_zeros(x.shape).masked_fill(~keeps(x), float(x.amin())) if kind == "added" else x


def _keep_every_other_row(like: Tensor) -> Tensor:
    rows = torch.arange(like.shape[-2], device=like.device) % 2 == 0
    return rows.unsqueeze(-1).expand(like.shape).clone()


def _keep_last_entry(like: Tensor) -> Tensor:
    return (torch.arange(like.shape[-1], device=like.device) == like.shape[-1] - 1).expand(like.shape).clone()


def _keep_second_half(like: Tensor) -> Tensor:
    return (torch.arange(like.shape[-1], device=like.device) >= like.shape[-1] // 2).expand(like.shape).clone()


MASKS: dict[str, Keeps] = {
    "masks that keep everything": lambda like: torch.ones_like(like, dtype=torch.bool),
    "masks that keep nothing": lambda like: torch.zeros_like(like, dtype=torch.bool),
    "masks that drop every other row": _keep_every_other_row,
    "masks that keep one entry of a row": _keep_last_entry,
    "masks that drop one entry of a row": lambda like: ~_keep_last_entry(like),
    "masks that drop the first half of each row": _keep_second_half,
}
