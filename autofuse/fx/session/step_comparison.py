"""Compares the step of a copy of a model with and without fused modules, also if the copy has fewer layers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from autofuse.fx.session.model_steps import ModelSteps, Modules
from autofuse.measure.device_timing import busy_share
from autofuse.measure.pair_count import JudgedTimings
from autofuse.measure.step_pairs import is_slower
from autofuse.measure.timing import seconds_of
from autofuse.results.step_times import StepTime

_LOOKS, _SMALL_SHARE = 3, 0.5  # runs that show the gain outside of repeated layers, and its share that is small


def compare_fused_steps(steps: ModelSteps, running: Modules) -> JudgedTimings:
    """Time the step with these modules fused.

    In the model, the layers that a shortened copy repeats run more often than here. The other modules may gain what
    the layers lose. So the layers are also timed alone, unless most of the gain is clearly theirs.
    """
    found = steps.compare(running)
    repeated = set(steps.repeated_modules)
    layers = [m for m in running if m in repeated]
    if is_slower(found) or not layers or set(layers) >= {m for m in running if m in steps.planned_modules}:
        return found
    fastest = [min(seconds_of(steps.step(m), steps.device) for _ in range(_LOOKS)) for m in (layers, running)]
    before, after = _sides(found)
    if fastest[0] - fastest[1] < _SMALL_SHARE * (median(before) - median(after)):
        return found
    of_layers = steps.compare(layers)
    return of_layers if is_slower(of_layers) else found


def share_of_kernels(steps: ModelSteps, running: Modules) -> float | None:
    """The part of a step with these modules fused in which a kernel runs, on a GPU."""
    return busy_share(steps.step(running), steps.device) if steps.device.type == "cuda" else None


def step_time_of(mode: Any, found: JudgedTimings, size: str, busy: float | None = None) -> StepTime:
    """The result of a comparison. `size` says which layers ran, "" for all. `busy`: see `share_of_kernels`."""
    before, after = _sides(found)
    return StepTime(
        mode, median(before), median(after), found.effect.ratio, found.effect.interval,
        found.judgement.verdict, len(before), found.clock, layers=size, busy=busy,
    )  # fmt: skip


def _sides(found: JudgedTimings) -> tuple[Sequence[float], Sequence[float]]:
    """The times of both sides by the clock of the comparison."""
    timings = found.timings
    by_core = found.clock == "core"
    return (timings.before_core, timings.after_core) if by_core else (timings.before, timings.after)
