"""A profile on a terminal: what matters on one screen. The full lists are in its HTML page and its JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from autofuse.report import markup, terminal, units
from autofuse.report.comparison import TONES, Comparison
from autofuse.report.ladder import Rung
from autofuse.report.layer_tables import all_places, both_layers_table, layers_table, places_table, short_layers_table
from autofuse.report.parts import Share
from autofuse.report.profile_tables import (
    BESIDE,
    MEMORY_PARTS,
    Sides,
    categories_table,
    ladder_table,
    loss_in_words,
    memory_table,
    rungs_of,
    share_of,
    share_title,
    shares_table,
)
from autofuse.report.table import Table

if TYPE_CHECKING:
    from autofuse.report.profile import Profile

_BAR = 24
_LAYERS, _PLACES = 8, 5
_QUIET = terminal.STYLES["quiet"]


@dataclass(frozen=True)
class _Fitted:
    """A table that leaves columns out where the terminal is narrow, in the order of `give_way`."""

    table: Table
    give_way: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield terminal.drawn(terminal.fitted(self.table, options.max_width, self.give_way))


def summary(profile: Profile) -> RenderableType:
    """One profile, for a terminal of about 100 columns and 50 lines."""
    sides = {"": profile}
    return Group(
        Text(_title(profile), "bold"),
        _facts(dict(_step_facts(profile))),
        *_headed("how much of the machine it uses", _ladder(sides)),
        *_layers(profile),
        *_headed("where fusing would help", *_places(profile)),
        *_notes(profile),
    )


def summary_of_both(before: Profile, after: Profile, comparison: Comparison | None = None) -> RenderableType:
    """Two profiles of one model side by side, with the verdict of the measurement that set one against the other."""
    sides = {"before": before, "after": after}
    verdict = [Text(comparison.summary, terminal.STYLES[TONES[comparison.verdict]])] if comparison else []
    why = {"why": Text(comparison.reason)} if comparison else {}
    steps = {side: _joined(_step(profile)) for side, profile in sides.items()}
    return Group(
        Text(f"{_title(before)}, before and after", "bold"),
        *verdict,
        _facts({**why, **steps, **dict(_both_facts(sides))}),
        *_headed("how much of the machine it uses", _ladder(sides)),
        *_layers_of_both(before, after),
        *_headed("what fusing was predicted to save, and saved", *_places(after)),
        *_notes(after),
    )


def notebook(sides: Sides, comparison: Comparison | None = None) -> str:
    """The same as HTML tables that can stand in a notebook."""
    tables = [comparison.table()] if comparison else []
    tables += [ladder_table(sides), shares_table(sides), memory_table(sides), categories_table(sides)]
    for profile in sides.values():
        tables += [layers_table(profile, _LAYERS), places_table(profile, _PLACES)]
    return "".join(markup.table(table) for table in tables if table.rows)


def _title(profile: Profile) -> str:
    origin = {"live": "", "script": "script", "trace": "from a trace"}[profile.kind]
    return " · ".join(part for part in (profile.name, origin, profile.roof.device) if part)


def _step_facts(profile: Profile) -> Iterator[tuple[str, Text]]:
    yield "step", _joined(_step(profile))
    yield from _time_facts(profile)
    yield "memory", _memory(profile)
    categories = _categories(profile)
    if categories:
        yield "operators", categories
    if len(profile.ranks) > 1:
        yield "ranks", _ranks(profile)
    yield "regime", _regime(profile)
    yield "power", _power(profile)


def _step(profile: Profile) -> list[str]:
    timing = profile.timing
    if not timing.seconds:
        return ["n/a, because no step was timed"]
    spread = f" ({units.duration(timing.interval.low)} to {units.duration(timing.interval.high)})"
    counted = f"{len(timing.seconds)} step" + ("s" if len(timing.seconds) > 1 else "")
    rates = ((timing.samples_per_second, "samples"), (timing.tokens_per_second, "tokens"))
    return [
        units.duration(timing.median) + (spread if len(timing.seconds) > 1 else ""),
        counted,
        *(units.rate(value, unit) for value, unit in rates if value is not None),
    ]


def _time_facts(profile: Profile) -> Iterator[tuple[str, Text]]:
    parts = [share for share in profile.shares if share.name not in BESIDE]
    beside = [share for share in profile.shares if share.name in BESIDE]
    if parts:
        yield "time", _shares(parts)
    if beside:
        yield "beside it", _shares(beside)


def _shares(shares: Sequence[Share]) -> Text:
    """The known ones, then the others by the reason why they are not known."""
    known = [f"{share_title(s.name)} {units.percent(s.share)}" for s in shares if s.share is not None]
    unknown: defaultdict[str, list[str]] = defaultdict(list)
    for share in shares:
        if share.share is None:
            unknown[share.reason].append(share_title(share.name))
    reasons = [f"{', '.join(names)}: n/a" + (f", because {_end(why)}" if why else "") for why, names in unknown.items()]
    return _joined(known, reasons)


def _memory(profile: Profile) -> Text:
    memory = profile.memory
    if memory.peak_bytes is None:
        return _unknown(memory.reason)
    parts = {part: getattr(memory, part) for part in MEMORY_PARTS if getattr(memory, part)}
    largest = sorted(parts, key=lambda part: -parts[part])
    return _joined([f"peak {units.size(memory.peak_bytes)}", *(f"{p} {units.size(parts[p])}" for p in largest)])


def _categories(profile: Profile) -> Text:
    total = sum(category.seconds for category in profile.categories.values())
    if not total:
        return Text("")
    longest = sorted(profile.categories.items(), key=lambda item: -item[1].seconds)[:6]
    return _joined([f"{name} {units.percent(category.seconds / total)}" for name, category in longest])


def _ranks(profile: Profile) -> Text:
    seconds = [rank.seconds for rank in profile.ranks]
    slowest = max(profile.ranks, key=lambda rank: rank.seconds)
    spread = (max(seconds) - min(seconds)) / max(seconds) if max(seconds) else 0.0
    return _joined([
        f"{len(seconds)}", f"the slowest is rank {slowest.rank} with {units.duration(slowest.seconds)}",
        f"spread {units.percent(spread)} of it",
    ])  # fmt: skip


def _regime(profile: Profile) -> Text:
    probe = profile.probe
    if probe.ratio is None:
        return _unknown(probe.reason)
    within = f" ({probe.interval.low:.2f} to {probe.interval.high:.2f})" if probe.interval else ""
    return _joined([f"{probe.verdict}: twice the batch takes {probe.ratio:.2f}x the time{within}"])


def _power(profile: Profile) -> Text:
    power = profile.power
    if power.watts is None:
        return _unknown(power.reason)
    parts = [f"{units.digits(power.watts)} W"]
    if power.joules_per_step is not None:
        parts.append(f"{units.digits(power.joules_per_step)} J/step")
    if power.tokens_per_joule is not None:
        parts.append(f"{units.digits(power.tokens_per_joule)} tokens/J")
    return _joined(parts)


def _both_facts(sides: Sides) -> Iterator[tuple[str, Text]]:
    """Every share and every kind of memory, before and after in one line each."""
    names = dict.fromkeys(s.name for p in sides.values() for s in p.shares if s.share is not None)
    shares = {name: [share_of(profile, name).seconds for profile in sides.values()] for name in names}
    changes = [f"{share_title(n)} {' → '.join(map(units.duration, pair))}" for n, pair in shares.items()]
    if changes:
        yield "time", _joined(changes)
    memories = [profile.memory for profile in sides.values()]
    if all(memory.peak_bytes is not None for memory in memories):
        parts = ("peak_bytes", *(part for part in MEMORY_PARTS if any(getattr(m, part) for m in memories)))
        sizes = {part: " → ".join(units.size(getattr(m, part)) for m in memories) for part in parts}
        yield "memory", _joined([f"{part.removesuffix('_bytes')} {both}" for part, both in sizes.items()])


def _ladder(sides: Sides) -> RenderableType:
    """The rungs that are known with bars; the others by the reason why they are not."""
    rungs = rungs_of(sides)
    known = [row for row in rungs if any(rung.value is not None for rung in row.values())]
    grid = Grid.grid(padding=(0, 2))
    for _ in range(1 + 2 * len(sides)):
        grid.add_column(no_wrap=True)
    for row in known:
        grid.add_row(*_rung_cells(row))
    unknown: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rungs:
        if row not in known:
            first = next(iter(row.values()))
            unknown[first.reason, first.kind.get].append(first.kind.title)
    lines = [_missing(names, reason, get) for (reason, get), names in unknown.items()]
    return Group(*((grid,) if known else ()), *lines)


def _rung_cells(row: Mapping[str, Rung]) -> Iterator[Text]:
    rungs = list(row.values())
    yield Text(rungs[0].kind.title)
    for rung in rungs:
        yield _bar(rung, _BAR if len(rungs) == 1 else _BAR // 2)
        yield Text(units.percent(rung.value).rjust(7), "" if rung.value is not None else _QUIET)
    yield Text(loss_in_words(row), _QUIET)


def _bar(rung: Rung, width: int) -> Text:
    if rung.value is None:
        return Text(" " * width)
    full = round(width * min(1.0, max(0.0, rung.value)))
    return Text.assemble(("█" * full, "blue"), ("░" * (width - full), _QUIET))


def _missing(names: list[str], reason: str, get: str) -> Text:
    why = f"n/a, because {_end(reason)}" if reason else "n/a"
    return Text(f"{', '.join(names)}: {why}" + (f"; to get it, {get}" if get else ""), _QUIET)


def _layers(profile: Profile) -> list[RenderableType]:
    if not profile.layers:
        return []
    table = _Fitted(short_layers_table(profile, _LAYERS), ("ops", "MiB", "FLOP/B", "GFLOP", "roof"))
    return _headed("layers by the time they take themselves", table, _attribution(profile))


def _layers_of_both(before: Profile, after: Profile) -> list[RenderableType]:
    if not before.layers or not after.layers:
        return []
    table = _Fitted(both_layers_table(before, after, _LAYERS), ("whole before", "whole after"))
    return _headed("layers by the time they take themselves", table)


def _attribution(profile: Profile) -> Text:
    told = profile.attribution
    shares = f"{units.percent(told.forward)} of the forward, {units.percent(told.backward)} of the backward"
    parts = [f"given to modules: {shares}"]
    if told.overhead is not None:
        parts.append(f"under the instruments a step took {told.overhead:.2f}x as long")
    return Text("; ".join((*parts, *map(_end, told.notes))), _QUIET)


def _places(profile: Profile) -> list[RenderableType]:
    if not all_places(profile):
        return []
    return [_Fitted(places_table(profile, _PLACES), ("saved", "status", "takes"))]


def _headed(heading: str, *parts: RenderableType) -> list[RenderableType]:
    return [Text(), Text(heading, "bold"), *parts] if parts else []


def _notes(profile: Profile) -> list[RenderableType]:
    if not profile.notes:
        return []
    return _headed("notes", *(Padding(Text(note), (0, 0, 0, 2)) for note in profile.notes))


def _facts(rows: Mapping[str, Text]) -> Grid:
    grid = Grid.grid(padding=(0, 2))
    for label, content in rows.items():
        grid.add_row(Text(label, _QUIET), content)
    return grid


def _joined(known: Sequence[str], quiet: Sequence[str] = ()) -> Text:
    text = Text(" · ".join(known))
    if quiet:
        text.append((" · " if known else "") + " · ".join(quiet), _QUIET)
    return text


def _unknown(reason: str) -> Text:
    return Text(f"n/a, because {_end(reason) if reason else 'it was not measured'}", _QUIET)


def _end(sentence: str) -> str:
    """Without its full stop, to go on after it."""
    return sentence.rstrip(". ")
