"""A profile on one screen of a terminal. The full lists are in its HTML page and its JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from autofuse.display import diagnosis, markup, terminal
from autofuse.display.heat_map import heat_map
from autofuse.display.layer_tables import (
    all_places,
    both_layers_table,
    layers_table,
    most_informative,
    places_table,
    short_layers_table,
    short_places_table,
)
from autofuse.display.profile_facts import facts_of, facts_of_both, step_of, title_of, without_full_stop
from autofuse.display.profile_tables import (
    Sides,
    categories_table,
    ladder_table,
    levels_of,
    loss_in_words,
    memory_table,
    missing_in_words,
    shares_table,
    value_of,
)
from autofuse.results import units
from autofuse.results.comparison import TONES, Comparison
from autofuse.results.ladder import ON_CPU, Level
from autofuse.results.table import Table

if TYPE_CHECKING:
    from autofuse.results.profile import Profile

_BAR = 24  # characters
_ON_GPU = "profile on a GPU"  # the page and the JSON have the instructions for each level
_LAYERS, _PLACES = 8, 5
_MOST_REASONS = 2  # more reasons why levels are missing would hide the known levels
_QUIET = terminal.STYLES["quiet"]


@dataclass(frozen=True)
class _Fitted:
    """A table that leaves out columns on a narrow terminal, in the order of `droppable`."""

    table: Table
    droppable: tuple[tuple[str, ...], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        drawn = terminal.as_rich(terminal.fitted(self.table, options.max_width, self.droppable))
        drawn.show_edge = False  # a heading is directly above
        yield drawn


def summary(profile: Profile) -> RenderableType:
    """One profile, for a terminal of about 100 columns and 50 lines."""
    sides = {"": profile}
    return Group(
        Text(title_of(profile), "bold"),
        *_diagnosis(profile),
        _facts_grid(facts_of(profile)),
        *_layers_part(profile),
        *_with_heading("where fusing would help", *places(profile)),
        *_with_heading("how much of the machine it uses", ladder(sides)),
        *_ranks_part(profile),
        *_notes_part(profile),
    )


def summary_of_both(before: Profile, after: Profile, comparison: Comparison | None = None) -> RenderableType:
    """Two profiles of one model next to each other, with the verdict of their comparison."""
    sides = {"before": before, "after": after}
    verdict = [Text(comparison.summary, terminal.STYLES[TONES[comparison.verdict]])] if comparison else []
    why = [("why", Text(comparison.reason))] if comparison else []
    steps = [(side, step_of(profile)) for side, profile in sides.items()]
    return Group(
        Text(f"{title_of(before)}, before and after", "bold"),
        *verdict,
        _facts_grid([*why, *steps, *facts_of_both(sides)]),
        *_with_heading("how much of the machine it uses", ladder(sides)),
        *_layers_of_both(before, after),
        *_with_heading("predicted and measured savings of fusing", *places(most_informative((before, after)))),
        *_notes_part(after),
    )


def notebook(sides: Sides, comparison: Comparison | None = None) -> str:
    """The summary as HTML tables for a notebook."""
    last = list(sides.values())[-1].diagnosis
    first = "" if last is None else diagnosis.heading(last)
    tables = [comparison.table()] if comparison else []
    tables += [diagnosis.actions_table(last)] if last else []
    tables += [ladder_table(sides), shares_table(sides), memory_table(sides), categories_table(sides)]
    for profile in sides.values():
        tables += [layers_table(profile, _LAYERS), places_table(profile, _PLACES)]
    return first + "".join(markup.table(table) for table in tables if table.rows)


def ladder(sides: Sides) -> RenderableType:
    """The known levels with bars, then the names of the others with the reason why they are missing."""
    levels = levels_of(sides)
    known = [row for row in levels if any(level.value is not None for level in row.values())]
    grid = Grid.grid(padding=(0, 2))
    for _ in range(1 + 2 * len(sides)):
        grid.add_column(no_wrap=True)
    for row in known:
        grid.add_row(*_level_cells(row))
    unknown: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for row in levels:
        if row not in known:
            first = next(iter(row.values()))
            get = _ON_GPU if first.reason == ON_CPU else first.kind.get
            unknown[first.reason, get].append(first.kind.title)
    lines = [_missing_levels_line(names, reason, get) for (reason, get), names in unknown.items()]
    if known and len(lines) > _MOST_REASONS:
        names = ", ".join(name for some in unknown.values() for name in some)
        lines = [Text(f"Not available: {names}. The page and the JSON say why, and how to get them.", _QUIET)]
    return Group(*((grid,) if known else ()), *lines)


def _level_cells(row: Mapping[str, Level]) -> Iterator[Text]:
    levels = list(row.values())
    yield Text(levels[0].kind.title)
    for level in levels:
        yield _bar(level, _BAR if len(levels) == 1 else _BAR // 2)
        yield Text(value_of(level).rjust(7), "" if level.value is not None else _QUIET)
    yield Text(loss_in_words(row), _QUIET)


def _bar(level: Level, width: int) -> Text:
    if level.value is None:
        return Text(" " * width)
    full = round(width * min(1.0, max(0.0, level.value)))
    return Text.assemble(("█" * full, "blue"), ("░" * (width - full), _QUIET))


def _missing_levels_line(names: list[str], reason: str, get: str) -> Text:
    return Text(f"{', '.join(names)}: {missing_in_words(reason, get)}", _QUIET)


def _layers_part(profile: Profile) -> list[RenderableType]:
    if not profile.layers:
        return []
    table = _Fitted(short_layers_table(profile, _LAYERS), (("ops",), ("MiB",), ("FLOP/B",), ("GFLOP",), ("roof",)))
    return _with_heading("layers by own time", table, _attribution_line(profile))


def _layers_of_both(before: Profile, after: Profile) -> list[RenderableType]:
    if not before.layers or not after.layers:
        return []
    table = _Fitted(both_layers_table(before, after, _LAYERS), (("whole before", "whole after"),))
    return _with_heading("layers by own time", table)


def _attribution_line(profile: Profile) -> Text:
    described = profile.attribution
    shares = f"{units.percent(described.forward)} of the forward, {units.percent(described.backward)} of the backward"
    parts = [f"attributed to modules: {shares}"]
    if described.overhead is not None:
        parts.append(f"a recorded step took {described.overhead:.2f}x as long as a timed one")
    return Text("; ".join((*parts, *map(without_full_stop, described.notes))), _QUIET)


def places(profile: Profile) -> list[RenderableType]:
    """The table of places; nothing if no rule was tried."""
    if not all_places(profile):
        return []
    return [_Fitted(short_places_table(profile, _PLACES), (("takes",),))]


def _ranks_part(profile: Profile) -> list[RenderableType]:
    found = heat_map(profile.rank_steps)
    return _with_heading("ranks and steps", found.text()) if found else []


def _with_heading(heading: str, *parts: RenderableType) -> list[RenderableType]:
    return [Text(), Text(heading, "bold"), *parts] if parts else []


def _notes_part(profile: Profile) -> list[RenderableType]:
    if not profile.notes:
        return []
    return _with_heading("notes", *(Padding(Text(note), (0, 0, 0, 2)) for note in profile.notes))


def _diagnosis(profile: Profile) -> list[RenderableType]:
    """The diagnosis between two empty lines."""
    return [Text(), diagnosis.for_terminal(profile.diagnosis), Text()] if profile.diagnosis else []


def _facts_grid(rows: Iterable[tuple[str, Text]]) -> Grid:
    grid = Grid.grid(padding=(0, 2))
    for label, content in rows:
        grid.add_row(Text(label, _QUIET), content)
    return grid
