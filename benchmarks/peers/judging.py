"""Checks that a way computes what the look-alikes compute: outputs and gradients, before and after a change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import lookalikes
from benchmarks.peers.lookalikes import LOOKALIKES
from benchmarks.peers.ways import WAYS, NotHere, first_line

RIGHT, WRONG = "right", "wrong"
# A way may add in another order. A result may differ from the original's in float64 by this many times the distance of
# the original in float32, or this many roundings of the largest value. What the look-alikes resemble is a hundred
# thousand roundings away.
ROUNDINGS = 64


def judge(way: str, name: str) -> str:
    """RIGHT, WRONG, or "declined: " and the reason, for one look-alike."""
    torch.manual_seed(0)
    lookalike = LOOKALIKES[name]
    lookalikes.SETTINGS.scale = lookalikes.WIDTH**-0.5
    model = lookalike.build()
    exact, rounded = copy.deepcopy(model).double(), copy.deepcopy(model)
    inputs = lookalike.example()
    try:
        callable_model = WAYS[way].prepare(model, inputs)
        found = [_results(callable_model, inputs)]
    except NotHere as reason:
        return f"declined: {reason}"
    except Exception as error:  # a library that refuses a model is not wrong
        return f"declined: {type(error).__name__}: {first_line(str(error))}"
    wanted, near = [_results(exact, _in_float64(inputs))], [_results(rounded, inputs)]
    if lookalike.change is not None:
        for changed in (model, exact, rounded):
            lookalike.change(changed)
        found.append(_results(callable_model, inputs))
        wanted.append(_results(exact, _in_float64(inputs)))
        near.append(_results(rounded, inputs))
    agree = all(_agree(*each) for each in zip(chain(*found), chain(*wanted), chain(*near), strict=True))
    return RIGHT if agree else WRONG


def _in_float64(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.detach().double().requires_grad_() for x in inputs)


def _results(model: Callable[..., Any], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The output, and the gradient of each input for one fixed gradient of the output."""
    output = model(*inputs)
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(output.shape, generator=generator).to(output.dtype)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient)]


def _agree(found: Tensor, wanted: Tensor, near: Tensor) -> bool:
    """Whether `found` is as near to `wanted`, in float64, as float32 allows."""
    size = float(wanted.abs().max())
    own = float((near.double() - wanted).abs().max())
    allowed = ROUNDINGS * max(own, torch.finfo(torch.float32).eps * size)
    return bool(((found.double() - wanted).abs() <= allowed).all())


def judge_all(way: str) -> dict[str, str]:
    """Every look-alike by its name."""
    return {name: judge(way, name) for name in LOOKALIKES}
