"""A profile, or two of one model, as one HTML page: the diagnosis and its actions first, then the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autofuse.display.diagnosis import evidence_and_confidence, saving
from autofuse.display.heat_map import heat_map
from autofuse.display.html import CodeBlock, Details, LeadingSentence, Part, Section, SuggestedAction, page
from autofuse.display.icicle import icicle_chart
from autofuse.display.layer_tables import (
    all_places,
    both_layers_table,
    every_layer_table,
    layers_table,
    most_informative,
    places_table,
)
from autofuse.display.profile_charts import (
    categories_chart,
    ladder_chart,
    layers_chart,
    losses_chart,
    memory_chart,
    roofline_chart,
    shares_chart,
    steps_chart,
    timeline_chart,
)
from autofuse.display.profile_figures import figures, figures_of_both, verdict
from autofuse.display.profile_tables import (
    Sides,
    categories_table,
    collectives_table,
    formulas_table,
    ladder_table,
    levels_of,
    memory_table,
    ranks_table,
    shares_table,
)
from autofuse.results import units
from autofuse.results.comparison import Comparison
from autofuse.results.table import Cell, Column, Table

if TYPE_CHECKING:
    from autofuse.results.profile import Profile

_SHOWN = 12  # groups of layers that are visible; one click shows every layer


def html(profile: Profile) -> str:
    """The page of one profile, to be written as UTF-8. It needs no other file."""
    title, sections = f"Profile: {profile.name}", _sections({"": profile})
    return page(title, _summary(profile), sections, figures(profile), _diagnosis(profile))


def html_of_both(before: Profile, after: Profile, comparison: Comparison | None = None, diff: str = "") -> str:
    """The page of one model before and after, with their comparison and the changes to the source."""
    sides = {"before": before, "after": after}
    leading = [*verdict(comparison), *figures_of_both(before, after)]
    sections = _sections(sides, comparison, diff)
    return page(f"Before and after: {before.name}", _summary(after), sections, leading, _gain_figure(comparison))


def _gain_figure(comparison: Comparison | None) -> LeadingSentence | None:
    if comparison is None:
        return None
    gain = f"{units.gain(comparison.ratio)} ({comparison.interval.low:.2f} to {comparison.interval.high:.2f})"
    sentences = {
        "confirmed": f"The step takes less time after the change: {gain} as fast.",
        "regressed": f"The step takes more time after the change: {gain} as fast.",
        "no-change": "The step takes as long as before the change.",
        "inconclusive": "The measurement does not show whether the change made the step faster.",
    }
    return LeadingSentence(f"{sentences[comparison.verdict]} {comparison.reason}")


def _diagnosis(profile: Profile) -> LeadingSentence | None:
    found = profile.diagnosis
    if found is None:
        return None
    return LeadingSentence(
        found.sentence, tuple(SuggestedAction(a.text, saving(a), evidence_and_confidence(a)) for a in found.actions)
    )


def _summary(profile: Profile) -> str:
    origin = {
        "live": "Training steps of this process.",
        "script": "Training steps of a script.",
        "trace": "Read from recorded traces.",
    }[profile.kind]
    return " ".join(part for part in (f"{profile.roof.device}." if profile.roof.device else "", origin) if part)


def _sections(sides: Sides, comparison: Comparison | None = None, diff: str = "") -> list[Section]:
    profiles = list(sides.values())
    after = profiles[-1]
    made = [
        _section_if_filled("Where the step goes", _step_section(sides)),
        _section_if_filled("The processes of the job", _ranks_section(after)),
        _section_if_filled("Collectives", [collectives_table(after)] if after.collectives else []),
        _section_if_filled(
            "The time of each layer", _layers_section(sides), _LAYERS_NOTE + (_FUSED_NOTE if len(sides) > 1 else "")
        ),
        _section_if_filled("Where fusing helps", _places_section(most_informative(profiles))),
        _section_if_filled("One step as it ran", _timeline_section(sides)),
        _section_if_filled("How much of the machine it uses", _ladder_section(sides), _LADDER_NOTE),
        _section_if_filled("How near each layer is to the machine's limits", _roofline_section(sides), _ROOFLINE_NOTE),
        _section_if_filled("Kinds of operators", _categories_section(sides)),
        _section_if_filled("Memory", _memory_section(sides)),
        _section_if_filled("Step times", _times_section(sides, comparison)),
        _section_if_filled("The loss", [chart for chart in (losses_chart(sides),) if chart]),
        _section_if_filled("What was changed", [CodeBlock(diff, is_diff=True)] if diff else []),
        _section_if_filled("How these numbers were measured", _origins_section(sides)),
    ]
    return [section for section in made if section]


_LADDER_NOTE = (
    "Each level asks a stricter question than the one before it. Decide by time and memory, not by these percentages: "
    "some kernels are fastest with few threads in flight."
)
_LAYERS_NOTE = (
    "A layer's own time does not include the modules that it calls; the whole time does. Repeated layers are added up."
)
_FUSED_NOTE = " A fused operation includes the time of the layers that it replaces: compare whole times."
_ROOFLINE_NOTE = (
    "To the left of the bend, memory bandwidth is the limit; to the right of it, compute is. A dot on the line is as "
    "fast as the machine allows. Look first at large dots far below the line."
)


def _section_if_filled(heading: str, parts: list[Part], note: str = "") -> Section | None:
    return Section(heading, tuple(parts), note) if parts else None


def _ladder_section(sides: Sides) -> list[Part]:
    unknown = [next(iter(r.values())).kind.title for r in levels_of(sides) if all(x.value is None for x in r.values())]
    return [
        ladder_chart(sides),
        *(
            [f"Not available here: {', '.join(unknown)}. The details below say why, and how to get them."]
            if unknown
            else []
        ),
        Details("Where each number comes from, or why it is missing and how to get it", (ladder_table(sides),)),
        Details("Formulas and sources", (formulas_table(),)),
    ]


def _step_section(sides: Sides) -> list[Part]:
    if not any(profile.shares for profile in sides.values()):
        return []
    chart = shares_chart(sides)
    probes = [_probe(side, profile) for side, profile in sides.items()]
    return [*([chart] if chart else []), shares_table(sides), *filter(None, probes)]


def _probe(side: str, profile: Profile) -> str:
    probe = profile.probe
    start = f"Twice the batch{f' {side}' if side else ''}:"
    if probe.ratio is None:
        live = profile.kind != "trace"  # a trace never has this ratio, so no reason is shown
        return f"{start} {units.because(probe.reason)}." if probe.reason and live else ""
    within = f" ({probe.interval.low:.2f} to {probe.interval.high:.2f})" if probe.interval else ""
    return f"{start} {probe.ratio:.2f}x the time{within}. What limits the step: {probe.verdict}."


def _layers_section(sides: Sides) -> list[Part]:
    after = list(sides.values())[-1]
    if not after.layers:
        return []
    chart, tree = layers_chart(sides), icicle_chart(after.layers, _step_seconds(after))
    parts: list[Part] = ["After:"] if tree and len(sides) > 1 else []
    parts += [part for part in (tree, chart) if part]
    if len(sides) > 1:
        parts.append(both_layers_table(sides["before"], after, _SHOWN))
    else:
        parts.append(layers_table(after, _SHOWN))
    for side, profile in sides.items():
        named = f"Every layer {side}".strip()
        parts.append(Details(f"{named}, all {len(profile.layers)} by name", (every_layer_table(profile),)))
    return [*parts, *_attribution(after)]


def _step_seconds(profile: Profile) -> float:
    return profile.timing.median if profile.timing.seconds else 0.0


def _attribution(profile: Profile) -> list[Part]:
    described = profile.attribution
    if described.forward is None and described.backward is None:
        return list(described.notes)
    shares = (
        f"{units.percent(described.forward)} of the forward's and {units.percent(described.backward)} of the backward's"
    )
    sentence = f"{shares} time was attributed to modules."
    if described.overhead is not None:
        sentence += f" The recorded steps took {described.overhead:.2f}x as long as the timed ones."
    return [" ".join((sentence, *described.notes))]


def _places_section(profile: Profile) -> list[Part]:
    places = all_places(profile)
    table = places_table(profile)
    telling = [i for i, place in enumerate(places) if place.status != "declined"]
    declined = [i for i, place in enumerate(places) if place.status == "declined"]
    parts: list[Part] = [_keep_rows(table, telling)] if telling else []
    if declined:
        named = f"Places where a rule almost applies, and why it does not ({len(declined)})"
        parts.append(Details(named, (_keep_rows(table, declined),)))
    return parts


def _keep_rows(table: Table, kept: list[int]) -> Table:
    return Table(table.title, table.columns, tuple(table.rows[i] for i in kept), table.caption)


def _roofline_section(sides: Sides) -> list[Part]:
    chart = roofline_chart(sides)
    if chart is None:
        return []
    roof = chart.roof
    known = [
        f"Compute peak: {units.amount(roof.flops_per_second, 'FLOP/s')} in {roof.dtype} ({roof.flops_source})."
        if roof.flops_per_second else "Compute peak: n/a.",
        f"Memory bandwidth: {units.amount(roof.bytes_per_second, 'B/s')} ({roof.bytes_source})."
        if roof.bytes_per_second else "Memory bandwidth: n/a.",
        f"They meet at {units.digits(roof.balance)} FLOPs per byte." if roof.balance else "",
    ]  # fmt: skip
    return [chart, " ".join(filter(None, known))]


def _categories_section(sides: Sides) -> list[Part]:
    chart = categories_chart(sides)
    return [chart, categories_table(sides)] if chart else []


def _memory_section(sides: Sides) -> list[Part]:
    chart = memory_chart(sides)
    reasons = dict.fromkeys(p.memory.reason for p in sides.values() if p.memory.peak_bytes is None and p.memory.reason)
    return [chart, memory_table(sides)] if chart else [f"{units.because(reason)}." for reason in reasons]


def _ranks_section(profile: Profile) -> list[Part]:
    if len(profile.ranks) < 2:
        return []
    found = heat_map(profile.rank_steps)
    return [*([found] if found else []), ranks_table(profile)]


def _timeline_section(sides: Sides) -> list[Part]:
    charts = [chart for chart in map(timeline_chart, sides.values()) if chart]
    if len(sides) > 1:
        return [part for side, chart in zip(sides, charts, strict=False) for part in (f"{side}:", chart)]
    return list(charts)


def _times_section(sides: Sides, comparison: Comparison | None) -> list[Part]:
    chart = steps_chart(sides)
    parts: list[Part] = [chart] if chart else []
    return parts + ([comparison.table()] if comparison else [])


def _origins_section(sides: Sides) -> list[Part]:
    notes = dict.fromkeys(note for profile in sides.values() for note in profile.notes)
    files = dict.fromkeys(profile.trace_file for profile in sides.values() if profile.trace_file)
    traces = [f"The trace is {name}; Perfetto and chrome://tracing open it." for name in files]
    counted = dict.fromkeys(p.flops.basis or p.flops.reason for p in sides.values())
    flops = [f"FLOPs: {described}" for described in counted if described]
    power = dict.fromkeys(f"Power: {units.because(p.power.reason)}." for p in sides.values() if p.power.reason)
    environments = {side: profile.environment for side, profile in sides.items()}
    table = [_environment(environments)] if any(environments.values()) else []
    return [*notes, *flops, *power, *traces, *table]


def _environment(sides: Mapping[str, Mapping[str, str]]) -> Table:
    """The table of environments, with one column if both sides have the same."""
    values = list(sides.values())
    shown = sides if any(value != values[0] for value in values) else {"": values[0]}
    keys = dict.fromkeys(key for value in shown.values() for key in value)
    columns = (Column("environment"), *(Column(side, wraps=True) for side in shown))
    return Table("", columns, tuple((Cell(k), *(Cell(v.get(k, "")) for v in shown.values())) for k in keys))
