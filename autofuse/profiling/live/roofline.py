"""From FLOPs, bytes and seconds to utilisation: the levels mfu, hfu and ideal, and what holds each layer back.

Arithmetic on what others counted and timed; it neither counts nor times. A share of a roof above 1 cannot be: one of
its parts is wrong then, so there is no number, and the reason says what came out and what to do.
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

HALF_STAYS = 1.5  # time with twice the batch / time: under this more than half does not grow with the batch
_NONE: Mapping[str, Estimate] = MappingProxyType({})
DOMINATES = 0.5  # of a layer's time: launching that takes as much is what holds it back


def levels(flops: Flops, step_seconds: float, roofs: Roofs, works: Own) -> dict[str, Level]:
    """mfu, hfu and ideal of a step that takes `step_seconds` without instruments, by name.

    MFU and HFU are FLOPs / seconds / the peak in the dtype that most FLOPs are in. ideal: the ideal seconds of every
    operator, summed, / seconds; without its part where `works` were made without roofs.
    """
    found = {name: _of_peak(name, count, flops, step_seconds, roofs) for name, count in _counts(flops)}
    found["ideal"] = _ideal(total(works.values()), step_seconds, roofs)
    return found


def total(works: Iterable[Work]) -> Work:
    """The sum."""
    return reduce(add, works, Work())


def _counts(flops: Flops) -> tuple[tuple[str, int | None], ...]:
    return ("hfu", flops.hardware), ("mfu", flops.model)


def _of_peak(name: str, count: int | None, flops: Flops, seconds: float, roofs: Roofs) -> Level:
    if count is None:
        return Level(name, reason=flops.reason or "FLOPs were not counted.")
    if not count:
        return Level(name, reason=f"No product of matrices and no convolution was counted ({flops.basis}).")
    roof = roofs.roof(flops.dtype)
    if roof.flops_per_second is None:
        return Level(name, reason=roof.flops_source)
    if count > seconds * roof.flops_per_second:
        roofs.again(flops.dtype)
        roof = roofs.roof(flops.dtype)
    share = count / seconds / _rate(roof)
    basis = f"{_short(count)}FLOP / {seconds:.4g} s / {_peak(roof)}"
    return Level(name, share, basis) if share <= 1 else Level(name, reason=_impossible(share, basis, roof.flops_source))


def _rate(roof: Roof) -> float:
    assert roof.flops_per_second is not None
    return roof.flops_per_second


def _peak(roof: Roof) -> str:
    return f"{_short(_rate(roof))}FLOP/s in {roof.dtype} ({roof.flops_source})"


def _ideal(work: Work, seconds: float, roofs: Roofs) -> Level:
    if work.ideal_seconds is None:
        return Level("ideal", reason="FLOPs and bytes were not counted, so there is no ideal step to compare with.")
    share = work.ideal_seconds / seconds
    basis = f"{work.operators} operators need {work.ideal_seconds:.4g} s at the roofs; the step takes {seconds:.4g} s"
    if share > 1:
        return Level("ideal", reason=_impossible(share, basis, roofs.bytes_source))
    return Level("ideal", share, basis)


def _impossible(share: float, basis: str, source: str) -> str:
    """An error in the inputs, for nothing is faster than what it runs on."""
    if source == HERE:
        why = "the machine was busier while its roofs were measured than while the step was timed: profile again"
    else:
        why = f"the step's seconds, its FLOPs or the peak ({source}) are not this device's: check what was timed"
    return f"It came out at {share:.2f} ({basis}), and more than 1 cannot be; {why}."


# Layers.


def regimes(
    layers: Sequence[Layer], roofs: Roofs, probe: Probe, dtype: str = "float32", grown: Mapping[str, Estimate] = _NONE
) -> tuple[Layer, ...]:
    """Every layer with its roofline position, its regime and why.

    A layer is judged by the operators of its own, forward and backward; the model, and a layer that has none, by
    everything below it. Position: their ideal seconds / their seconds; None where it is above 1. Regime: "overhead"
    where launching them takes half of the time or more, and of the whole model where the probe says so; else "compute"
    or "memory", as their FLOPs a byte lie over or under the machine's balance in `dtype`, in which most FLOPs are.
    grown: by name, a layer's time with twice the batch / its time. Under 1.5 with the whole interval it is "overhead",
    with a part of it "inconclusive"; at 1.5 or more what was said above stands.
    """
    roof = roofs.roof(dtype)
    judged = (_judged(layer, roof, roofs.launch, probe) for layer in layers)
    return tuple(_doubled(layer, grown[layer.fqn]) if layer.fqn in grown else layer for layer in judged)


def _doubled(layer: Layer, found: Estimate) -> Layer:
    """What the layer's own probe says."""
    layer = replace(layer, doubled=found.ratio, doubled_interval=found.interval)
    said = f"With twice the batch it takes {found.ratio:.2f} times as long (95 %: {found.interval})."
    if found.ratio >= HALF_STAYS:
        return replace(layer, why=f"{layer.why} {said}")
    if found.interval.high < HALF_STAYS:
        return replace(layer, regime="overhead", why=f"{said} Most of it does not grow with the batch. {layer.why}")
    return replace(layer, regime="inconclusive", why=f"{said} That does not tell whether overhead rules. {layer.why}")


def _judged(layer: Layer, roof: Roof, launch: float, probe: Probe) -> Layer:
    own = layer.own_work
    work = own if layer.fqn and (own.operators or own.bytes) else layer.work
    if not work.operators and not work.bytes:
        return replace(layer, roofline=None, regime="unknown", why="No operator of it was counted.")
    if work.seconds <= 0:
        return replace(layer, roofline=None, regime="unknown", why="No time of it was recorded.")
    position = None if work.ideal_seconds is None else work.ideal_seconds / work.seconds
    regime, why = regime_of(work, roof, launch)
    if layer.fqn == "" and probe.verdict == "overhead":
        regime, why = "overhead", probe.reason
    if position is not None and position <= 1:
        return replace(layer, roofline=position, regime=regime, why=f"{why} It attains {position:.0%} of the roof.")
    if position is not None:
        why += (
            f" It was {position:.2g} times as fast as its operators by themselves at the roofs: what one leaves in a "
            "cache the next finds there, or the machine was busier when the roofs were measured."
        )
    return replace(layer, roofline=None, regime=regime, why=why)


def regime_of(work: Work, roof: Roof, launch: float = 0.0) -> tuple[Regime, str]:
    """What holds it back, and the sentence that says why. launch: seconds that an operator takes at least."""
    launching = launch * work.operators
    if work.seconds > 0 and launching >= DOMINATES * work.seconds:
        share = min(launching / work.seconds, 1.0)
        return "overhead", f"Launching {work.operators} operators takes {share:.0%} of its time."
    intensity, balance = work.intensity, roof.balance
    if intensity is None or balance is None:
        return "unknown", "Without bytes or roofs there is no intensity to judge it by."
    if intensity >= balance:
        return "compute", f"{intensity:.3g} FLOPs a byte; from {balance:.3g} on, computing takes longer than memory."
    return "memory", f"{intensity:.3g} FLOPs a byte; under {balance:.3g}, memory takes longer than computing."


def _short(number: float) -> str:
    """1.3e12 -> "1.3 T"."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.4g} {prefix}"
    return f"{number:.4g} "
