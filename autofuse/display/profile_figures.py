"""The figures at the top of a profile page: step time, throughput, utilisation, memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from autofuse.display.html import Figure
from autofuse.results import units
from autofuse.results.comparison import TONES, Comparison, Estimate
from autofuse.results.ladder import Level

if TYPE_CHECKING:
    from autofuse.results.profile import Profile


def figures(profile: Profile) -> list[Figure]:
    """The figures of one profile: step time, throughput, utilisation, peak memory, power."""
    timing, memory = profile.timing, profile.memory
    found: list[Figure] = []
    low, high = (units.duration(end) for end in timing.interval)
    steps = len(timing.seconds)
    note = f"{low} to {high}, {steps} steps" if steps > 1 else "one step" if steps else "no step was timed"
    found.append(Figure("step", units.duration(timing.median), note))
    for value, unit in ((timing.tokens_per_second, "tokens"), (timing.samples_per_second, "samples")):
        if value is not None:
            found.append(Figure(f"{unit} a second", units.digits(value)))
    found += [Figure(level.kind.title, units.percent(level.value)) for level in _leading_levels(profile)]
    if memory.peak_bytes is not None:
        found.append(Figure("peak memory", units.size(memory.peak_bytes)))
    if profile.power.watts is not None:
        per = profile.power.tokens_per_joule
        described = "" if per is None else f"{units.digits(per)} tokens a joule"
        found.append(Figure("power", f"{units.digits(profile.power.watts)} W", described))
    return found


def _leading_levels(profile: Profile) -> list[Level]:
    """Busy time, and the strictest known level of utilisation."""
    known = {level.name: level for level in profile.ladder if level.value is not None}
    telling = next((known[n] for n in ("mfu", "hfu", "tensor_active", "sm_efficiency") if n in known), None)
    return [level for level in (known.get("busy"), telling) if level]


def verdict(comparison: Comparison | None) -> Iterator[Figure]:
    """The gain of a comparison with its verdict; empty without a comparison."""
    if comparison is not None:
        estimate = Estimate(comparison.ratio, comparison.interval)
        within = f"{comparison.verdict}, {estimate.interval.low:.2f} to {estimate.interval.high:.2f}"
        yield Figure("faster by", units.gain(comparison.ratio), within, TONES[comparison.verdict])


def figures_of_both(before: Profile, after: Profile) -> Iterator[Figure]:
    """The figures of two profiles of one model: step time, utilisation, peak memory."""
    sides = (before, after)
    yield Figure("step", _before_and_after(units.duration(p.timing.median) for p in sides))
    known = [{level.name: level.value for level in p.ladder} for p in sides]
    if all(side.get("mfu") is not None for side in known):
        yield Figure("model FLOPs utilisation", _before_and_after(units.percent(side["mfu"]) for side in known))
    if all(p.memory.peak_bytes is not None for p in sides):
        yield Figure("peak memory", _before_and_after(units.size(p.memory.peak_bytes) for p in sides))


def _before_and_after(values: Iterable[str]) -> str:
    """Both values as "before → after". The line breaks at the arrow, not between a number and its unit."""
    return " → ".join(value.replace(" ", "\N{NO-BREAK SPACE}") for value in values)
