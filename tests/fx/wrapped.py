"""Trains a model and its optimized copy under the same wrapping, and proves that the fused operators ran.

A wrapping is what a training job puts around a model: a function of the model, and a context around each forward. The
order is a part of the test: the model is optimized before it is wrapped, after it, or at its first call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import autofuse
from tests.fx.wrapped_models import WORDS, model_of

ORDERS = ("before", "after", "at the first call")
FUSED = ("scaled_dot_product_attention", "gelu", "silu", "rms_norm")  # operators that no model here calls by name
KERNEL = "_scaled_dot_product_flash_attention_for_cpu"


@dataclass(frozen=True)
class Wrapping:
    """`wrap` takes the model and returns the wrapped one. `around` is a context for each forward."""

    name: str
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    forwards: int = 1  # how often a block runs in one step: twice if it is recomputed
    operators: tuple[str, ...] = FUSED  # a compiler lowers some of them

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Step:
    """The results of one training step."""

    logits: Tensor
    gradients: dict[str, Tensor]


_TOKENS = torch.randint(0, WORDS, (2, 8), generator=torch.Generator().manual_seed(2))  # created outside of any mode


def tokens() -> Tensor:
    """The batch of all tests."""
    return _TOKENS


def operators_run(work: Callable[[], object]) -> Counter[str]:
    """How often each operator of torch ran, from the profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        work()
    return Counter(e.name.removeprefix("aten::") for e in seen.events())


def fused_run(work: Callable[[], object], names: Sequence[str] = FUSED) -> dict[str, int]:
    """The fused operators among those that ran."""
    ran = operators_run(work)
    return {name: ran[name] for name in names if ran[name]}


def trained(model: nn.Module, wrapping: Wrapping, steps: int = 2) -> tuple[list[Step], Counter[str]]:
    """Some steps of gradient descent, and the operators of the last step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    given, done = tokens(), []

    def step() -> None:
        optimizer.zero_grad()
        torch.manual_seed(1)
        with wrapping.around():
            logits = model(given)
        F.cross_entropy(logits.float().flatten(0, 1), given.roll(-1, 1).flatten()).backward()
        gradients = {f"{i}": p.grad.clone() for i, p in enumerate(model.parameters()) if p.grad is not None}
        done.append(Step(logits.detach().clone(), gradients))
        optimizer.step()

    for _ in range(steps - 1):
        step()
    return done, operators_run(step)


@cache
def trained_plain(name: str, wrapping: Wrapping) -> tuple[list[Step], Counter[str]]:
    """The same for the wrapped original model."""
    return trained(wrapping.wrap(model_of(name)), wrapping)


def prepare(name: str, wrapping: Wrapping, order: str) -> nn.Module:
    """The model called `name`, wrapped and optimized in that order."""
    model: nn.Module = model_of(name)
    if order == "after":
        return autofuse.optimize(wrapping.wrap(model), tokens(), verify=False)
    autofuse.optimize(model, None if order == "at the first call" else tokens(), verify=False)
    return wrapping.wrap(model)


@cache
def expected_operators(name: str, wrapping: Wrapping) -> dict[str, int]:
    """The operators of one forward of the optimized model without a wrapping, times the forwards of the wrapping."""
    model = autofuse.optimize(model_of(name), tokens(), verify=False)
    alone = fused_run(lambda: model(tokens()), wrapping.operators)
    assert alone.get(wrapping.operators[0]) == 2
    return {operator: runs * wrapping.forwards for operator, runs in alone.items()}


def assert_wrapped(name: str, wrapping: Wrapping, order: str) -> None:
    """Equal outputs and gradients in each step, and the same fused operators as without the wrapping."""
    plain, ran = trained_plain(name, wrapping)
    assert not any(ran[operator] for operator in FUSED)
    model = prepare(name, wrapping, order)
    found, ran = trained(model, wrapping)
    for one, other in zip(plain, found, strict=True):
        assert_close(one.logits, other.logits)
        assert one.gradients.keys() == other.gradients.keys()
        for place, gradient in one.gradients.items():
            assert_close(gradient, other.gradients[place])
    expected = expected_operators(name, wrapping)
    assert {operator: ran[operator] for operator in expected} == expected, autofuse.report(model).fallbacks


def assert_close(one: Tensor, other: Tensor) -> None:
    """Equal except for rounding: in float32 1e-5 for values of order one, about 80 units; in half precision some
    units.
    """
    units = 80 if one.dtype is torch.float32 else 8
    bound = units * torch.finfo(one.dtype).eps
    torch.testing.assert_close(other, one, atol=bound, rtol=bound)
