"""How far long work has come, on a terminal and nowhere else. It knows numbers and words, not the work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_T = TypeVar("_T")


class Tell(Protocol):
    """Names a stage of the work and goes through its parts."""

    def __call__(self, stage: str, parts: Iterable[_T], total: int, /) -> Iterator[_T]: ...


def quietly(stage: str, parts: Iterable[_T], total: int, /) -> Iterator[_T]:
    """Says nothing."""
    yield from parts


@contextmanager
def told(title: str, console: Console | None = None) -> Iterator[Tell]:
    """Show a bar on standard error, if that is a terminal, and take it away at the end."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def tell(stage: str, parts: Iterable[_T], total: int, /) -> Iterator[_T]:
            bar.reset(task, description=f"{title}: {stage}", total=total)
            for part in parts:
                yield part
                bar.advance(task)

        yield tell


def spoken(name: str, console: Console | None = None) -> Tell:
    """Say each stage in a line on standard error, if that is a terminal: a bar would mix with what `name` prints."""
    console = console or Console(stderr=True)

    def tell(stage: str, parts: Iterable[_T], total: int, /) -> Iterator[_T]:
        if console.is_terminal and total > 0:
            steps = "a step" if total == 1 else f"{total} steps"
            console.print(f"autofuse: {name}: {stage}, {steps}", style="dim", markup=False, highlight=False)
        yield from parts

    return tell
