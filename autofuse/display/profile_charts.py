"""The charts of a profile: which numbers each chart shows. Other files draw them.

Every chart takes sides, as the tables do: one profile under "", or two under "before" and "after". A chart without
numbers is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from autofuse.display.bars import BarChart, BarRow, Segment
from autofuse.display.charts import LineChart, StripChart
from autofuse.display.folding import RepeatedLayers, RepeatedPlaces, fold_layers
from autofuse.display.layer_tables import most_informative, name_with_count, rule_cell, rules_in_words
from autofuse.display.profile_tables import (
    BESIDE,
    MEMORY_PARTS,
    Sides,
    category_names,
    levels_of,
    loss_in_words,
    share_names,
    share_of,
    share_title,
    value_of,
)
from autofuse.display.roofline import Dot, RooflineChart
from autofuse.display.timeline import TimelineChart
from autofuse.results import units

if TYPE_CHECKING:
    from autofuse.results.ladder import Level
    from autofuse.results.profile import Profile

_LAYERS = 8
_PHASES = {"forward": "part-0", "backward": "part-1"}
_SHARES = {**_PHASES, "optimizer": "part-2", "data": "part-3", "communication": "part-4", "idle": "part-7"}
_REST = "part-7"
_KINDS = (
    "part-5",
    "part-6",
    "part-2",
    "part-3",
    "part-4",
    "part-0",
    "part-1",
)  # for kinds in the timeline that are not phases


def colour(side: int, sides: Sides) -> str:
    """The class of a side's marks, the same in every chart."""
    return f"series-{side}" if len(sides) > 1 else "part-0"


def side_legend(sides: Sides) -> dict[str, str]:
    """The legend of before and after; empty for one profile."""
    return {colour(i, sides): side for i, side in enumerate(sides)} if len(sides) > 1 else {}


def ladder_chart(sides: Sides) -> BarChart:
    """Every known level: a bar for its value, then its loss; a gap if a side does not know it."""
    every = tuple(_level_row(levels, sides) for levels in levels_of(sides))
    rows = tuple(row for row in every if row.value != units.NOT_KNOWN) or every[:1]
    known = [f"{row.label} {row.value}" for row in rows if row.value != units.NOT_KNOWN]
    legend = {**side_legend(sides), "lost": "lost, compared with the level above"}
    described = f"Share of the whole step, level by level: {', '.join(known) or 'none is known'}."
    return BarChart("Utilisation: each bar is a share of the whole step", described, rows, legend)


def shares_chart(sides: Sides) -> BarChart | None:
    """One bar for each side, as long as its step; below it what overlaps with the other parts."""
    longest = max((_step_seconds(profile) for profile in sides.values()), default=0.0)
    names = [name for name in share_names(sides) if name not in BESIDE]
    if not longest or not any(share_of(p, name).share for p in sides.values() for name in names):
        return None
    rows = [
        BarRow(
            side or "one step", units.duration(_step_seconds(profile)), (_stacked_segments(profile, names, longest),)
        )
        for side, profile in sides.items()
    ]
    # A part that is zero or unknown on all sides needs no bar: the table has it, with the reason.
    rows += [
        _overlapping_row(name, sides, longest)
        for name in share_names(sides)
        if name in BESIDE and any(share_of(p, name).share for p in sides.values())
    ]
    legend = {_SHARES.get(name, "part-5"): share_title(name) for name in names}
    described = "; ".join(f"{row.label} {row.value}" for row in rows)
    return BarChart("The parts of one step", described, tuple(rows), legend)


def memory_chart(sides: Sides) -> BarChart | None:
    """One bar for each side, as long as its peak memory."""
    peaks = {side: profile.memory.peak_bytes for side, profile in sides.items()}
    largest = max((peak or 0 for peak in peaks.values()), default=0)
    if not largest:
        return None
    kinds = {part: f"part-{i}" for i, part in enumerate(MEMORY_PARTS)}
    rows = tuple(
        BarRow(side or "peak", units.size(peaks[side]), (_memory_bar(profile, kinds, largest),))
        for side, profile in sides.items()
    )
    legend = {kinds[part]: part for part in MEMORY_PARTS if any(getattr(p.memory, part) for p in sides.values())}
    return BarChart("Memory at the step's peak", "; ".join(f"{r.label} {r.value}" for r in rows), rows, legend)


def layers_chart(sides: Sides) -> BarChart | None:
    """Layers by own time, forward and backward, with the rules that apply."""
    folds = [{fold.name: fold for fold in fold_layers(profile.layers)} for profile in sides.values()]
    longest: dict[str, float] = {}
    for side in folds:
        for name, fold in side.items():
            longest[name] = max(longest.get(name, 0.0), fold.work.seconds)
    order = sorted((name for name in longest if longest[name] > 0), key=lambda name: -longest[name])[:_LAYERS]
    if not order:
        return None
    places = {fold.name: fold.places for fold in fold_layers(most_informative(tuple(sides.values())).layers)}
    rows = tuple(_layer_row(name, folds, longest[order[0]], places.get(name, ())) for name in order)
    both = " (above: before, below: after)" if len(sides) > 1 else ""
    legend = {kind: name for name, kind in _PHASES.items()}
    described = "; ".join(f"{row.hint} {row.value}" for row in rows)
    return BarChart(f"Layers by own time{both}", described, rows, legend)


def categories_chart(sides: Sides) -> BarChart | None:
    """Operators or kernels by category."""
    names = category_names(sides)
    seconds = {n: [p.categories[n].seconds if n in p.categories else 0.0 for p in sides.values()] for n in names}
    largest = max((max(pair) for pair in seconds.values()), default=0.0)
    if not largest:
        return None
    rows = tuple(
        BarRow(
            name, " → ".join(map(units.duration, pair)),
            tuple((Segment(value / largest, colour(i, sides)),) for i, value in enumerate(pair)),
        )
        for name, pair in seconds.items()
    )  # fmt: skip
    described = "; ".join(f"{row.label} {row.value}" for row in rows)
    return BarChart("Time by kind of operator", described, rows, side_legend(sides))


def roofline_chart(sides: Sides) -> RooflineChart | None:
    """One dot for each group of equal layers. With two sides, the dots of `before` are pale and have no names."""
    profiles = list(sides.values())
    dots = [dot for fold in fold_layers(profiles[-1].layers) for dot in _dot(fold)]
    earlier = [dot for p in profiles[:-1] for fold in fold_layers(p.layers) for dot in _dot(fold, "lost", "before: ")]
    if not dots:
        return None
    names = {"good": "fused", "warn": "a rule applies", "bad": "rolled back", "part-7": "no rule applies"}
    looked = any(profile.places for profile in profiles)  # without places, it is unknown where a rule applies
    legend = {kind: name for kind, name in names.items() if looked and any(dot.kind == kind for dot in dots)}
    legend |= {"lost": "before"} if earlier else {}
    described = (
        f"{len(dots)} groups of layers by FLOPs per byte and FLOP/s, without layers whose FLOPs are not counted."
    )
    return RooflineChart("The FLOP/s that each layer reaches", described, profiles[-1].roof, (*earlier, *dots), legend)


def timeline_chart(profile: Profile) -> TimelineChart | None:
    """The timeline of one step."""
    if not any(span.seconds > 0 for span in profile.timeline):
        return None
    kinds = _timeline_kinds(span.kind or span.name for span in profile.timeline)
    legend = {kind: name for name, kind in kinds.items() if kind != "part-7"}
    legend |= {"part-7": "other"} if "part-7" in kinds.values() else {}
    lanes = dict.fromkeys(span.lane for span in profile.timeline)
    described = f"{len(profile.timeline)} spans in {', '.join(lanes)}."
    return TimelineChart("One step as it ran", described, profile.timeline, kinds, legend)


def steps_chart(sides: Sides) -> StripChart | None:
    """Each timed step as a dot, in milliseconds."""
    samples = {side or "step": [1e3 * s for s in p.timing.seconds] for side, p in sides.items() if p.timing.seconds}
    finite = all(math.isfinite(value) for line in samples.values() for value in line)
    return StripChart("Every timed step; the line is the median", "ms", samples) if samples and finite else None


def losses_chart(sides: Sides) -> LineChart | None:
    """The loss of every step."""
    curves = {side or "loss": profile.losses for side, profile in sides.items() if profile.losses}
    if not any(math.isfinite(value) for curve in curves.values() for value in curve):
        return None
    return LineChart("The loss of each step", "step", "loss", curves)


def _level_row(levels: Mapping[str, Level], sides: Sides) -> BarRow:
    title = next(iter(levels.values())).kind.title
    if all(level.value is None for level in levels.values()):
        return BarRow(title, units.NOT_KNOWN, ((),))
    value = " → ".join(value_of(level) for level in levels.values())
    bars = tuple(_level_bar(level, colour(i, sides)) for i, level in enumerate(levels.values()))
    return BarRow(title, value, bars, loss_in_words(levels), short=title.partition("(")[2].rstrip(")"))


def _level_bar(level: Level, kind: str) -> tuple[Segment, ...]:
    if level.value is None:
        return ()
    lost = (Segment(level.loss, "lost", f"{units.percent(level.loss)} lost"),) if level.loss else ()
    return (Segment(level.value, kind, units.percent(level.value)), *lost)


def _step_seconds(profile: Profile) -> float:
    """The seconds of the step, to which the shares add up."""
    known = [s.seconds / s.share for s in profile.shares if s.seconds and s.share]
    middle = profile.timing.median
    return middle if math.isfinite(middle) else next(iter(known), 0.0)


def _stacked_segments(profile: Profile, names: Iterable[str], longest: float) -> tuple[Segment, ...]:
    segments = []
    for name in names:
        share = share_of(profile, name).share
        if share:
            described = f"{share_title(name)}: {units.percent(share)}"
            segments.append(Segment(share * _step_seconds(profile) / longest, _SHARES.get(name, "part-5"), described))
    return tuple(segments)


def _overlapping_row(name: str, sides: Sides, longest: float) -> BarRow:
    shares = [share_of(profile, name) for profile in sides.values()]
    bars = tuple(
        () if share.share is None else (Segment(share.share * _step_seconds(p) / longest, "part-4"),)
        for share, p in zip(shares, sides.values(), strict=True)
    )
    known = [units.percent(share.share) for share in shares]
    return BarRow(share_title(name), " → ".join(known), bars, "overlaps with the parts above")


def _memory_bar(profile: Profile, kinds: Mapping[str, str], largest: int) -> tuple[Segment, ...]:
    if profile.memory.peak_bytes is None:
        return ()
    sizes = {part: getattr(profile.memory, part) for part in kinds}
    return tuple(Segment(n / largest, kinds[part], f"{part}: {units.size(n)}") for part, n in sizes.items() if n)


def _layer_row(
    name: str, sides: list[dict[str, RepeatedLayers]], longest: float, places: tuple[RepeatedPlaces, ...]
) -> BarRow:
    folds = [side.get(name) for side in sides]
    there = [fold for fold in folds if fold is not None]
    bars = tuple(_phases(fold, longest) if fold else () for fold in folds)
    value = " → ".join(units.duration(fold.work.seconds) if fold else units.NOT_KNOWN for fold in folds)
    rules = "; ".join(rules_in_words(places))
    title = name_with_count(there[0])
    return BarRow(title, value, bars, rules, rule_cell(places).tone, title)


def _phases(fold: RepeatedLayers, longest: float) -> tuple[Segment, ...]:
    works = {"forward": fold.forward, "backward": fold.backward}
    return tuple(
        Segment(work.seconds / longest, _PHASES[phase], f"{phase}: {units.duration(work.seconds)}")
        for phase, work in works.items()
    )


def _dot(fold: RepeatedLayers, kind: str = "", prefix: str = "") -> list[Dot]:
    work = fold.work
    if not work.flops or not work.intensity or not work.seconds:
        return []
    rate = work.flops / work.seconds
    statuses = {place.status for place in fold.places}
    fitting = (("fused", "good"), ("rolled-back", "bad"), ("applies", "warn"))
    own = next((k for status, k in fitting if status in statuses), "part-7")
    name = name_with_count(fold)
    described = f"{prefix}{name}: {units.digits(work.intensity)} FLOPs per byte, {units.amount(rate, 'FLOP/s')}, "
    title = described + units.duration(work.seconds)
    return [Dot("" if prefix else name, work.intensity, rate, work.seconds, kind or own, title)]


def _timeline_kinds(names: Iterable[str]) -> dict[str, str]:
    """Phases have the colours that they have in other charts; other kinds get the remaining colours."""
    kinds: dict[str, str] = {}
    for name in dict.fromkeys(names):
        kinds[name] = _REST if name == "other" else _SHARES.get(name, "")
    free = iter([kind for kind in _KINDS if kind not in kinds.values()])
    return {name: kind or next(free, "part-7") for name, kind in kinds.items()}
