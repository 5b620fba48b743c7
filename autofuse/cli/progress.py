"""How far a run is, on a terminal, once it has taken a second. Nothing of it stays there."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

_PATIENCE, _PAUSE = 1.0, 0.1  # seconds: before it is shown, and between two times


class Progress:
    """Counts files. What is to be printed in between calls `clear` first, or the line would stand in the middle."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._next = time.monotonic() + _PATIENCE
        self._shown: Any = None

    def step(self) -> None:
        """One more is done."""
        self.done += 1
        if time.monotonic() >= self._next and sys.stderr.isatty():
            self._next = time.monotonic() + _PAUSE
            self._show()

    def clear(self) -> None:
        """Takes the line away."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None

    def _show(self) -> None:
        if self._shown is None:
            rich, console = import_module("rich.progress"), import_module("rich.console")
            self._shown = rich.Progress(
                rich.TextColumn("{task.completed} of {task.total} files"), rich.BarColumn(),
                rich.TimeRemainingColumn(), console=console.Console(stderr=True), transient=True, auto_refresh=False,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._shown.add_task("", total=self.total)
            self._shown.start()
        self._shown.update(self._shown.task_ids[0], completed=self.done)
        self._shown.refresh()
