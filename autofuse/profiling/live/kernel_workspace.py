"""What kernels take while they run, on top of their results, told from the profiler's allocation events.

A kernel's own memory (attention's blocks, a packed weight, whatever a fused operation computes within) passes no
dispatcher. Knows the profiler; must not know tensors. The events are private to torch in part: where it has none, or
somebody else profiles, there is nothing to tell.
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
    """Around steps whose operators run inside of `operator(n)`, n from 0 on. Afterwards, `most[n]`.

    most: by operator, the most bytes that were held at a moment within it, on top of what was held as it began.
    """

    def __init__(self) -> None:
        self.most: dict[int, int] = {}
        self._profiler: Any = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the block, unless somebody else is profiling."""
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
        """Around the operator of that number."""
        if self._profiler is None:
            return nullcontext()
        return torch.profiler.record_function(f"{_MARK}{number}")


@contextmanager
def _without_warnings_of_the_allocator() -> Iterator[None]:
    """c10 logs that it meets memory from before the profile, which is no news here; all else on stderr comes after."""
    try:
        stderr = os.dup(2)
    except OSError:  # a process without one
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
