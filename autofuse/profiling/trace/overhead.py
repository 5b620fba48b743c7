"""Takes out of recorded times what the recording itself took, so that layers of many small operators are not overdrawn.

Each event that is recorded takes about the same time, whatever the operator does in it: layers of many small operators
are stretched, one large product is not. Knows numbers, and not how they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autofuse.profiling.trace.layers import LayerTimes
from autofuse.profiling.trace.work import Own, Phase
from autofuse.results.profile_parts import OPTIMIZER, Share


@dataclass(frozen=True)
class RecordingCost:
    """Seconds that recording one event adds, and one call of a module (on its caller's side, besides its event)."""

    event: float
    call: float


LIKELY = RecordingCost(1e-6, 2e-6)  # more than was measured on any machine: the step's stretch decides


def corrected(times: LayerTimes, clean_seconds: float, cost: RecordingCost = LIKELY) -> LayerTimes:
    """The same times without their recording: `step_seconds` is `clean_seconds`, and the layers' are what is left.

    Of each module's seconds is taken what its events cost, never more than there is, and of all modules together never
    more than the step was stretched by; what remains, the time of no module included, is scaled by one factor to the
    step as it was timed with no instruments on: the machine may have been slower meanwhile. On a GPU the seconds
    are the kernels' own, which recording does not stretch: they stay. `attribution.overhead` says how much longer a
    recorded step took. Raises ValueError where clean_seconds is not positive.
    """
    if not clean_seconds > 0:
        raise ValueError(f"A step takes more than {clean_seconds} s: pass the median of steps timed without recording.")
    overhead = times.step_seconds / clean_seconds
    attribution = replace(times.attribution, overhead=overhead)
    if times.on_device:
        return replace(times, attribution=attribution)
    costs = _costs(times, cost, max(0.0, times.step_seconds - clean_seconds))
    left = {key: max(0.0, work.seconds - costs.get(key, 0.0)) for key, work in times.own.items()}
    nobodys = max(0.0, times.step_seconds - sum(work.seconds for work in times.own.values()))
    whole = sum(left.values()) + nobodys
    scale = clean_seconds / whole if whole else 0.0
    own: Own = {key: replace(work, seconds=left[key] * scale) for key, work in times.own.items()}
    return replace(times, own=own, step_seconds=clean_seconds, attribution=attribution)


def as_clocked(times: LayerTimes, shares: Sequence[Share]) -> LayerTimes:
    """The same times with phases as long as `shares` say, in seconds of one step: what was clocked in steps that nobody
    recorded is surer than what the recorded ones took. A phase whose share is not known stays, and so do all phases
    where ranks communicate, for their waits are in the phases and in no layer."""
    told = {share.name: share.seconds or 0.0 for share in shares}
    if told.get("communication"):
        return times
    sums: dict[str, float] = {}
    for key, work in times.own.items():
        sums[_phase(key)] = sums.get(_phase(key), 0.0) + work.seconds
    scales = {phase: told[phase] / whole for phase, whole in sums.items() if told.get(phase) and whole}
    own: Own = {
        key: replace(work, seconds=work.seconds * scales.get(_phase(key), 1.0)) for key, work in times.own.items()
    }
    return replace(times, own=own)


def _phase(key: tuple[str, Phase]) -> str:
    return "optimizer" if key[0] == OPTIMIZER else key[1]


def _costs(times: LayerTimes, cost: RecordingCost, stretch: float) -> dict[tuple[str, Phase], float]:
    costs = {key: events * cost.event for key, events in times.events.items()}
    for key, calls in times.made_calls.items():
        costs[key] = costs.get(key, 0.0) + calls * cost.call
    whole = sum(costs.values())
    return {key: seconds * min(1.0, stretch / whole) for key, seconds in costs.items()} if whole else {}
