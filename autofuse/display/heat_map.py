"""A heat map of ranks and steps, for pages and terminals. It does not depend on the source of the times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from markupsafe import Markup
from rich.text import Text

from autofuse.results import units
from autofuse.results.profile_parts import RankSteps

_SHADE = 0.05  # of the median; the width of one shade
_SHADES = 6
_MOST_STEPS, _MOST_RANKS = 40, 64  # on a terminal
_BLOCKS = "·░▒▓█"


@dataclass(frozen=True)
class HeatMap:
    """One row for each rank, one column for each step.

    Attributes:
        title: What is shown, in one sentence.
        ranks: The number of each row.
        seconds: Seconds by row and column.
        legend: What the shades stand for.
    """

    title: str
    ranks: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    legend: Mapping[str, str] = field(default_factory=dict)

    @property
    def middle(self) -> float:
        """The median of all cells, in seconds."""
        return median(value for row in self.seconds for value in row)

    def shade(self, seconds: float) -> int:
        """From 0 (at most the median) to 5 (more than a fifth above it)."""
        if self.middle <= 0:
            return 0
        return min(_SHADES - 1, max(0, math.ceil((seconds / self.middle - 1) / _SHADE - 1e-9)))

    def markup(self) -> Markup:
        """A table: rows and columns have headings, and every cell its number."""
        steps = range(1, len(self.seconds[0]) + 1)
        head = Markup().join(Markup('<th scope="col" class="right">{}</th>').format(f"step {i}") for i in steps)
        rows = Markup().join(self._row(rank, row) for rank, row in zip(self.ranks, self.seconds, strict=True))
        table = Markup(
            '<table class="heat"><thead><tr><th scope="col">rank</th>{}</tr></thead><tbody>{}</tbody></table>'
        )
        frame = Markup('<div class="scrolls" role="region" aria-label="{}" tabindex="0">{}</div>')
        return frame.format(self.title, table.format(head, rows))

    def _row(self, rank: int, row: Sequence[float]) -> Markup:
        cell = Markup('<td class="heat-{}">{}</td>')
        cells = Markup().join(cell.format(self.shade(seconds), units.duration(seconds)) for seconds in row)
        return Markup('<tr><th scope="row">{}</th>{}</tr>').format(rank, cells)

    def text(self) -> Text:
        """One character for each cell, for a terminal."""
        lines = [f"{self.title} {_terminal_legend()}"]
        for rank, row in list(zip(self.ranks, self.seconds, strict=True))[:_MOST_RANKS]:
            marks = "".join(_BLOCKS[min(len(_BLOCKS) - 1, self.shade(value))] for value in row[:_MOST_STEPS])
            lines.append(f"rank {rank:>3}  {marks}  {units.duration(median(row))}")
        return Text("\n".join(lines))


def heat_map(ranks: Sequence[RankSteps]) -> HeatMap | None:
    """The time of each rank in each step, without the time that it waits for other ranks; None if that is unknown.

    Ranks that wait for each other have steps of equal length, so the length alone would hide the slow one.
    """
    known = [rank for rank in ranks if rank.seconds]
    if len(known) < 2 or len({len(rank.seconds) for rank in known}) != 1:
        return None
    waits = all(len(rank.waiting) == len(rank.seconds) for rank in known)
    without = ", without its waits for other ranks" if waits else ""
    return HeatMap(
        f"Each rank's time in each step{without}.",
        tuple(rank.rank for rank in known),
        tuple(_row(rank, waits) for rank in known),
        {"heat-0": "at most the median", "heat-5": "more than a fifth above the median"},
    )


def _row(rank: RankSteps, waits: bool) -> tuple[float, ...]:
    if not waits:
        return rank.seconds
    return tuple(max(0.0, step - wait) for step, wait in zip(rank.seconds, rank.waiting, strict=True))


def _terminal_legend() -> str:
    described = [f"{_BLOCKS[0]} at most the median"]
    described += [f"{mark} to {_SHADE * shade:.0%} above" for shade, mark in enumerate(_BLOCKS[1:-1], 1)]
    return f"({', '.join([*described, f'{_BLOCKS[-1]} more'])})"
