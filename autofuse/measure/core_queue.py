"""How long this thread waits for a core that other programs use, as the kernel of Linux counts it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class CoreQueue:
    """share: of the time that passed in blocks of `watched`, for how much the thread could run and had no core; a
    fraction of 1, and 0 where the system does not tell."""

    waited: float = 0.0
    passed: float = 0.0

    @property
    def share(self) -> float:
        """A fraction of 1."""
        return min(1.0, self.waited / self.passed) if self.passed > 0 else 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Add what passes in the block. It has to begin and end in one thread."""
        start, waiting = time.perf_counter(), seconds_in_queue()
        try:
            yield
        finally:
            self.waited += seconds_in_queue() - waiting
            self.passed += time.perf_counter() - start


def seconds_in_queue() -> float:
    """Returns the seconds that this thread has waited for a core so far; 0 if the system does not report it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
