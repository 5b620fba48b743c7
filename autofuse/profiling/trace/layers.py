"""Reads from a trace what each layer of a model takes of a step: seconds, operators and calls, by module and phase.

On a GPU, a module's seconds are those of the kernels that its operators launched. On a CPU, they are those in which its
code holds the thread: its operators and the Python between them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autofuse.profiling.trace.attribution import attribution_of
from autofuse.profiling.trace.event_owners import NAMELESS, owners
from autofuse.profiling.trace.launch_shapes import Device, device_number, shape_of
from autofuse.profiling.trace.owned_time import OwnedTime, device_pieces, host_pieces
from autofuse.profiling.trace.scope import Scope, scope_of
from autofuse.profiling.trace.steps import Steps, steps_of
from autofuse.profiling.trace.trace import Event, Trace
from autofuse.profiling.trace.work import Own, Phase
from autofuse.results.profile import COMMUNICATION, OPTIMIZER, OUTSIDE, Attribution, Work

Key = tuple[str, Phase]

_NANO = 1e-9
_UNKNOWN = Device()


@dataclass(frozen=True)
class LayerTimes:
    """The average of the recorded steps.

    own: seconds and operators (on a GPU: kernels) by module and phase, OUTSIDE included.
    calls: calls by module, without recomputed ones.
    kinds: the modules' classes in order of their first calls; "" if the trace does not name them.
    events, made_calls: how many events were recorded on the host, and how many marked calls of other modules it made,
    by module and phase. Recording each of them takes time.
    step_seconds: from a step's beginning to its end, instruments included.
    steps: the number of steps.
    on_device: the seconds are those of kernels.
    kernel_seconds, sm_seconds: by module, the time of its kernels, and that time x min(blocks / SMs, 1); empty if
    unknown.
    by_step, step_lengths: by module, its own seconds in each step, both phases together, and the length of each step;
    empty if steps are not marked one by one.
    kernel_owners: the module that launched a kernel, by the id of the kernel's event in the trace.
    """

    own: Own
    calls: Mapping[str, int]
    kinds: Mapping[str, str]
    events: Mapping[Key, float]
    made_calls: Mapping[Key, float]
    step_seconds: float
    steps: int
    on_device: bool = False
    kernel_seconds: Mapping[str, float] = field(default_factory=dict)
    sm_seconds: Mapping[str, float] = field(default_factory=dict)
    attribution: Attribution = field(default_factory=Attribution)
    by_step: Mapping[str, Sequence[float]] = field(default_factory=dict)
    step_lengths: Sequence[float] = ()
    kernel_owners: Mapping[int, str] = field(default_factory=dict)


def layers_of(trace: Trace, steps: Steps | None = None) -> LayerTimes:
    """Return what each module takes of a step, on average. Pass `steps` to look at other steps than the trace's."""
    scope = scope_of(trace, steps)
    owned = owners(trace)
    pieces = list(device_pieces(owned, scope) if scope.has_gpu else host_pieces(owned, scope))
    inside = [one for one in owned if scope.begins(one.event)]
    count = scope.steps.count
    kernel_seconds, sm_seconds = _kernel_and_sm_seconds(pieces, scope)
    by_step = _seconds_by_step(pieces, scope)
    calls = Counter(one.owner for one in inside if one.called and one.owner is not None)
    return LayerTimes(
        _own_work(pieces, count),
        {name: round(number / count) for name, number in calls.items()},
        {one.owner: _class_of_call(one.event) for one in inside if one.is_call and one.owner is not None},
        _per_step(Counter(_owner_and_phase(one.owner, one.phase) for one in inside), count),
        _per_step(Counter(_owner_and_phase(one.caller, one.phase) for one in inside if one.is_call), count),
        scope.steps.seconds,
        count,
        scope.has_gpu,
        kernel_seconds,
        sm_seconds,
        attribution_of(pieces, owned, scope),
        by_step,
        [(end - start) * _NANO for start, end in scope.steps.windows] if by_step else (),
        {id(piece.kernel): piece.owner for piece in pieces if piece.kernel is not None and piece.owner is not None},
    )


def step_by_step(trace: Trace) -> list[dict[str, float]]:
    """Return the own seconds of each step by module, both phases together. The model, "", has all but OUTSIDE."""
    owned, found = owners(trace), list[dict[str, float]]()
    for window in steps_of(trace).windows:
        scope = scope_of(trace, Steps((window,), 1, "one step"))
        pieces = device_pieces(owned, scope) if scope.has_gpu else host_pieces(owned, scope)
        seconds: defaultdict[str, float] = defaultdict(float)
        for piece in pieces:
            name, _ = _owner_and_phase(piece.owner, piece.phase)
            for owner in {name, "" if name not in (OUTSIDE, OPTIMIZER, COMMUNICATION) else name}:
                seconds[owner] += piece.time * _NANO
        found.append(dict(seconds))
    return found


def _seconds_by_step(pieces: Sequence[OwnedTime], scope: Scope) -> dict[str, list[float]]:
    """Return the own seconds of each step by module; nothing if steps are not marked one by one."""
    count = len(scope.steps.windows)
    if scope.steps.count != count or count < 2:
        return {}
    found: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * count)
    for piece in pieces:
        at = scope.step_at(piece.begins)
        if at is not None:
            found[_owner_and_phase(piece.owner, piece.phase)[0]][at] += piece.time * _NANO
    return dict(found)


def _own_work(pieces: Sequence[OwnedTime], steps: int) -> Own:
    """The own work by module and phase. Time without a known owner counts as OUTSIDE; the attribution reports it."""
    times: Counter[Key] = Counter()
    operators: Counter[Key] = Counter()
    for piece in pieces:
        key = _owner_and_phase(piece.owner, piece.phase)
        times[key] += piece.time
        operators[key] += piece.operators
    return {key: Work(time * _NANO / steps, operators=round(operators[key] / steps)) for key, time in times.items()}


def _owner_and_phase(owner: str | None, phase: Phase) -> Key:
    return OUTSIDE if owner is None else owner, phase


def _per_step(counts: Mapping[Key, int], steps: int) -> dict[Key, float]:
    return {key: count / steps for key, count in counts.items()}


def _class_of_call(call: Event) -> str:
    """Return the class of a module: "Linear" for "nn.Module: Linear_3"."""
    return call.name.removeprefix(NAMELESS).rpartition("_")[0] if call.name.startswith(NAMELESS) else ""


def _kernel_and_sm_seconds(pieces: Sequence[OwnedTime], scope: Scope) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of kernels by module, and these seconds x the share of multiprocessors that have a block."""
    seconds: defaultdict[str, float] = defaultdict(float)
    occupied: defaultdict[str, float] = defaultdict(float)
    for piece in pieces:
        if piece.kernel is None or piece.kernel.category != "kernel":
            continue
        device = scope.devices.get(device_number(piece.kernel), _UNKNOWN)
        share = shape_of(piece.kernel, device).efficiency
        if share is not None:
            name, _ = _owner_and_phase(piece.owner, piece.phase)
            seconds[name] += scope.seconds(piece.time)
            occupied[name] += share * scope.seconds(piece.time)
    return dict(seconds), dict(occupied)
