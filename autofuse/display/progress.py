"""Progress of long work, on a terminal only. This file does not depend on the work.

rich is imported when something is shown, because the FX pass imports this module.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

_T = TypeVar("_T")


class ShowProgress(Protocol):
    """Names a stage of the work and iterates over its parts."""

    def __call__(self, stage: str, parts: Iterable[_T], total: int, /) -> Iterator[_T]:
        """Yield the `total` parts of a stage, and show how many are done."""


def quietly(stage: str, parts: Iterable[_T], total: int, /) -> Iterator[_T]:
    """Shows nothing."""
    yield from parts


@contextmanager
def progress_bar(title: str, console: Console | None = None) -> Iterator[ShowProgress]:
    """Shows a bar on standard error, if that is a terminal, and removes it at the end."""
    if console is None and not _may_be_a_terminal():
        yield quietly
        return
    console, rich = console or _standard_error(), import_module("rich.progress")
    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn()
    )  # fmt: skip
    with rich.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, last_shown = bar.add_task(title, total=None), [title]

        def show_progress(stage: str, parts: Iterable[_T], total: int, /) -> Iterator[_T]:
            last_shown[0] = f"{title}: {stage}"
            bar.reset(task, description=last_shown[0], total=total)
            for part in parts:
                yield part
                bar.advance(task)

        def show_next_to_phase(what: str) -> None:
            bar.update(task, description=f"{last_shown[0]} ({what})" if what else last_shown[0])

        _bars.append(show_next_to_phase)
        try:
            yield show_progress
        finally:
            _bars.remove(show_next_to_phase)


_AFTER = 1.0  # seconds after which a line shows what is running
_bars: list[
    Callable[[str], None]
] = []  # one function for each open bar: it shows a text next to the bar. The innermost bar is the last.


@contextmanager
def busy_with(what: str, console: Console | None = None, after: float = _AFTER) -> Iterator[None]:
    """Shows what the block is doing, on standard error if that is a terminal, after `after` seconds.

    If a bar is shown, the text is next to the bar until the block ends.
    """
    if not _bars and console is None and not _may_be_a_terminal():
        yield
        return
    said = threading.Event()
    timer = threading.Timer(after, _show_after_delay, (what, console, said))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if said.is_set() and _bars:
            _bars[-1]("")


def _show_after_delay(what: str, console: Console | None, said: threading.Event) -> None:
    said.set()
    if console is None and _bars:
        _bars[-1](what)
        return
    console = console or _standard_error()
    if console.is_terminal:
        console.print(f"autofuse: {what} ...", style="dim", markup=False, highlight=False)


def progress_lines(name: str, console: Console | None = None) -> ShowProgress:
    """Prints a line for each stage on standard error, if that is a terminal. A bar would mix with output of `name`."""
    console = console or _standard_error()

    def show_progress(stage: str, parts: Iterable[_T], total: int, /) -> Iterator[_T]:
        if console.is_terminal and total > 0:
            steps = "a step" if total == 1 else f"{total} steps"
            console.print(f"autofuse: {name}: {stage}, {steps}", style="dim", markup=False, highlight=False)
        yield from parts

    return show_progress


def _may_be_a_terminal() -> bool:
    """Whether rich may treat standard error as a terminal. rich decides, but is slow to import."""
    forced = any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"))
    try:
        return forced or sys.stderr.isatty() or "ipykernel" in sys.modules
    except (AttributeError, ValueError):  # standard error was closed, or does not exist
        return False


def _standard_error() -> Any:
    return import_module("rich.console").Console(stderr=True)
