"""Combines the results of the instruments into one profile. Measures nothing itself, except the machine's roofs."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.measure.environment import environment
from autofuse.profiling.live.advice import with_advice
from autofuse.profiling.live.measurements import Measurements
from autofuse.profiling.live.ranks import gather_ranks, this_rank
from autofuse.profiling.live.roofline import levels, regimes
from autofuse.profiling.live.roofs import Roofs, roofs
from autofuse.profiling.trace.categories import categories_of, kernels_of
from autofuse.profiling.trace.diagnosis.of_profile import diagnose_profile
from autofuse.profiling.trace.layer_totals import layers, share_intervals_of, sm_efficiency_of
from autofuse.profiling.trace.layers import layers_of
from autofuse.profiling.trace.levels import levels_of
from autofuse.profiling.trace.overhead import remove_recording_cost, scale_to_timed_phases
from autofuse.profiling.trace.owned_time import shorter_half
from autofuse.profiling.trace.scope import Scope, scope_of
from autofuse.profiling.trace.steps import steps_of
from autofuse.profiling.trace.time_shares import shares_of
from autofuse.profiling.trace.timeline import spans_of
from autofuse.results.comparison import Interval
from autofuse.results.ladder import ladder, of_a_cpu
from autofuse.results.medians import median_interval
from autofuse.results.profile import Layer, Profile, Rank, Share, Timing

_PARTS = ("forward", "backward", "optimizer", "data", "idle")  # the parts that add up to a step
BUSY = 0.05  # if the thread waits for a core for a larger fraction of the time, the machine is busy
_NOT_MEASURED = "it was not measured"


def assemble(found: Measurements, together: bool = True) -> Profile:
    """Return the profile of a step.

    Under torch.distributed every rank must call it, because ranks exchange their times. If a rank's program ended
    before the others', pass `together=False` there.
    """
    with preserve_generators():  # measuring the machine draws random numbers
        profile = _build_profile(found)
    rank = this_rank() if together else None
    profile = profile if rank is None else replace(profile, ranks=gather_ranks(_rank_line(rank, profile)))
    return replace(
        profile, diagnosis=diagnose_profile(profile, None if found.trace is None else _scope_of_measurements(found))
    )


def _build_profile(found: Measurements) -> Profile:
    seconds, machine = median(found.seconds), roofs(found.device)
    profile = Profile(
        found.name,
        Timing(
            tuple(found.seconds), median_interval(found.seconds), found.samples, found.tokens, tuple(found.yardstick)
        ),
        ladder({**found.counters, **levels(found.flops, seconds, machine, found.own)}, _NOT_MEASURED),
        kind=found.kind,
        memory=found.memory,
        shares=tuple(found.shares),
        flops=found.flops,
        roof=machine.roof(found.flops.dtype),
        power=found.power,
        probe=found.probe,
        losses=tuple(found.losses),
        environment=environment(found.device),
        notes=(*_busy_machine(found.cores.share), *found.notes),
    )
    profile = profile if found.trace is None else _with_trace(profile, found, machine)
    return replace(profile, ladder=of_a_cpu(profile.ladder)) if found.device.type == "cpu" else profile


def _with_trace(profile: Profile, found: Measurements, machine: Roofs) -> Profile:
    scope = _scope_of_measurements(found)
    assert found.trace is not None
    seconds = profile.timing.median
    times = remove_recording_cost(layers_of(found.trace, scope.steps), seconds, found.cost)
    shares = _shares(found.shares, shares_of(scope), seconds, found.rest)
    times = times if times.on_device else scale_to_timed_phases(times, shares)
    live_levels = {level.name: level for level in profile.ladder if level.reason != _NOT_MEASURED}
    kinds = {name: type(module).__name__ for name, module in found.names.items()}
    every = layers(
        times.own, found.own, kinds, times.calls, seconds, sm_efficiency_of(times), share_intervals_of(times)
    )
    every = regimes(_with_memory(every, found), machine, found.probe, found.flops.dtype, found.grown)
    return replace(
        profile,
        ladder=ladder(levels_of(scope) | live_levels, _NOT_MEASURED),
        layers=with_advice(every, found.readings, seconds, found.device),
        shares=shares,
        attribution=times.attribution,
        categories=categories_of(scope),
        kernels=kernels_of(scope),
        timeline=spans_of(scope),
    )


def _scope_of_measurements(found: Measurements) -> Scope:
    assert found.trace is not None
    steps = steps_of(
        found.trace
    )  # all steps of a live profile do the same work, so other programs made the longer ones longer
    return scope_of(found.trace, shorter_half(steps) if found.kind == "live" else steps)


def _with_memory(every: tuple[Layer, ...], found: Measurements) -> tuple[Layer, ...]:
    if found.memory.peak_bytes is None:
        return every
    return tuple(replace(layer, peak_bytes=found.held.get(layer.fqn, 0)) for layer in every)


def _busy_machine(waited: float) -> tuple[str, ...]:
    """Return a warning if other programs took the cores while steps were timed and recorded."""
    if waited <= BUSY:
        return ()
    return (
        f"The machine was busy with other programs: while steps were timed and recorded, the profiled thread waited "
        f"{waited:.0%} of the time for a core. Steps are that much longer than on an idle machine, and shares are less "
        "reliable: profile again on an idle machine.",
    )


def _shares(
    clocked: list[Share], recorded: tuple[Share, ...], seconds: float, rest: Interval | None = None
) -> tuple[Share, ...]:
    """Return the shares, in seconds of a timed step. Shares clocked in timed steps take precedence over recorded ones.

    The parts of a step that were not clocked share the rest, in the proportions of the recorded steps, because the
    recorded steps were other steps.

    Args:
        clocked: Shares measured in timed steps.
        recorded: Shares of the recorded steps.
        seconds: The length of a timed step.
        rest: The interval of the share that the clocked ones leave. It widens the intervals of the parts that share it.
    """
    known = {share.name: share for share in clocked if share.share is not None}
    clocked_rest = 1 - sum(share.share or 0.0 for share in known.values())
    recorded_left = sum(share.share or 0.0 for share in recorded if share.name in _PARTS and share.name not in known)
    scale = max(0.0, clocked_rest) / recorded_left if known and recorded_left else 1.0

    def of_a_timed_step(share: Share) -> Share:
        if share.share is None:
            return share
        scaled = share.name in _PARTS and share.name not in known
        part = share.share * (scale if scaled else 1.0)
        interval = _scale_interval(share.interval, rest, recorded_left) if scaled and known else share.interval
        return replace(share, share=part, seconds=part * seconds, interval=interval)

    return tuple(of_a_timed_step(known.get(share.name, share)) for share in recorded)


def _scale_interval(recorded: Interval | None, rest: Interval | None, recorded_left: float) -> Interval | None:
    """Return the interval of a part of the rest: its bounds are the products of both lower and both upper bounds."""
    if recorded is None or rest is None or not recorded_left:
        return None
    low, high = recorded.low / recorded_left, min(1.0, recorded.high / recorded_left)
    return Interval(low * rest.low, high * rest.high)


def _rank_line(rank: int, profile: Profile) -> Rank:
    seconds = {share.name: share.seconds for share in profile.shares}
    busy = profile.level("busy").value
    return Rank(rank, profile.timing.median, seconds.get("communication"), seconds.get("exposed communication"), busy)
