"""A row of the matrix: how a model is wrapped, and when it is optimized. Knows no wrapping; those are in ways_*.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

import autofuse
from tools.distributed.training import (
    Around,
    Clip,
    Quiet,
    Recipe,
    always_in_step,
    batches,
    built,
    clip_plainly,
    in_nothing,
    peft,
)

Order = Literal["before", "after", "midway"]
ORDERS: Mapping[str, str] = {
    "before": "optimized, then wrapped",
    "after": "wrapped, then optimized",
    "midway": "wrapped, trained for five steps, then optimized",
}


@dataclass
class Job:
    """One model's way through a row: plain or optimized, on this rank."""

    device: str
    rank: int
    world: int
    order: Order
    fused: bool
    recipe: Recipe = field(default_factory=Recipe)

    def start(self) -> nn.Module:
        """The model that every rank starts with, on the device."""
        return built(self.recipe).to(self.device)

    def before(self, model: nn.Module) -> nn.Module:
        """Optimized, if that comes before wrapping in this row."""
        return self.optimized(model) if self.order == "before" else model

    def after(self, model: nn.Module) -> nn.Module:
        return self.optimized(model) if self.order == "after" else model

    def optimized(self, model: nn.Module) -> nn.Module:
        return autofuse.optimize(model, self.example()) if self.fused else model

    def example(self) -> Tensor:
        """Tokens of this rank's own: (batch, length), int64."""
        return batches(self.rank, 1)[0][0][:, :-1].to(self.device)


Wrap = Callable[[Job, nn.Module], nn.Module]
Finish = Callable[[Job, nn.Module, nn.Module], None]


def start(job: Job) -> nn.Module:
    return job.start()


def nothing(device: str) -> str:
    """A row that runs anywhere."""
    return ""


def accelerator(device: str) -> str:
    """A row whose wrapping wants an accelerator."""
    return "torch itself requires an accelerator here" if device == "cpu" else ""


def adapters(device: str) -> str:
    """A row that needs peft."""
    return "" if peft is not None else "peft is not installed"


@dataclass(frozen=True)
class Way:
    """A wrapping.

    wrap: wraps a model, given the job. expected: the kinds of fused operators that must be seen, each with its calls
    per micro batch. replicas: how many different batches there are in a step, given the number of ranks; replica: which
    of them a rank trains on. around: a context for each forward; throughout: one for all of training. finish: what is
    asked of the plain and the optimized model after training; raises AssertionError. lacks: why the row
    cannot be run on a device, or "". note: said below the table.
    """

    name: str
    wrap: Wrap
    orders: tuple[Order, ...] = ("before", "after")
    ranks: int = 2
    recipe: Recipe = field(default_factory=Recipe)
    expected: Mapping[str, int] = field(default_factory=lambda: {"attention": 2, "norm": 5, "silu": 2})
    clip: Clip = clip_plainly
    quiet: Quiet = always_in_step
    around: Around = in_nothing
    throughout: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    replicas: Callable[[int], int] = lambda world: world
    replica: Callable[[int], int] = lambda rank: rank
    finish: Finish | None = None
    build: Callable[[Job], nn.Module] = start
    lacks: Callable[[str], str] = nothing
    note: str = ""


WAYS: list[Way] = []


def way(name: str, **options: Any) -> Callable[[Wrap], Wrap]:
    """Register a wrapping."""

    def registered(wrap: Wrap) -> Wrap:
        WAYS.append(Way(name, wrap, **options))
        return wrap

    return registered
