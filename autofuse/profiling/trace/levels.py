"""The levels of the ladder that a trace tells: busy time, SM efficiency, occupancy, tensor-core share.

`levels_of(scope_of(trace))` is for live profiles too. Knows events and launch shapes; names, order and formulas of the
levels are those of autofuse/results/ladder.py.

Several GPUs in one trace count as the mean of those that ran a kernel. Kernels of several streams may overlap: at a
moment at which several run, the GPU is busy once, and the parts of the SMs that they can occupy add up, to all of
them at most. So SM efficiency is never above busy time, and without overlap it is the sum of the formula.
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

KNOWN = 0.95  # of the kernels' time, for which launch shapes must be known
_NO_GPU = "no GPU kernel is in the trace: it was taken on a CPU, or without ProfilerActivity.CUDA"

Shaped = Sequence[tuple[Event, Shape]]


def levels_of(scope: Scope) -> dict[str, Level]:
    """All that a trace tells of the ladder, by name; and for what only something else tells, why."""
    found = _of_gpus(scope) if scope.has_gpu else _of_host(scope)
    for kind in LEVELS:
        found.setdefault(kind.name, Level(kind.name, reason="a trace does not tell it"))
    return found


def busy_of(scope: Scope) -> float:
    """The busy level: the part of the steps in which a kernel runs, or on a CPU an operator."""
    if not scope.has_gpu:
        return scope.share(length(busy_on_host(scope)))
    return _mean([length(scope.moments(kernels)) for kernels in scope.by_device.values()], scope)


def efficiency(shaped: Shaped, scope: Scope) -> float:
    """Nanoseconds of one GPU weighed by the part of its SMs that has a block at that moment."""
    changes: list[tuple[int, int, float]] = []
    for kernel, shape in shaped:
        for start, end in scope.within(kernel):
            part = shape.efficiency or 0.0
            changes += [(start, 1, part), (end, -1, -part)]
    total, running, occupied, since = 0.0, 0, 0.0, 0
    for moment, more, part in sorted(changes):
        total += min(occupied, 1.0) * (moment - since)
        running, since = running + more, moment
        occupied = occupied + part if running else 0.0  # exactly nothing, where rounding would leave a trace
    return total


def host_only_reason(scope: Scope) -> str:
    """Why an accelerator's numbers cannot be told, of a trace that shows its host only."""
    return (
        f"host only: the trace shows that an accelerator was used ({scope.host_only}) and has none of its work; take "
        "it with the activity of that device"
    )


def _of_host(scope: Scope) -> dict[str, Level]:
    if scope.host_only:
        names = ("busy", "sm_efficiency", "occupancy", "tensor_share")
        return {name: Level(name, reason=host_only_reason(scope)) for name in names}
    found = {name: Level(name, reason=_NO_GPU) for name in ("sm_efficiency", "occupancy", "tensor_share")}
    basis = f"operators of any thread, {scope.steps.basis}"
    return {"busy": Level("busy", busy_of(scope), basis), **found}


def _of_gpus(scope: Scope) -> dict[str, Level]:
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
        "tensor_share": Level("tensor_share", _mean(tensor, scope), f"names of kernels, {basis}"),
    }


def _sm_efficiency(shaped: Sequence[Shaped], scope: Scope, basis: str) -> Level:
    every = [pair for pairs in shaped for pair in pairs]
    known = _known([pair for pair in every if pair[1].blocks is not None], every, scope)
    if known < KNOWN:
        why = f"the trace tells launch shapes and the number of SMs for {known:.0%} of the kernels' time only"
        return Level("sm_efficiency", reason=why)
    value = _mean([efficiency(pairs, scope) for pairs in shaped], scope)
    return Level("sm_efficiency", value, basis + _partly(known))


def _occupancy(shaped: Sequence[Shaped], scope: Scope, basis: str) -> Level:
    every = [pair for pairs in shaped for pair in pairs]
    if not every:
        return Level("occupancy", reason="no kernel runs in the steps")
    told = [(kernel, shape) for kernel, shape in every if shape.occupancy is not None]
    known = _known(told, every, scope)
    if known < KNOWN:
        why = f"the trace tells launch shapes and the SMs' limits for {known:.0%} of the kernels' time only"
        return Level("occupancy", reason=why)
    weights = [scope.nanoseconds(kernel) for kernel, _ in told]
    total = sum(weights)
    value = sum(w * (s.occupancy or 0.0) for w, (_, s) in zip(weights, told, strict=True)) / total if total else 0.0
    bounded = any(shape.bounded for _, shape in told)
    most = "; at most, for registers or shared memory of some kernels are not told" if bounded else ""
    return Level("occupancy", value, basis + _partly(known) + most, at_most=bounded)


def _known(some: Shaped, every: Shaped, scope: Scope) -> float:
    """The part of the kernels' time that some of them make up; 1 where there is none at all."""
    total = sum(scope.nanoseconds(kernel) for kernel, _ in every)
    return sum(scope.nanoseconds(kernel) for kernel, _ in some) / total if total else 1.0


def _partly(known: float) -> str:
    return "" if known == 1 else f"; {known:.1%} of the kernels' time, the rest counted as none"


def _mean(nanoseconds: Sequence[float], scope: Scope) -> float:
    return scope.share(fmean(nanoseconds)) if nanoseconds else 0.0
