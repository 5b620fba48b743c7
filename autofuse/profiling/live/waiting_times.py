"""How long steps wait for data and for optimizers, clocked from outside. Knows DataLoader's iterators and clocks.

It costs a few readings of the clock a step, so it may run beside timed steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from autofuse.profiling.live.batch_size import batch_of
from autofuse.results.profile import Share
from autofuse.torch_private import BaseDataLoaderIter


@dataclass(frozen=True)
class WaitingTimes:
    """Of one step, or several: seconds in which the program stood in `next(loader)`, and in optimizers' steps."""

    data: float
    optimizer: float
    batches: int
    samples: int | None


class Waiting:
    """Seconds on the host's clock, batches and samples since they were last taken.

    samples: None where a batch does not tell. prefetching: other processes or threads fetch ahead. closures: an
    optimizer's step runs the forward and the backward pass itself. On an accelerator the optimizer's seconds are those
    of launching it, not of its work.
    """

    def __init__(self) -> None:
        self.data = self.optimizer = 0.0
        self.batches = 0
        self.samples: int | None = 0
        self.prefetching = self.closures = False
        self._nested = 0
        self._began: list[tuple[Optimizer, float]] = []

    def take(self) -> WaitingTimes:
        """What came together so far, and starts from 0 again."""
        waited = WaitingTimes(self.data, self.optimizer, self.batches, self.samples)
        self.data = self.optimizer = 0.0
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
    """The data's and the optimizer's part of timed steps, each with how it was told, or why it cannot be."""
    steps, total = len(seconds), sum(seconds)
    clock = f"the host's clock in {steps} timed steps"
    data, optimizer = (sum(getattr(w, name) for w in waited) for name in ("data", "optimizer"))
    if BaseDataLoaderIter is None:
        why = f"torch {torch.__version__} has no DataLoader iterator that is known here"
    else:
        why = "" if any(w.batches for w in waited) else "no torch DataLoader gave a batch in the timed steps"
    told = [_share("data", data, total, steps, f"{clock}, around next() of DataLoaders", why)]
    if waiting.closures:
        why = "its step runs the forward and the backward pass itself (a closure): a trace tells them apart"
    elif device.type != "cpu":
        why = "the host only launches it: a trace tells"
    else:
        why = "" if optimizer else "no optimizer stepped in the timed steps"
    return [*told, _share("optimizer", optimizer, total, steps, f"{clock}, around the optimizer's step", why)]


def _share(name: str, seconds: float, total: float, steps: int, basis: str, why: str) -> Share:
    return Share(name, None, None, reason=why) if why else Share(name, seconds / steps, seconds / total, basis)


def _iterators() -> list[type[Any]]:
    """The classes of DataLoader's iterators that say how the next batch comes."""

    def kinds(kind: type[Any]) -> Iterator[type[Any]]:
        if "__next__" in vars(kind):
            yield kind
        for lower in kind.__subclasses__():
            yield from kinds(lower)

    return [] if BaseDataLoaderIter is None else list(kinds(BaseDataLoaderIter))
