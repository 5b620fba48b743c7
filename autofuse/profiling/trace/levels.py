"""The levels of utilisation that a trace shows: busy time, SM efficiency, occupancy, tensor-core share.

Live profiles use `levels_of(scope_of(trace))`, too. autofuse/results/ladder.py defines the names, the order and the
formulas.

Several GPUs in one trace count as the mean of those that ran a kernel. Kernels of several streams may overlap. At such
a moment the GPU is busy once, and the fractions of the SMs that the kernels can occupy add up to at most 1. So SM
efficiency never exceeds busy time, and without overlap it equals the sum in the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from autofuse.profiling.trace.intervals import length
from autofuse.profiling.trace.kernels import uses_tensor_cores
from autofuse.profiling.trace.launch_shapes import Device, Shape, shape_of
from autofuse.profiling.trace.phases import busy_on_host
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event
from autofuse.results.ladder import LEVELS, Level

KNOWN = 0.95  # the fraction of the kernels' time for which launch shapes must be known
_NO_GPU = "no GPU kernel is in the trace: it was taken on a CPU, or without ProfilerActivity.CUDA"

Shaped = Sequence[tuple[Event, Shape]]


def levels_of(scope: Scope) -> dict[str, Level]:
    """Return every level by name. A level that the trace does not show has a reason instead of a value."""
    found = _levels_of_gpus(scope) if scope.has_gpu else _levels_of_host(scope)
    for kind in LEVELS:
        found.setdefault(kind.name, Level(kind.name, reason="a trace does not show it"))
    return found


def busy_of(scope: Scope) -> float:
    """Return the busy level: the fraction of the steps in which a kernel runs, or on a CPU an operator."""
    if not scope.has_gpu:
        return scope.share(length(busy_on_host(scope)))
    return _mean_over_gpus([length(scope.moments(kernels)) for kernels in scope.by_device.values()], scope)


def efficiency(shaped: Shaped, scope: Scope) -> float:
    """Return nanoseconds of one GPU, each moment weighted by the fraction of the SMs that have a block."""
    changes: list[tuple[int, int, float]] = []
    for kernel, shape in shaped:
        for start, end in scope.within(kernel):
            part = shape.efficiency or 0.0
            changes += [(start, 1, part), (end, -1, -part)]
    total, running, occupied, since = 0.0, 0, 0.0, 0
    for moment, more, part in sorted(changes):
        total += min(occupied, 1.0) * (moment - since)
        running, since = running + more, moment
        occupied = occupied + part if running else 0.0  # exactly 0: sums of floats would leave a rounding error
    return total


def host_only_reason(scope: Scope) -> str:
    """Return why an accelerator's numbers are unknown, for a trace that has the host's events only."""
    return (
        f"host only: the trace shows that an accelerator was used ({scope.host_only}), but it has none of its work; "
        "take the trace with the activity of that device"
    )


def _levels_of_host(scope: Scope) -> dict[str, Level]:
    if scope.host_only:
        names = ("busy", "sm_efficiency", "occupancy", "tensor_share")
        return {name: Level(name, reason=host_only_reason(scope)) for name in names}
    found = {name: Level(name, reason=_NO_GPU) for name in ("sm_efficiency", "occupancy", "tensor_share")}
    basis = f"operators of any thread, {scope.steps.basis}"
    return {"busy": Level("busy", busy_of(scope), basis), **found}


def _levels_of_gpus(scope: Scope) -> dict[str, Level]:
    basis = scope.steps.basis
    if len(scope.by_device) > 1:
        basis = f"mean of {len(scope.by_device)} GPUs, {basis}"
    tensor = [
        length(scope.moments(k for k in kernels if uses_tensor_cores(k.name))) for kernels in scope.by_device.values()
    ]
    shaped = [
        [(kernel, shape_of(kernel, scope.devices.get(number, Device()))) for kernel in kernels]
        for number, kernels in scope.by_device.items()
    ]
    return {
        "busy": Level("busy", busy_of(scope), basis),
        "sm_efficiency": _sm_efficiency(shaped, scope, basis),
        "occupancy": _occupancy(shaped, scope, basis),
        "tensor_share": Level("tensor_share", _mean_over_gpus(tensor, scope), f"names of kernels, {basis}"),
    }


def _sm_efficiency(shaped: Sequence[Shaped], scope: Scope, basis: str) -> Level:
    all_pairs = [pair for pairs in shaped for pair in pairs]
    known = _known_fraction([pair for pair in all_pairs if pair[1].blocks is not None], all_pairs, scope)
    if known < KNOWN:
        why = f"the trace has launch shapes and the number of SMs for only {known:.0%} of the kernels' time"
        return Level("sm_efficiency", reason=why)
    value = _mean_over_gpus([efficiency(pairs, scope) for pairs in shaped], scope)
    return Level("sm_efficiency", value, basis + _coverage_note(known))


def _occupancy(shaped: Sequence[Shaped], scope: Scope, basis: str) -> Level:
    all_pairs = [pair for pairs in shaped for pair in pairs]
    if not all_pairs:
        return Level("occupancy", reason="no kernel runs in the steps")
    with_occupancy = [(kernel, shape) for kernel, shape in all_pairs if shape.occupancy is not None]
    known = _known_fraction(with_occupancy, all_pairs, scope)
    if known < KNOWN:
        why = f"the trace has launch shapes and the SMs' limits for only {known:.0%} of the kernels' time"
        return Level("occupancy", reason=why)
    weights = [scope.nanoseconds(kernel) for kernel, _ in with_occupancy]
    total = sum(weights)
    value = (
        sum(w * (s.occupancy or 0.0) for w, (_, s) in zip(weights, with_occupancy, strict=True)) / total
        if total
        else 0.0
    )
    bounded = any(shape.bounded for _, shape in with_occupancy)
    upper_bound = "; at most, because registers or shared memory of some kernels are unknown" if bounded else ""
    return Level("occupancy", value, basis + _coverage_note(known) + upper_bound, at_most=bounded)


def _known_fraction(some: Shaped, all_pairs: Shaped, scope: Scope) -> float:
    """Return the fraction of the kernels' time that `some` make up; 1 if there are no kernels."""
    total = sum(scope.nanoseconds(kernel) for kernel, _ in all_pairs)
    return sum(scope.nanoseconds(kernel) for kernel, _ in some) / total if total else 1.0


def _coverage_note(known: float) -> str:
    return "" if known == 1 else f"; {known:.1%} of the kernels' time, the rest counted as 0"


def _mean_over_gpus(nanoseconds: Sequence[float], scope: Scope) -> float:
    return scope.share(fmean(nanoseconds)) if nanoseconds else 0.0
