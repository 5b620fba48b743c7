"""Measures how long this thread waits for a core that other programs use, as Linux counts it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class CoreQueue:
    """The time that a thread waited for a core, in the blocks of `measure_block`.

    Attributes:
        waited: seconds in which the thread could have run and had no core; 0 if the system does not report it.
        passed: seconds in all.
    """

    waited: float = 0.0
    passed: float = 0.0

    @property
    def share(self) -> float:
        """The waiting time as a fraction of the whole time."""
        return min(1.0, self.waited / self.passed) if self.passed > 0 else 0.0

    @contextmanager
    def measure_block(self) -> Iterator[None]:
        """Adds the times of the block, which must begin and end in the same thread."""
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
