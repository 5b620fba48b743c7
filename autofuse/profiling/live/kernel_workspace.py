"""Measures the memory that kernels take while they run, besides their results, from the profiler's allocation events.

A kernel's own memory (attention's blocks, a packed weight, a fused operation's workspace) passes no dispatcher. Some of
the events are private to torch. If torch has none, or if another profiler runs, nothing is measured.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from autofuse.measure.memory import quiet_profiler
from autofuse.torch_private import is_profiler_enabled

_MARK = "autofuse::operator "
_OLDER_MEMORY = b"Memory block of unknown size was allocated before the profiling started"


class Workspace:
    """Measures steps whose operators run inside of `operator(n)`, n from 0 on. Afterwards, `most` has the result.

    most: by operator, the largest number of bytes that it held at once, in addition to those at its start.
    """

    def __init__(self) -> None:
        self.most: dict[int, int] = {}
        self._profiler: Any = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the block, unless another profiler runs."""
        if is_profiler_enabled():
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(_without_warnings_of_the_allocator())
            stack.enter_context(quiet_profiler())
            self._profiler = stack.enter_context(profile(activities=[ProfilerActivity.CPU], profile_memory=True))
            yield
        self.most = _most(self._profiler)
        self._profiler = None

    def operator(self, number: int) -> AbstractContextManager[Any]:
        """Return a context for the operator of that number."""
        if self._profiler is None:
            return nullcontext()
        return torch.profiler.record_function(f"{_MARK}{number}")


@contextmanager
def _without_warnings_of_the_allocator() -> Iterator[None]:
    """Remove c10's warnings about older memory from stderr. Other output on stderr comes after the block."""
    try:
        stderr = os.dup(2)
    except OSError:  # the process has no standard error
        yield
        return
    with tempfile.TemporaryFile() as aside:
        _flush()
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            aside.seek(0)
            os.write(2, b"".join(line for line in aside if _OLDER_MEMORY not in line))


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()


def _most(profiler: Any) -> dict[int, int]:
    try:
        events = profiler.profiler.kineto_results.events()
        changes = sorted(((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"), key=lambda c: c[0])
        marks = sorted((e.start_ns(), e.end_ns(), e.name()) for e in events if e.name().startswith(_MARK))
    except AttributeError:
        return {}
    most, at = {}, 0
    for start, end, name in marks:
        while at < len(changes) and changes[at][0] < start:
            at += 1
        first = at
        while at < len(changes) and changes[at][0] <= end:
            at += 1
        most[int(name.removeprefix(_MARK))] = max(accumulate((by for _, by in changes[first:at]), initial=0))
    return most
