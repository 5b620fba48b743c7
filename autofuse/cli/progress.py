"""A progress bar on a terminal, for runs of more than a second. It disappears at the end."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

_DELAY, _PAUSE = 1.0, 0.1  # seconds: before the bar appears, and between two updates


class Progress:
    """A bar that counts files. Code that prints something calls `clear` first, so that the output does not mix."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._next = time.monotonic() + _DELAY
        self._bar: Any = None

    def step(self) -> None:
        """Counts one more file."""
        self.done += 1
        if time.monotonic() >= self._next and sys.stderr.isatty():
            self._next = time.monotonic() + _PAUSE
            self._show()

    def clear(self) -> None:
        """Removes the bar until the next step."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self) -> None:
        if self._bar is None:
            rich, console = import_module("rich.progress"), import_module("rich.console")
            self._bar = rich.Progress(
                rich.TextColumn("{task.completed} of {task.total} files"), rich.BarColumn(),
                rich.TimeRemainingColumn(), console=console.Console(stderr=True), transient=True, auto_refresh=False,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._bar.add_task("", total=self.total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self.done)
        self._bar.refresh()
