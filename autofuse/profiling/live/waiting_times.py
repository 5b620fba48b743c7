"""How long steps spend on data, backward passes and optimizers, clocked from outside. Knows torch's entry points.

It costs a few readings of the clock a step, so it may run beside timed steps.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from autofuse.profiling.live.batch_size import batch_of
from autofuse.results.comparison import Interval
from autofuse.results.profile import Share
from autofuse.results.ratio_interval import ratio_interval
from autofuse.torch_private import BaseDataLoaderIter


@dataclass(frozen=True)
class WaitingTimes:
    """Of one step, or several: seconds in which the program stood in `next(loader)`, in optimizers' `step` and
    `zero_grad`, and in backward passes."""

    data: float
    optimizer: float
    batches: int
    samples: int | None
    backward: float = 0.0


class Waiting:
    """Seconds on the host's clock, batches and samples since they were last taken.

    samples: None where a batch does not tell. prefetching: other processes or threads fetch ahead. closures: an
    optimizer's step runs the forward and the backward pass itself. On an accelerator the seconds of the optimizer and
    of the backward pass are those of launching them, not of their work.
    """

    def __init__(self) -> None:
        self.data = self.optimizer = self.backward = 0.0
        self.batches = 0
        self.samples: int | None = 0
        self.prefetching = self.closures = False
        self._nested = self._backwards = 0
        self._began: list[tuple[Optimizer, float]] = []

    def take(self) -> WaitingTimes:
        """What came together so far, and starts from 0 again."""
        waited = WaitingTimes(self.data, self.optimizer, self.batches, self.samples, self.backward)
        self.data = self.optimizer = self.backward = 0.0
        self.batches = self.samples = 0
        return waited

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Count in the block."""
        with ExitStack() as stack:
            for kind in _iterators():
                stack.enter_context(self._around_next(kind))
            stack.callback(register_optimizer_step_pre_hook(uncompiled(self._begin_step)).remove)
            stack.callback(register_optimizer_step_post_hook(uncompiled(self._end_step)).remove)
            stack.enter_context(self._around_zero_grad())
            for name in ("backward", "grad"):
                stack.enter_context(self._around_backward(name))
            yield

    @contextmanager
    def _around_next(self, kind: type[Any]) -> Iterator[None]:
        inner, home = kind.__next__, threading.get_ident()

        def following(iterator: Any) -> Any:
            if threading.get_ident() != home:  # somebody fetches ahead, and nobody waits
                self.prefetching = True
                return inner(iterator)
            start = time.perf_counter()
            self._nested += 1
            try:
                batch = inner(iterator)
                if self._nested == 1:
                    self._came(iterator, batch)
                return batch
            finally:
                self._nested -= 1
                if not self._nested:
                    self.data += time.perf_counter() - start
                self.prefetching |= bool(getattr(iterator, "_num_workers", 0))

        kind.__next__ = following
        try:
            yield
        finally:
            kind.__next__ = inner

    @contextmanager
    def _around_backward(self, name: str) -> Iterator[None]:
        """Around torch.autograd.backward, which Tensor.backward calls, or torch.autograd.grad. An optimizer that steps
        within a backward pass counts as the optimizer's."""
        inner, home = getattr(torch.autograd, name), threading.get_ident()

        @functools.wraps(inner)
        def passing(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or threading.get_ident() != home or self._backwards:
                return inner(*args, **kwargs)
            start, stepped = time.perf_counter(), self.optimizer
            self._backwards += 1
            try:
                return inner(*args, **kwargs)
            finally:
                self._backwards -= 1
                self.backward += time.perf_counter() - start - (self.optimizer - stepped)

        setattr(torch.autograd, name, passing)
        try:
            yield
        finally:
            setattr(torch.autograd, name, inner)

    @contextmanager
    def _around_zero_grad(self) -> Iterator[None]:
        inner, home = Optimizer.zero_grad, threading.get_ident()

        @functools.wraps(inner)
        def clearing(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            start = time.perf_counter()
            inner(optimizer, *args, **kwargs)
            if threading.get_ident() == home and not self._began:
                self.optimizer += time.perf_counter() - start

        Optimizer.zero_grad = uncompiled(clearing)  # type: ignore[method-assign]
        try:
            yield
        finally:
            Optimizer.zero_grad = inner  # type: ignore[method-assign]

    def _came(self, iterator: Any, batch: Any) -> None:
        self.batches += 1
        told = batch_of(batch).samples if getattr(iterator, "_auto_collation", False) else None
        self.samples = None if told is None or self.samples is None else self.samples + told

    def _begin_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.closures |= kwargs.get("closure") is not None or any(map(callable, args))
        self._began.append((optimizer, time.perf_counter()))

    def _end_step(self, optimizer: Optimizer, *_: Any) -> None:
        while self._began:
            began, start = self._began.pop()
            if began is optimizer:
                self.optimizer += 0.0 if self._began else time.perf_counter() - start
                return


def uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """The same for an optimizer whose step is compiled: its graph breaks there, and the hook runs as it stands."""
    result: Callable[..., None] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return result


def shares(
    waited: Sequence[WaitingTimes], seconds: Sequence[float], waiting: Waiting, device: torch.device
) -> list[Share]:
    """The parts of timed steps that are the data's, the optimizer's and the backward pass's, each with how it was
    told, or why it cannot be."""
    steps = len(seconds)
    clock = f"the host's clock in {steps} timed steps"
    if BaseDataLoaderIter is None:
        why = f"torch {torch.__version__} has no DataLoader iterator that is known here"
    else:
        why = "" if any(w.batches for w in waited) else "no torch DataLoader gave a batch in the timed steps"
    found = [_share("data", [w.data for w in waited], seconds, f"{clock}, around next() of DataLoaders", why)]
    if waiting.closures:
        why = "its step runs the forward and the backward pass itself (a closure): a trace tells them apart"
    elif device.type != "cpu":
        why = "the host only launches it: a trace tells"
    else:
        why = "" if any(w.optimizer for w in waited) else "no optimizer stepped in the timed steps"
    basis = f"{clock}, around the optimizer's step and zero_grad"
    found.append(_share("optimizer", [w.optimizer for w in waited], seconds, basis, why))
    why = "the host only launches it: a trace tells" if device.type != "cpu" else ""
    why = why or ("" if any(w.backward for w in waited) else "no backward pass ran in the timed steps")
    basis = f"{clock}, around torch.autograd.backward and grad"
    return [*found, _share("backward", [w.backward for w in waited], seconds, basis, why)]


def rest_of(waited: Sequence[WaitingTimes], seconds: Sequence[float], told: Sequence[Share]) -> Interval | None:
    """The 95 % interval of the share of the steps that none of the shares told takes; None where it is not known."""
    names = [share.name for share in told if share.share is not None]
    parts = [step - sum(getattr(w, name) for name in names) for step, w in zip(seconds, waited, strict=True)]
    return ratio_interval([max(0.0, part) for part in parts], seconds) if names else None


def _share(name: str, parts: Sequence[float], seconds: Sequence[float], basis: str, why: str) -> Share:
    if why:
        return Share(name, None, None, reason=why)
    whole = sum(parts)
    return Share(name, whole / len(parts), whole / sum(seconds), basis, interval=ratio_interval(parts, seconds))


def _iterators() -> list[type[Any]]:
    """The classes of DataLoader's iterators that say how the next batch comes."""

    def kinds(kind: type[Any]) -> Iterator[type[Any]]:
        if "__next__" in vars(kind):
            yield kind
        for lower in kind.__subclasses__():
            yield from kinds(lower)

    return [] if BaseDataLoaderIter is None else list(kinds(BaseDataLoaderIter))
