"""Computes utilisation from FLOPs, bytes and seconds: the levels mfu, hfu and ideal, and what limits each layer.

It neither counts nor times. A share of a roof above 1 is impossible: one of the inputs is wrong. Then there is no
number, and the reason says what came out and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from types import MappingProxyType

from autofuse.profiling.live.roofs import HERE, Roofs
from autofuse.profiling.trace.work import Own
from autofuse.results.comparison import Estimate
from autofuse.results.ladder import Level
from autofuse.results.profile import Flops, Layer, Probe, Regime, Roof, Work

HALF_STAYS = 1.5  # time with twice the batch / time: below this, more than half does not grow with the batch
_NONE: Mapping[str, Estimate] = MappingProxyType({})
DOMINATES = 0.5  # fraction of a layer's time: if launching takes as much, launching limits the layer


def levels(flops: Flops, step_seconds: float, roofs: Roofs, works: Own) -> dict[str, Level]:
    """Return mfu, hfu and ideal by name, for a step that takes `step_seconds` without instruments.

    MFU and HFU are FLOPs / seconds / the peak in the dtype of most FLOPs. ideal: the sum of the operators' ideal
    seconds / seconds. It is unknown if `works` were computed without roofs.
    """
    found = {name: _level_of_peak(name, count, flops, step_seconds, roofs) for name, count in _counts(flops)}
    found["ideal"] = _ideal_level(total(works.values()), step_seconds, roofs)
    return found


def total(works: Iterable[Work]) -> Work:
    """Return the sum of all works."""
    return reduce(add, works, Work())


def _counts(flops: Flops) -> tuple[tuple[str, int | None], ...]:
    return ("hfu", flops.hardware), ("mfu", flops.model)


def _level_of_peak(name: str, count: int | None, flops: Flops, seconds: float, roofs: Roofs) -> Level:
    if count is None:
        return Level(name, reason=flops.reason or "FLOPs were not counted.")
    if not count:
        return Level(name, reason=f"No matrix product and no convolution was counted ({flops.basis}).")
    roof = roofs.roof(flops.dtype)
    if roof.flops_per_second is None:
        return Level(name, reason=roof.flops_source)
    if count > seconds * roof.flops_per_second:
        roofs.measure_again(flops.dtype)
        roof = roofs.roof(flops.dtype)
    share = count / seconds / _rate(roof)
    basis = f"{_short_number(count)}FLOP / {seconds:.4g} s / {_peak(roof)}"
    return (
        Level(name, share, basis)
        if share <= 1
        else Level(name, reason=_impossible_reason(share, basis, roof.flops_source))
    )


def _rate(roof: Roof) -> float:
    assert roof.flops_per_second is not None
    return roof.flops_per_second


def _peak(roof: Roof) -> str:
    return f"{_short_number(_rate(roof))}FLOP/s in {roof.dtype} ({roof.flops_source})"


def _ideal_level(work: Work, seconds: float, roofs: Roofs) -> Level:
    if work.ideal_seconds is None:
        return Level("ideal", reason="FLOPs and bytes were not counted, so there is no ideal step to compare with.")
    share = work.ideal_seconds / seconds
    basis = f"{work.operators} operators need {work.ideal_seconds:.4g} s at the roofs; the step takes {seconds:.4g} s"
    if share > 1:
        return Level("ideal", reason=_impossible_reason(share, basis, roofs.bytes_source))
    return Level("ideal", share, basis)


def _impossible_reason(share: float, basis: str, source: str) -> str:
    """Return the reason for an error in the inputs: nothing is faster than its machine."""
    if source == HERE:
        why = "the machine was busier while its roofs were measured than while the step was timed: profile again"
    else:
        why = f"the step's seconds, its FLOPs or the peak ({source}) are not this device's: check what was timed"
    return f"The result is {share:.2f} ({basis}), but more than 1 is impossible; {why}."


# Layers.


def regimes(
    layers: Sequence[Layer], roofs: Roofs, probe: Probe, dtype: str = "float32", grown: Mapping[str, Estimate] = _NONE
) -> tuple[Layer, ...]:
    """Return every layer with its roofline position, its regime and the reason for it.

    A layer is judged by its own operators, forward and backward. The model, and a layer without own operators, is
    judged by everything below it. The position is the ideal seconds of the operators / their seconds; None if it is
    above 1. The regime is "overhead" if launching takes at least half of the time, and for the whole model also if the
    probe says so. Else it is "compute" or "memory": the operators' FLOPs per byte are above or below the machine's
    balance in `dtype`.

    Args:
        layers: The layers.
        roofs: The roofs of the machine.
        probe: The result of the double-the-batch probe.
        dtype: The dtype of most FLOPs.
        grown: By name, a layer's time with twice the batch / its time. If the whole interval is below 1.5, the layer is
            "overhead"; if the ratio is below 1.5 and the interval contains 1.5, it is "inconclusive"; else the rules
            above hold.
    """
    roof = roofs.roof(dtype)
    judged = (_judge(layer, roof, roofs.launch, probe) for layer in layers)
    return tuple(_apply_probe(layer, grown[layer.fqn]) if layer.fqn in grown else layer for layer in judged)


def _apply_probe(layer: Layer, found: Estimate) -> Layer:
    """Apply the result of the layer's own probe."""
    layer = replace(layer, doubled=found.ratio, doubled_interval=found.interval)
    said = f"With twice the batch it takes {found.ratio:.2f} times as long (95 %: {found.interval})."
    if found.ratio >= HALF_STAYS:
        return replace(layer, why=f"{layer.why} {said}")
    if found.interval.high < HALF_STAYS:
        return replace(layer, regime="overhead", why=f"{said} Most of it does not grow with the batch. {layer.why}")
    return replace(layer, regime="inconclusive", why=f"{said} Whether overhead is the limit is unclear. {layer.why}")


def _judge(layer: Layer, roof: Roof, launch: float, probe: Probe) -> Layer:
    own = layer.own_work
    work = own if layer.fqn and (own.operators or own.bytes) else layer.work
    if not work.operators and not work.bytes:
        return replace(layer, roofline=None, regime="unknown", why="None of its operators was counted.")
    if work.seconds <= 0:
        return replace(layer, roofline=None, regime="unknown", why="No time was recorded for it.")
    position = None if work.ideal_seconds is None else work.ideal_seconds / work.seconds
    regime, why = regime_of(work, roof, launch)
    if layer.fqn == "" and probe.verdict == "overhead":
        regime, why = "overhead", probe.reason
    if position is not None and position <= 1:
        return replace(layer, roofline=position, regime=regime, why=f"{why} It attains {position:.0%} of the roof.")
    if position is not None:
        why += (
            f" It was {position:.2g} times as fast as its operators one by one at the roofs: an operator found its "
            "inputs in a cache, or the machine was busier when the roofs were measured."
        )
    return replace(layer, roofline=None, regime=regime, why=why)


def regime_of(work: Work, roof: Roof, launch: float = 0.0) -> tuple[Regime, str]:
    """Return what limits the work, and a sentence that says why. `launch`: the least seconds of an operator."""
    launching = launch * work.operators
    if work.seconds > 0 and launching >= DOMINATES * work.seconds:
        share = min(launching / work.seconds, 1.0)
        return "overhead", f"Launching {work.operators} operators takes {share:.0%} of its time."
    intensity, balance = work.intensity, roof.balance
    if intensity is None or balance is None:
        return "unknown", "Without bytes or roofs, its intensity is unknown."
    if intensity >= balance:
        return "compute", f"{intensity:.3g} FLOPs per byte; from {balance:.3g} on, computing takes longer than memory."
    return "memory", f"{intensity:.3g} FLOPs per byte; below {balance:.3g}, memory takes longer than computing."


def _short_number(number: float) -> str:
    """Return a number with its prefix: 1.3e12 gives "1.3 T"."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.4g} {prefix}"
    return f"{number:.4g} "
