"""The quantities that conditions may name, of one profile or of two. No torch."""

from __future__ import annotations

from autofuse.results.comparison import Comparison, Estimate, Interval
from autofuse.results.conditions import Quantity
from autofuse.results.ladder import LEVELS
from autofuse.results.layer_quantities import KnownQuantities
from autofuse.results.profile import Profile

_NO_BASELINE = "there is nothing to compare with: pass --baseline with an earlier profile.json"
_RATIOS = {
    "time_ratio": "time of a step, after / before: above 1 is slower",
    "tokens_per_second_ratio": "tokens per second, after / before",
    "samples_per_second_ratio": "samples per second, after / before",
    "peak_memory_ratio": "peak memory of a step, after / before",
}


def of_profile(after: Profile) -> KnownQuantities:
    """The quantities of one profile. The ratios are listed, but unknown."""
    return KnownQuantities(_quantities_of_profile(after), after)


def _quantities_of_profile(after: Profile) -> dict[str, Quantity]:
    timing = after.timing
    known = {name: Quantity(meaning, reason=_NO_BASELINE) for name, meaning in _RATIOS.items()}
    step = timing.median if timing.seconds else None
    known["step_seconds"] = Quantity(
        "seconds of a step", step, timing.interval if timing.seconds else None, "no step was timed"
    )
    for name, count in (("tokens", timing.tokens), ("samples", timing.samples)):
        known[f"{name}_per_second"] = _rate(name, count, known["step_seconds"])
    peak = after.memory.peak_bytes
    known["peak_memory_bytes"] = Quantity(
        "most bytes held", _exact_quantity(peak), reason=_without_full_stop(after.memory.reason)
    )
    for kind in LEVELS:
        found = {level.name: level for level in after.ladder}.get(kind.name)
        value = found.value if found else None
        reason = found.reason if found else "the profile does not have it"
        timed = kind.name in ("mfu", "hfu", "ideal")  # a count / the time of a step
        known[kind.name] = Quantity(
            kind.title,
            value,
            _scaled_interval(value, known["step_seconds"]) if timed else None,
            _without_full_stop(reason),
        )
    return known


def of_both(before: Profile, after: Profile, ratio: Estimate | None) -> KnownQuantities:
    """The quantities of `after`, with the ratios. ratio: time before / after, with its interval."""
    known = _quantities_of_profile(after)
    known |= _ratio_quantities(ratio)
    for name in ("tokens", "samples"):
        counts = getattr(before.timing, name), getattr(after.timing, name)
        known[f"{name}_per_second_ratio"] = _ratio_of_rates(name, counts, known["time_ratio"])
    known["peak_memory_ratio"] = _memory(before.memory.peak_bytes, after.memory.peak_bytes)
    return KnownQuantities(known, after, before, ratio)


def of_comparison(comparison: Comparison) -> dict[str, Quantity]:
    """The quantities of interleaved pairs: both sides do the same work, so rates are inverse times."""
    known = _ratio_quantities(Estimate(comparison.ratio, comparison.interval))
    for name in ("tokens", "samples"):
        known[f"{name}_per_second_ratio"] = _ratio_of_rates(name, (1, 1), known["time_ratio"])
    known["peak_memory_ratio"] = _memory(comparison.before_peak_bytes, comparison.after_peak_bytes)
    return known


def of_comparisons(before: Comparison, after: Comparison, ratio: Estimate | None) -> dict[str, Quantity]:
    """The quantities of the optimized sides of two comparisons, measured in separate runs."""
    known = _ratio_quantities(ratio)
    for name in ("tokens", "samples"):
        known[f"{name}_per_second_ratio"] = _ratio_of_rates(name, (1, 1), known["time_ratio"])
    known["peak_memory_ratio"] = _memory(before.after_peak_bytes, after.after_peak_bytes)
    return known


def _ratio_quantities(ratio: Estimate | None) -> dict[str, Quantity]:
    meaning = _RATIOS["time_ratio"]
    if ratio is None:
        return {"time_ratio": Quantity(meaning, reason="no step was timed")}
    return {"time_ratio": Quantity(meaning, 1 / ratio.ratio, Interval(1 / ratio.interval.high, 1 / ratio.interval.low))}


def _ratio_of_rates(name: str, counts: tuple[int | None, int | None], times: Quantity) -> Quantity:
    meaning = _RATIOS[f"{name}_per_second_ratio"]
    before, after = counts
    if not before or not after:
        return Quantity(meaning, reason=f"the number of {name} in a step is not known on both sides")
    if times.value is None:
        return Quantity(meaning, reason=times.reason)
    more = after / before
    return Quantity(meaning, more / times.value, Interval(more / times.ends.high, more / times.ends.low))


def _rate(name: str, count: int | None, step: Quantity) -> Quantity:
    meaning = f"{name} per second, on one rank"
    if count is None or not step.value:
        return Quantity(meaning, reason=f"the number of {name} in a step is not known" if step.value else step.reason)
    return Quantity(meaning, count / step.value, Interval(count / step.ends.high, count / step.ends.low))


def _scaled_interval(value: float | None, step: Quantity) -> Interval | None:
    """The interval of a value that is divided by the step's time."""
    if value is None or not step.value or step.ends.low <= 0:
        return None
    return Interval(value * step.value / step.ends.high, value * step.value / step.ends.low)


def _memory(before: int | None, after: int | None) -> Quantity:
    meaning = _RATIOS["peak_memory_ratio"]
    if before is None or after is None or not before:
        return Quantity(meaning, reason="peak memory was not measured on both sides")
    return Quantity(meaning, after / before)


def _exact_quantity(count: int | None) -> float | None:
    return None if count is None else float(count)


def _without_full_stop(sentence: str) -> str:
    return sentence.rstrip(". ") or "it was not measured"
