"""The facts about the whole step, as lines for a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from autofuse.display import terminal
from autofuse.display.profile_tables import BESIDE, MEMORY_PARTS, NOISE, Sides, share_of, share_title
from autofuse.results import units
from autofuse.results.profile_parts import Share

if TYPE_CHECKING:
    from autofuse.results.profile import Profile

_QUIET = terminal.STYLES["quiet"]
_Fact = tuple[str, list[str], str]  # a label, the known facts, and the reason if there are none


def title_of(profile: Profile) -> str:
    """The name of the profile, how it was measured, and on which device."""
    origin = {"live": "", "script": "script", "trace": "from a trace"}[profile.kind]
    return " · ".join(part for part in (profile.name, origin, profile.roof.device) if part)


def facts_of(profile: Profile) -> Iterator[tuple[str, Text]]:
    """Labels with their facts: step, time, memory, operators, ranks, regime, power. Unknown facts come last."""
    yield "step", step_of(profile)
    yield from _time_facts(profile)
    categories = _categories_facts(profile)
    if categories:
        yield "operators", categories
    if len(profile.ranks) > 1:
        yield "ranks", _ranks_facts(profile)
    facts = (_memory_facts(profile), _regime_facts(profile), _power_facts(profile))
    yield from ((name, _join_facts(described)) for name, described, _ in facts if described)
    yield from _unknown_facts(facts)


def _unknown_facts(facts: Iterable[_Fact]) -> Iterator[tuple[str, Text]]:
    """The unknown facts, grouped by reason."""
    unknown: defaultdict[str, list[str]] = defaultdict(list)
    for name, described, reason in facts:
        if not described:
            unknown[reason or "it was not measured"].append(name)
    for reason, names in unknown.items():
        yield "n/a", Text(f"{', '.join(names)}: {units.because(reason)}", _QUIET)


def step_of(profile: Profile) -> Text:
    """The step time with its interval, and the throughput."""
    return _join_facts(_step_facts(profile))


def _step_facts(profile: Profile) -> list[str]:
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
        yield "of it", _shares(beside)


def _shares(shares: Sequence[Share]) -> Text:
    """The known shares, then the others grouped by reason."""
    known = [f"{share_title(s.name)} {units.percent(s.share)}" for s in shares if s.share is not None]
    unknown: defaultdict[str, list[str]] = defaultdict(list)
    for share in shares:
        if share.share is None:
            unknown[share.reason].append(share_title(share.name))
    reasons = [f"{', '.join(names)}: {units.because(why)}" for why, names in unknown.items()]
    return _join_facts(known, reasons)


def _memory_facts(profile: Profile) -> _Fact:
    memory = profile.memory
    if memory.peak_bytes is None:
        return "memory", [], memory.reason
    parts = {part: getattr(memory, part) for part in MEMORY_PARTS if getattr(memory, part)}
    largest = sorted(parts, key=lambda part: -parts[part])
    described = [f"peak {units.size(memory.peak_bytes)}", *(f"{p} {units.size(parts[p])}" for p in largest)]
    return "memory", described, ""


def _categories_facts(profile: Profile) -> Text:
    total = sum(category.seconds for category in profile.categories.values())
    if not total:
        return Text("")
    longest = sorted(profile.categories.items(), key=lambda item: -item[1].seconds)[:6]
    return _join_facts([f"{name} {units.percent(category.seconds / total)}" for name, category in longest])


def _ranks_facts(profile: Profile) -> Text:
    seconds = [rank.seconds for rank in profile.ranks]
    slowest = max(profile.ranks, key=lambda rank: rank.seconds)
    spread = (max(seconds) - min(seconds)) / max(seconds) if max(seconds) else 0.0
    if spread <= NOISE:
        return _join_facts([f"{len(seconds)}", f"all take {units.duration(slowest.seconds)} within {NOISE:.0%}"])
    return _join_facts([
        f"{len(seconds)}", f"the slowest is rank {slowest.rank} with {units.duration(slowest.seconds)}",
        f"spread {units.percent(spread)} of it",
    ])  # fmt: skip


def _regime_facts(profile: Profile) -> _Fact:
    probe = profile.probe
    if probe.ratio is None:
        return "regime", [], probe.reason
    within = f" ({probe.interval.low:.2f} to {probe.interval.high:.2f})" if probe.interval else ""
    return "regime", [f"{probe.verdict}: twice the batch takes {probe.ratio:.2f}x the time{within}"], ""


def _power_facts(profile: Profile) -> _Fact:
    power = profile.power
    if power.watts is None:
        return "power", [], power.reason
    parts = [f"{units.digits(power.watts)} W"]
    if power.joules_per_step is not None:
        parts.append(f"{units.digits(power.joules_per_step)} J/step")
    if power.tokens_per_joule is not None:
        parts.append(f"{units.digits(power.tokens_per_joule)} tokens/J")
    return "power", parts, ""


def facts_of_both(sides: Sides) -> Iterator[tuple[str, Text]]:
    """Each share and each part of memory, before and after on one line."""
    names = dict.fromkeys(s.name for p in sides.values() for s in p.shares if s.share is not None)
    shares = {name: [share_of(profile, name).seconds for profile in sides.values()] for name in names}
    changes = [f"{share_title(n)} {' → '.join(map(units.duration, pair))}" for n, pair in shares.items()]
    if changes:
        yield "time", _join_facts(changes)
    memories = [profile.memory for profile in sides.values()]
    if all(memory.peak_bytes is not None for memory in memories):
        parts = ("peak_bytes", *(part for part in MEMORY_PARTS if any(getattr(m, part) for m in memories)))
        sizes = {part: " → ".join(units.size(getattr(m, part)) for m in memories) for part in parts}
        yield "memory", _join_facts([f"{part.removesuffix('_bytes')} {both}" for part, both in sizes.items()])
    else:
        yield from _unknown_facts(
            _memory_facts(profile) for profile in sides.values() if profile.memory.peak_bytes is None
        )


def _join_facts(known: Sequence[str], quiet: Sequence[str] = ()) -> Text:
    text = Text(" · ".join(known))
    if quiet:
        text.append((" · " if known else "") + " · ".join(quiet), _QUIET)
    return text


def without_full_stop(sentence: str) -> str:
    """The sentence without its full stop."""
    return sentence.rstrip(". ")
