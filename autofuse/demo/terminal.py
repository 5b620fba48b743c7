"""The demo's result on a terminal: sentences, tables, loss curves and a diff."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from autofuse.demo.run import DemoResult
from autofuse.display import profile_terminal
from autofuse.results.profile import Profile

WIDTH = 50
_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", ".:-=+*#@"

NO_DROPOUT = (
    "The model is trained without dropout. A fused kernel draws random numbers in another order, "
    "so curves with dropout could not be compared step by step."
)


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Shows a progress bar for each stage, only on a terminal.

    Yields:
        The function `advance(stage, done, total)` that `run` calls.
    """
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield advance


def show(result: DemoResult, console: Console) -> None:
    """Prints the result."""

    def say(text: str | Text) -> None:
        console.print(text, markup=False, highlight=False)

    say(result.summary)
    heading(console, "What was fused")
    console.print(result.sites)
    heading(console, "The loss, in nats a character")
    limits = min(result.eager), max(result.eager)
    for name, curve in (("eager", result.eager), ("optimized", result.optimized)):
        bars = sparkline(curve, limits, console.options.ascii_only)
        say(f"{name:>10} {bars} {curve[0]:.3f} to {curve[-1]:.3f}")
    say(Text(result.agreement.sentence, "green" if result.agreement.agrees else "bold red"))
    say(Text(NO_DROPOUT, "dim"))
    heading(console, "What a whole training step costs")
    console.print(result.comparison)
    heading(console, "Predicted and measured savings, by layer")
    console.print(*profile_terminal.places(result.profile.before), sep="\n")
    heading(console, "How much of the machine a step uses")
    console.print(profile_terminal.ladder(sides(result)))
    heading(console, "What `autofuse rewrite` would change in the model's file")
    console.print(Text.assemble(*result.diff_pieces()), soft_wrap=True, end="")


def sides(result: DemoResult) -> dict[str, Profile]:
    """Returns the profiles before and after, by these names."""
    return {"before": result.profile.before, "after": result.profile.after}


def heading(console: Console, text: str) -> None:
    """Prints a heading, after an empty line."""
    console.print()
    console.print(Text(text, "bold"))


def sparkline(curve: Sequence[float], limits: tuple[float, float], ascii_only: bool = False) -> str:
    """Returns the curve as one line of at most WIDTH bars. Each bar is the mean of an equal share of the steps.

    Args:
        curve: The losses.
        limits: The values of the lowest and the highest bar.
        ascii_only: Whether to use only ASCII characters.
    """
    low, high = limits
    bars = _PLAIN_BARS if ascii_only else _BARS
    count = min(WIDTH, len(curve))
    edges = [len(curve) * i // count for i in range(count + 1)]
    means = [sum(curve[a:b]) / (b - a) for a, b in pairwise(edges)]
    top = len(bars) - 1
    return "".join(bars[min(top, max(0, round((mean - low) / (high - low or 1.0) * top)))] for mean in means)
