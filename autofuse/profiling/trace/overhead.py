"""Removes the cost of recording from recorded times.

Recording an event takes about the same time, whatever the operator does. So recording stretches layers of many small
operators, but not one large product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autofuse.profiling.trace.layers import LayerTimes
from autofuse.profiling.trace.work import Own, Phase
from autofuse.results.profile_parts import OPTIMIZER, Share


@dataclass(frozen=True)
class RecordingCost:
    """Seconds that recording adds for one event, and for one module call (on the caller's side, besides its event)."""

    event: float
    call: float


DEFAULT_COST = RecordingCost(1e-6, 2e-6)  # more than we measured on any machine; the step's stretch limits it


def remove_recording_cost(times: LayerTimes, clean_seconds: float, cost: RecordingCost = DEFAULT_COST) -> LayerTimes:
    """Return the times without the cost of recording. `step_seconds` becomes `clean_seconds`.

    Each module's seconds are reduced by the cost of its events, but not below 0. All modules together are reduced by at
    most the stretch of the step. Then all times, including those of no module, are scaled by one factor to
    `clean_seconds`, because the machine may have been slower during the recording. On a GPU, recording does not stretch
    kernels, so their seconds stay. `attribution.overhead` says how much longer a recorded step took.

    Args:
        times: The times of the recorded steps.
        clean_seconds: The median seconds of steps timed without recording.
        cost: What recording takes.

    Raises:
        ValueError: clean_seconds is not positive.
    """
    if not clean_seconds > 0:
        raise ValueError(f"A step cannot take {clean_seconds} s: pass the median of steps timed without recording.")
    overhead = times.step_seconds / clean_seconds
    attribution = replace(times.attribution, overhead=overhead)
    if times.on_device:
        return replace(times, attribution=attribution)
    costs = _cost_by_module(times, cost, max(0.0, times.step_seconds - clean_seconds))
    remaining = {key: max(0.0, work.seconds - costs.get(key, 0.0)) for key, work in times.own.items()}
    without_module = max(0.0, times.step_seconds - sum(work.seconds for work in times.own.values()))
    total = sum(remaining.values()) + without_module
    scale = clean_seconds / total if total else 0.0
    own: Own = {key: replace(work, seconds=remaining[key] * scale) for key, work in times.own.items()}
    return replace(times, own=own, step_seconds=clean_seconds, attribution=attribution)


def scale_to_timed_phases(times: LayerTimes, shares: Sequence[Share]) -> LayerTimes:
    """Return the times with each phase scaled to the seconds in `shares`, of one step.

    Times measured without recording are more reliable than recorded ones. A phase without a known share stays. All
    phases stay if ranks communicate, because their waits are in the phases but in no layer.
    """
    known_seconds = {share.name: share.seconds or 0.0 for share in shares}
    if known_seconds.get("communication"):
        return times
    sums: dict[str, float] = {}
    for key, work in times.own.items():
        sums[_phase_of_key(key)] = sums.get(_phase_of_key(key), 0.0) + work.seconds
    scales = {
        phase: known_seconds[phase] / total for phase, total in sums.items() if known_seconds.get(phase) and total
    }
    own: Own = {
        key: replace(work, seconds=work.seconds * scales.get(_phase_of_key(key), 1.0))
        for key, work in times.own.items()
    }
    return replace(times, own=own)


def _phase_of_key(key: tuple[str, Phase]) -> str:
    return "optimizer" if key[0] == OPTIMIZER else key[1]


def _cost_by_module(times: LayerTimes, cost: RecordingCost, stretch: float) -> dict[tuple[str, Phase], float]:
    costs = {key: events * cost.event for key, events in times.events.items()}
    for key, calls in times.made_calls.items():
        costs[key] = costs.get(key, 0.0) + calls * cost.call
    total = sum(costs.values())
    return {key: seconds * min(1.0, stretch / total) for key, seconds in costs.items()} if total else {}
