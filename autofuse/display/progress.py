"""How far long work has come, on a terminal and nowhere else. It knows numbers and words, not the work.

rich is imported where something is shown: the live door imports this, and shows nothing as it is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

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
    console, rich = console or _standard_error(), import_module("rich.progress")
    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn()
    )  # fmt: skip
    with rich.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def tell(stage: str, parts: Iterable[_T], total: int, /) -> Iterator[_T]:
            bar.reset(task, description=f"{title}: {stage}", total=total)
            for part in parts:
                yield part
                bar.advance(task)

        yield tell


def spoken(name: str, console: Console | None = None) -> Tell:
    """Say each stage in a line on standard error, if that is a terminal: a bar would mix with what `name` prints."""
    console = console or _standard_error()

    def tell(stage: str, parts: Iterable[_T], total: int, /) -> Iterator[_T]:
        if console.is_terminal and total > 0:
            steps = "a step" if total == 1 else f"{total} steps"
            console.print(f"autofuse: {name}: {stage}, {steps}", style="dim", markup=False, highlight=False)
        yield from parts

    return tell


def _standard_error() -> Any:
    return import_module("rich.console").Console(stderr=True)
