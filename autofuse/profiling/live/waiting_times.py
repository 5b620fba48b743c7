"""Clocks how long steps spend on data, backward passes and optimizers, at torch's entry points.

It costs a few readings of the clock per step, so it may run during timed steps.
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
    """Seconds of one or more steps.

    data: in `next(loader)`.
    optimizer: in optimizers' `step` and `zero_grad`.
    backward: in backward passes.
    batches, samples: from data loaders; samples is None if a batch does not show them.
    """

    data: float
    optimizer: float
    batches: int
    samples: int | None
    backward: float = 0.0


class WaitClock:
    """Clocks the waits of the host: seconds, batches and samples since the last `take`.

    samples: None if a batch does not show them.
    prefetching: other processes or threads fetch ahead.
    closures: an optimizer's step runs the forward and the backward pass itself.
    On an accelerator, the seconds of the optimizer and of the backward pass are those of launching, not of the work.
    """

    def __init__(self) -> None:
        self.data = self.optimizer = self.backward = 0.0
        self.batches = 0
        self.samples: int | None = 0
        self.prefetching = self.closures = False
        self._nested = self._backwards = 0
        self._began: list[tuple[Optimizer, float]] = []

    def take(self) -> WaitingTimes:
        """Return what was counted so far, and start from 0 again."""
        waited = WaitingTimes(self.data, self.optimizer, self.batches, self.samples, self.backward)
        self.data = self.optimizer = self.backward = 0.0
        self.batches = self.samples = 0
        return waited

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Count in the block."""
        with ExitStack() as stack:
            for kind in _iterator_classes():
                stack.enter_context(self._clock_next(kind))
            stack.callback(register_optimizer_step_pre_hook(uncompiled(self._begin_step)).remove)
            stack.callback(register_optimizer_step_post_hook(uncompiled(self._end_step)).remove)
            stack.enter_context(self._clock_zero_grad())
            for name in ("backward", "grad"):
                stack.enter_context(self._clock_backward(name))
            yield

    @contextmanager
    def _clock_next(self, kind: type[Any]) -> Iterator[None]:
        original, owner_thread = kind.__next__, threading.get_ident()

        def next_batch(iterator: Any) -> Any:
            if threading.get_ident() != owner_thread:  # another thread fetches ahead, so no step waits
                self.prefetching = True
                return original(iterator)
            start = time.perf_counter()
            self._nested += 1
            try:
                batch = original(iterator)
                if self._nested == 1:
                    self._count_batch(iterator, batch)
                return batch
            finally:
                self._nested -= 1
                if not self._nested:
                    self.data += time.perf_counter() - start
                self.prefetching |= bool(getattr(iterator, "_num_workers", 0))

        kind.__next__ = next_batch
        try:
            yield
        finally:
            kind.__next__ = original

    @contextmanager
    def _clock_backward(self, name: str) -> Iterator[None]:
        """Clock torch.autograd.backward, which Tensor.backward calls, or torch.autograd.grad.

        The time of an optimizer that steps within a backward pass belongs to the optimizer.
        """
        original, owner_thread = getattr(torch.autograd, name), threading.get_ident()

        @functools.wraps(original)
        def clocked_backward(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or threading.get_ident() != owner_thread or self._backwards:
                return original(*args, **kwargs)
            start, stepped = time.perf_counter(), self.optimizer
            self._backwards += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._backwards -= 1
                self.backward += time.perf_counter() - start - (self.optimizer - stepped)

        setattr(torch.autograd, name, clocked_backward)
        try:
            yield
        finally:
            setattr(torch.autograd, name, original)

    @contextmanager
    def _clock_zero_grad(self) -> Iterator[None]:
        original, owner_thread = Optimizer.zero_grad, threading.get_ident()

        @functools.wraps(original)
        def clocked_zero_grad(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            start = time.perf_counter()
            original(optimizer, *args, **kwargs)
            if threading.get_ident() == owner_thread and not self._began:
                self.optimizer += time.perf_counter() - start

        Optimizer.zero_grad = uncompiled(clocked_zero_grad)  # type: ignore[method-assign]
        try:
            yield
        finally:
            Optimizer.zero_grad = original  # type: ignore[method-assign]

    def _count_batch(self, iterator: Any, batch: Any) -> None:
        self.batches += 1
        known = batch_of(batch).samples if getattr(iterator, "_auto_collation", False) else None
        self.samples = None if known is None or self.samples is None else self.samples + known

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
    """Return the hook for optimizers whose step is compiled: the graph breaks there, and the hook runs uncompiled."""
    result: Callable[..., None] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return result


def shares(
    waited: Sequence[WaitingTimes], seconds: Sequence[float], waiting: WaitClock, device: torch.device
) -> list[Share]:
    """Return the shares of data, optimizer and backward pass in timed steps, each with its basis or a reason."""
    steps = len(seconds)
    clock = f"the host's clock in {steps} timed steps"
    if BaseDataLoaderIter is None:
        why = f"torch {torch.__version__} has no DataLoader iterator that autofuse knows"
    else:
        why = "" if any(w.batches for w in waited) else "no torch DataLoader gave a batch in the timed steps"
    found = [_share("data", [w.data for w in waited], seconds, f"{clock}, around next() of DataLoaders", why)]
    if waiting.closures:
        why = "its step runs the forward and the backward pass itself (a closure): a trace distinguishes them"
    elif device.type != "cpu":
        why = "the host only launches it: a trace shows it"
    else:
        why = "" if any(w.optimizer for w in waited) else "no optimizer stepped in the timed steps"
    basis = f"{clock}, around the optimizer's step and zero_grad"
    found.append(_share("optimizer", [w.optimizer for w in waited], seconds, basis, why))
    why = "the host only launches it: a trace shows it" if device.type != "cpu" else ""
    why = why or ("" if any(w.backward for w in waited) else "no backward pass ran in the timed steps")
    basis = f"{clock}, around torch.autograd.backward and grad"
    return [*found, _share("backward", [w.backward for w in waited], seconds, basis, why)]


def rest_of(waited: Sequence[WaitingTimes], seconds: Sequence[float], known: Sequence[Share]) -> Interval | None:
    """Return the 95 % interval of the share that none of the known shares takes; None if it is unknown."""
    names = [share.name for share in known if share.share is not None]
    parts = [step - sum(getattr(w, name) for name in names) for step, w in zip(seconds, waited, strict=True)]
    return ratio_interval([max(0.0, part) for part in parts], seconds) if names else None


def _share(name: str, parts: Sequence[float], seconds: Sequence[float], basis: str, why: str) -> Share:
    if why:
        return Share(name, None, None, reason=why)
    whole = sum(parts)
    return Share(name, whole / len(parts), whole / sum(seconds), basis, interval=ratio_interval(parts, seconds))


def _iterator_classes() -> list[type[Any]]:
    """Return the classes of DataLoader's iterators that define `__next__`."""

    def kinds(kind: type[Any]) -> Iterator[type[Any]]:
        if "__next__" in vars(kind):
            yield kind
        for lower in kind.__subclasses__():
            yield from kinds(lower)

    return [] if BaseDataLoaderIter is None else list(kinds(BaseDataLoaderIter))
