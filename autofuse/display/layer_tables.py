"""The tables of layers and of the places in them. This file does not depend on how tables are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autofuse.display.folding import (
    RepeatedLayers,
    RepeatedPlaces,
    fold_layers,
    folded_places,
    gain_together,
    own_share,
    without_beginning,
)
from autofuse.results import units
from autofuse.results.profile_parts import OPTIMIZER, OUTSIDE, Layer, Regime, Work
from autofuse.results.repeated_names import patterns_of
from autofuse.results.table import Cell, Column, Table, Tone, without_columns, without_empty_columns

if TYPE_CHECKING:
    from autofuse.results.profile import Profile

STATUS_TONES: dict[str, Tone] = {"fused": "good", "applies": "warn", "declined": "quiet", "rolled-back": "bad"}
REGIMES: dict[Regime, str] = {
    "compute": "compute", "memory": "memory", "overhead": "overhead", "inconclusive": "inconclusive", "unknown": "",
}  # fmt: skip


def layers_table(profile: Profile, most: int | None = None) -> Table:
    """Repeated layers as one row, sorted by own time; `most` rows, and one row for the rest."""
    folds = fold_layers(profile.layers)
    shown = folds if most is None or len(folds) <= most else folds[:most]
    rows = [_fold_row(fold) for fold in shown]
    if len(shown) < len(folds):
        rows.append(_rest_row(folds[len(shown) :]))
    return _drop_empty_columns(Table("", _LAYER_COLUMNS, tuple(rows)), profile)


def short_layers_table(profile: Profile, most: int) -> Table:
    """The table of layers with fewer columns: numbers have no units, and the rules are on a second line."""
    folds = fold_layers(profile.layers)
    rows = [_short_row(fold) for fold in folds[:most]]
    if len(folds) > most:
        rest = _combine_folds(folds[most:])
        count = Cell(f"{rest.count} more layers", "quiet")
        rows.append((count, *_short_numbers(rest)[:3], *(Cell("") for _ in _SHORT_COLUMNS[4:])))
    return without_empty_columns(Table("", _SHORT_COLUMNS, tuple(rows)))


def both_layers_table(before: Profile, after: Profile, most: int | None = None) -> Table:
    """Layers of the same name before and after, sorted by the longer of the two times.

    A fused operation that replaces its children includes their time, so compare whole times.
    """
    sides = [{fold.name: fold for fold in fold_layers(profile.layers)} for profile in (before, after)]
    names = dict.fromkeys(name for side in sides for name in side)
    longest = {name: max(side[name].work.seconds for side in sides if name in side) for name in names}
    order = sorted(names, key=lambda name: -longest[name])[:most]
    rules = {fold.name: rule_cell(fold.places) for fold in fold_layers(most_informative((before, after)).layers)}
    rows = tuple(_both_row(name, sides, rules.get(name, Cell(""))) for name in order)
    return _drop_empty_columns(Table("", _BOTH_COLUMNS, rows), before, after)


def every_layer_table(profile: Profile) -> Table:
    """One row for each layer in the model's order, with its whole and its own time, and its places in full."""
    return _drop_empty_columns(Table("", _EVERY_COLUMNS, tuple(map(_layer_row, profile.layers))), profile)


def _drop_empty_columns(table: Table, *profiles: Profile) -> Table:
    """The table without empty columns, and without the column of rules if no rules were tried."""
    looked = any(layer.places for profile in profiles for layer in profile.layers)
    return without_empty_columns(table if looked else without_columns(table, ("rule",)))


def places_table(profile: Profile, most: int | None = None) -> Table:
    """The places in the layers: the rule, its saving, or why it is not fused."""
    folds = all_places(profile)
    rows = tuple(_place_row(fold) for fold in folds[:most])
    rest = len(folds) - len(rows)
    return without_empty_columns(Table("", _PLACE_COLUMNS, rows, f"and {rest} more" if rest else ""))


def short_places_table(profile: Profile, most: int) -> Table:
    """The table of places with one line for each place."""
    places = all_places(profile)
    rows = tuple(_short_place_row(place) for place in places[:most])
    rest = len(places) - len(rows)
    return without_empty_columns(Table("", _SHORT_PLACE_COLUMNS, rows, f"and {rest} more" if rest else ""))


def most_informative(profiles: Sequence[Profile]) -> Profile:
    """Of the profiles before and after, the one whose places have more data. `before` has measured savings."""
    described = [p for p in profiles if any(place.measured_seconds is not None for _, place in p.places)]
    return (*described, *(p for p in reversed(profiles) if p.places), profiles[-1])[0]


def all_places(profile: Profile) -> tuple[RepeatedPlaces, ...]:
    """All places. Equal places of repeated layers are combined."""
    patterns = patterns_of({layer.fqn: layer.kind for layer in profile.layers})
    return folded_places((patterns[layer.fqn], place) for layer, place in profile.places)


_NUMBERS = tuple(
    Column(name, "right")
    for name in (
        "forward", "backward", "share", "FLOPs", "bytes", "FLOP/byte", "roofline", "limit", "SM eff.", "kernels",
        "at peak",
    )
)  # fmt: skip
_LAYER_COLUMNS = (Column("layer", wraps=True), Column("rule", wraps=True), *_NUMBERS)
_EVERY_COLUMNS = (
    Column("layer"), Column("class"), Column("calls", "right"), Column("with all below", "right"),
    Column("share with all below", "right"), *_NUMBERS,
    Column("why this limit", wraps=True), Column("rule", wraps=True),
)  # fmt: skip
_SHORT_COLUMNS = (
    Column("layer", wraps=True),
    *(
        Column(name, "right")
        for name in ("fwd ms", "bwd ms", "share", "GFLOP", "FLOP/B", "roof", "limit", "ops", "MiB")
    ),
)
_BOTH_COLUMNS = (
    Column("layer", wraps=True),
    Column("own before", "right"),
    Column("own after", "right"),
    Column("whole before", "right"),
    Column("whole after", "right"),
    Column("rule", wraps=True),
)
_SHORT_PLACE_COLUMNS = (
    Column("rule"),
    Column("layer", wraps=True),
    Column("takes", "right"),
    Column("would save", "right"),
    Column("step gains", "right"),
    Column("becomes, or reason", wraps=True),
)
_PLACE_COLUMNS = (
    Column("rule"),
    Column("layer", wraps=True),
    Column("status"),
    Column("takes", "right"),
    Column("would save", "right"),
    Column("step gains", "right"),
    Column("saved", "right"),
    Column("becomes, or reason", wraps=True),
)


def layer_name(fqn: str) -> str:
    """The name of a layer for people."""
    return {"": "(the model itself)", OUTSIDE: "(outside of modules)", OPTIMIZER: "(optimizer)"}.get(fqn, fqn)


def name_with_count(fold: RepeatedLayers | RepeatedPlaces) -> str:
    """The name of repeated layers with their number: "h.*.attn ×12"."""
    return layer_name(fold.name) + (f" ×{fold.count}" if fold.count > 1 else "")


def _numbers(forward: Work, backward: Work, part: RepeatedLayers | Layer, share: float) -> tuple[Cell, ...]:
    work = forward + backward
    return (
        Cell(units.duration(forward.seconds)),
        Cell(units.duration(backward.seconds)),
        Cell(units.percent(share)),
        Cell(units.amount(work.flops, "") if work.flops else ""),
        Cell(units.size(work.bytes) if work.bytes else ""),
        Cell("" if not work.flops or work.intensity is None else units.digits(work.intensity)),
        Cell("" if part.roofline is None else units.percent(part.roofline)),
        Cell(REGIMES[part.regime]),
        Cell("" if part.sm_efficiency is None else units.percent(part.sm_efficiency)),
        Cell(str(work.operators) if work.operators else ""),
        Cell("" if part.peak_bytes is None else units.size(part.peak_bytes)),
    )


def _fold_row(fold: RepeatedLayers) -> tuple[Cell, ...]:
    numbers = _numbers(fold.forward, fold.backward, fold, fold.share)
    return (Cell(name_with_count(fold)), rule_cell(fold.places), *numbers)


def _rest_row(folds: Sequence[RepeatedLayers]) -> tuple[Cell, ...]:
    rest = _combine_folds(folds)
    numbers = _numbers(rest.forward, rest.backward, rest, rest.share)
    kept = [Cell(cell.text if i in (0, 1, 2) else "", "quiet") for i, cell in enumerate(numbers)]
    return (Cell(f"{rest.count} more", "quiet"), Cell(""), *kept)


def _combine_folds(folds: Sequence[RepeatedLayers]) -> RepeatedLayers:
    return RepeatedLayers("", "", tuple(layer for fold in folds for layer in fold.layers))


def _short_row(fold: RepeatedLayers) -> tuple[Cell, ...]:
    rules = "".join(f"\n  {rule}" for rule in rules_in_words(fold.places))
    name = Cell(without_beginning(name_with_count(fold)) + rules, rule_cell(fold.places).tone if rules else "plain")
    return (name, *_short_numbers(fold))


def _short_numbers(fold: RepeatedLayers) -> tuple[Cell, ...]:
    work = fold.work
    return (
        Cell(f"{1e3 * fold.forward.seconds:.2f}"),
        Cell(f"{1e3 * fold.backward.seconds:.2f}"),
        Cell(f"{100 * fold.share:.1f} %"),
        Cell(f"{work.flops / 1e9:.2f}" if work.flops else ""),
        Cell(units.digits(work.intensity) if work.flops and work.intensity else ""),
        Cell("" if fold.roofline is None else f"{100 * fold.roofline:.0f} %"),
        Cell(REGIMES[fold.regime]),
        Cell(str(work.operators) if work.operators else ""),
        Cell("" if fold.peak_bytes is None else f"{fold.peak_bytes / 2**20:,.1f}"),
    )


def _both_row(name: str, sides: Sequence[Mapping[str, RepeatedLayers]], rule: Cell) -> tuple[Cell, ...]:
    folds = [side.get(name) for side in sides]
    there = [fold for fold in folds if fold is not None]
    times = [Cell(units.duration(fold.work.seconds) if fold else units.NOT_KNOWN) for fold in folds]
    whole = [Cell(units.duration(fold.seconds) if fold else units.NOT_KNOWN, "quiet") for fold in folds]
    return (Cell(name_with_count(there[0])), *times, *whole, rule)


def _layer_row(layer: Layer) -> tuple[Cell, ...]:
    numbers = _numbers(layer.own_forward, layer.own_backward, layer, own_share(layer))
    places = folded_places((layer.fqn, place) for place in layer.places)
    return (
        Cell(layer_name(layer.fqn)), Cell(layer.kind, "quiet"), Cell(str(layer.calls)),
        Cell(units.duration(layer.seconds)), Cell(units.percent_within(layer.share, layer.share_interval)),
        *numbers, Cell(layer.why, "quiet"), rule_cell(places, reasons=True),
    )  # fmt: skip


def rule_cell(places: Sequence[RepeatedPlaces], reasons: bool = False) -> Cell:
    """The rules of a layer with their predicted or measured gains; "none" if no rule applies."""
    if not places:
        return Cell("none", "quiet")
    tone = min((STATUS_TONES[place.status] for place in places), key=("bad", "warn", "good", "quiet").index)
    described = [place_in_words(place, True) for place in places] if reasons else rules_in_words(places)
    return Cell("; ".join(described), tone)


def rules_in_words(places: Sequence[RepeatedPlaces]) -> list[str]:
    """Each rule once for each status, with the gain of all its places together."""
    groups: dict[tuple[str, ...], list[RepeatedPlaces]] = {}
    for place in places:
        groups.setdefault((place.rule, place.status, place.part_of.partition(" ")[0]), []).append(place)
    gains = (gain_together(place.predicted_gain for place in group) for group in groups.values())
    return [
        place_in_words(replace(group[0], predicted_gain=gain))
        for group, gain in zip(groups.values(), gains, strict=True)
    ]


def place_in_words(place: RepeatedPlaces, reason: bool = False) -> str:
    """A place as text: "AF101 applies: 1.21x", "AF301 in AF304: 1.05x", "AF201 declined"; then perhaps the reason."""
    words = f"{place.rule} {place.status}"
    if place.status == "applies":
        words = f"{place.rule} in {place.part_of.partition(' ')[0]}" if place.part_of else words
        words += f": {units.gain(place.predicted_gain)}" if place.predicted_gain is not None else ""
    return f"{words}; {place.reason}" if reason and place.reason else words


def _short_place_row(place: RepeatedPlaces) -> tuple[Cell, ...]:
    _, layer, status, takes, saving, gains, *_ = _place_row(place)
    described = place.reason if place.status == "declined" or not place.operation else place.operation
    described += f", in {place.part_of}" if place.part_of and described == place.operation else ""
    tone = STATUS_TONES[place.status]
    rule = Cell(f"{place.rule} {status.text}", tone)
    return (rule, layer, takes, saving, gains, Cell(described.removeprefix("autofuse."), "quiet"))


def _flop(count: float | None) -> str:
    return units.amount(count, "FLOP")


def _saving_text(count: int, shown: Callable[[float | None], str]) -> str:
    """The saving; for a negative one, how much more is needed."""
    return shown(count) if count > 0 else f"{shown(-count)} more"


def _predicted_text(place: RepeatedPlaces) -> str:
    """The saving that is predicted: the range if there is one, otherwise the number."""
    if place.predicted_saving is None:
        return ""
    if place.saving_range is None:
        return units.duration(place.predicted_saving)
    low, high = (units.duration(abs(end)) for end in place.saving_range)
    return f"{'-' if place.saving_range.low < 0 else ''}{low} to {'-' if place.saving_range.high < 0 else ''}{high}"


def _place_row(place: RepeatedPlaces) -> tuple[Cell, ...]:
    saving = _predicted_text(place)
    if place.measured_saving is not None:
        saving = f"{saving} (measured {units.duration(place.measured_saving)})".strip()
    saved = [_saving_text(place.saved_bytes, units.size)] if place.saved_bytes else []
    saved += [_saving_text(place.saved_flops, _flop)] if place.saved_flops else []
    described = "; ".join(part for part in (place.operation, place.reason, place.where) if part)
    return (
        Cell(place.rule), Cell(name_with_count(place)), Cell(place.status, STATUS_TONES[place.status]),
        Cell(units.duration(place.seconds) if place.seconds is not None else ""), Cell(saving),
        Cell(units.gain(place.predicted_gain) if place.predicted_gain is not None else ""), Cell(", ".join(saved)),
        Cell(described),
    )  # fmt: skip
