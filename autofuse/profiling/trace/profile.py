"""Builds a profile from traces alone: files from another machine, one for each rank of a job.

Live profiles use the same functions. Each takes the result of `scope.scope_of(trace)`: `levels.levels_of`,
`time_shares.shares_of`, `categories.categories_of`, `timeline.spans_of`, `ranks.ranks_of`, `layers.layers_of`, and
`timing_of` and `environment_of` here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autofuse.profiling.trace.categories import categories_of, kernels_of
from autofuse.profiling.trace.collective_rates import collective_rates
from autofuse.profiling.trace.diagnosis.diagnose import diagnosis_of, seconds_of_ranks
from autofuse.profiling.trace.diagnosis.messages import Waits, waits_of_job
from autofuse.profiling.trace.flops import count_flops, hfu_of
from autofuse.profiling.trace.inputs.files import Inputs
from autofuse.profiling.trace.kernel_places import with_kernel_places
from autofuse.profiling.trace.layer_totals import layers, share_intervals_of, sm_efficiency_of
from autofuse.profiling.trace.layers import layers_of
from autofuse.profiling.trace.levels import host_only_reason, levels_of
from autofuse.profiling.trace.matched_collectives import MatchedCollective, clocks_of, match_collectives, rank_steps_of
from autofuse.profiling.trace.nsight import levels_of_report
from autofuse.profiling.trace.ranks import notes_of, ranks_of, scopes_by_rank
from autofuse.profiling.trace.scope import Scope, scope_of
from autofuse.profiling.trace.time_shares import shares_of
from autofuse.profiling.trace.timeline import spans_of
from autofuse.profiling.trace.trace import Trace, Unreadable
from autofuse.results.comparison import Interval
from autofuse.results.ladder import Level, ladder
from autofuse.results.medians import median_interval
from autofuse.results.profile import Flops, Memory, Power, Probe, Profile, Rank, Timing


def profile_of_inputs(
    inputs: Inputs, ncu: Path | None = None, peak: tuple[float | None, float | None] = (None, None)
) -> Profile:  # fmt: skip
    """Return the profile of all files together: traces of one job, memory of a snapshot, counters of DCGM.

    A snapshot alone gives a profile without a step.

    Args:
        inputs: What was read from the files.
        ncu: A report of Nsight Compute as CSV.
        peak: FLOP/s and bytes per second of the device; None for what the data sheet says.

    Raises:
        Unreadable: There is neither a trace nor a snapshot.
        ValueError, Unsuitable, OSError: As in profile_of_traces.
    """
    if not inputs.traces and inputs.memory is None:
        raise Unreadable("Counters alone give no profile: pass the trace of the same program, too.")
    if inputs.traces:
        profile = profile_of_traces(inputs.traces, ncu, peak)
    else:
        profile = Profile("a memory snapshot", Timing((), Interval(0.0, 0.0)), ladder({}, _ONLY_LIVE), kind="trace")
    known = {
        level.name: level for level in profile.ladder if level.value is not None or level.name not in inputs.levels
    }
    return replace(
        profile,
        ladder=ladder(known | inputs.levels, "") if inputs.levels else profile.ladder,
        memory=inputs.memory or profile.memory,
        power=inputs.power or profile.power,
        notes=(*profile.notes, *inputs.notes),
    )


_ONLY_LIVE = "a trace does not show it: profile the model where it runs, with autofuse.profile or `autofuse profile`"


def profile_of_traces(
    traces: Sequence[Trace], ncu: Path | None = None, peak: tuple[float | None, float | None] = (None, None)
) -> Profile:  # fmt: skip
    """Return the profile of one job's traces, one trace per rank.

    With several ranks, most numbers are those of the rank that the others wait for, else of the slowest rank.

    Args:
        traces: The traces.
        ncu: A report of Nsight Compute as CSV, for the levels that it has.
        peak: FLOP/s and bytes per second of the device. They replace the data sheet, or stand in for a missing one.

    Raises:
        ValueError: There is no trace.
        nsight.Unsuitable: The report cannot be used.
        OSError: The report cannot be read.
    """
    if not traces:
        raise ValueError("profile_of_traces needs at least one trace; got none.")
    scopes, unnumbered = scopes_by_rank([scope_of(trace, peak=peak) for trace in traces])
    waits = waits_of_job(scopes)
    ranks = ranks_of(scopes)
    matched = match_collectives(scopes)
    ranks = _with_details(ranks, scopes, waits, matched)
    shown = max(ranks, key=lambda rank: rank.seconds).rank
    if waits is not None and waits.last is not None:
        shown = waits.last
    scope = scopes[shown]
    known = levels_of(scope) | _flops_level(scope) | (levels_of_report(ncu) if ncu else {})
    times = layers_of(scope.trace, scope.steps)
    worlds = [trace.world for trace in traces if trace.world is not None]
    return Profile(
        name=_profile_name(traces),
        timing=timing_of(scope),
        ladder=ladder(known, ""),
        layers=with_kernel_places(
            layers(
                times.own,
                {},
                times.kinds,
                times.calls,
                times.step_seconds,
                sm_efficiency_of(times),
                share_intervals_of(times),
            ),
            times.kernel_owners,
            scope,
        ),
        kind="trace",
        memory=Memory(reason=_ONLY_LIVE),
        shares=shares_of(scope),
        flops=flops_of(scope),
        power=Power(reason=_ONLY_LIVE),
        probe=Probe(reason=_ONLY_LIVE),
        attribution=times.attribution,
        categories=categories_of(scope),
        kernels=kernels_of(scope),
        timeline=spans_of(scope),
        ranks=ranks if len(ranks) > 1 or worlds else (),
        rank_steps=rank_steps_of(scopes, matched),
        collectives=collective_rates(scopes, shown),
        environment=environment_of(scope),
        diagnosis=diagnosis_of(scopes, shown, waits),
        notes=(*_profile_notes(scope), *unnumbered, *notes_of(ranks, max(worlds, default=None), shown)),
    )


def _with_details(
    ranks: Sequence[Rank], scopes: Mapping[int, Scope], waits: Waits | None, matched: Sequence[MatchedCollective]
) -> tuple[Rank, ...]:
    """Return the ranks with what each does in a step, the exposed part of its waits, and its clock."""
    if len(ranks) < 2:
        return tuple(ranks)
    does, clocks = seconds_of_ranks(scopes), clocks_of(matched)
    found = []
    for one in ranks:
        mine, clock = does[one.rank], clocks.get(one.rank)
        found.append(
            replace(
                one, computing=mine["kernels"], data=mine["data"], host=mine["host"], copies=mine["copies"],
                waiting_exposed=None if waits is None else waits.ranks[one.rank].exposed,
                clock=None if clock is None else clock.offset * 1e-9,
                clock_error=None if clock is None else clock.error * 1e-9,
            )
        )  # fmt: skip
    return tuple(found)


def timing_of(scope: Scope) -> Timing:
    """Return the length of every step, or the average if only the number of steps is known.

    The lengths are those under the profiler, which slows the host down. If the GPU is whole steps behind the host, the
    marks show when steps were launched, not how long they took. Then the average is used, too.
    """
    windows = scope.steps.windows
    if scope.steps.count == len(windows) and not gpu_is_behind(scope):
        seconds = tuple((end - start) * 1e-9 for start, end in windows)
    else:
        seconds = (scope.steps.seconds,)
    return Timing(seconds, median_interval(seconds))


def gpu_is_behind(scope: Scope) -> bool:
    """Whether much of the GPU's work runs in a later step than the one that launched it."""
    starts = [start for start, _ in scope.steps.windows]
    late = total = 0
    for work in scope.work if len(starts) > 1 else ():
        launch, time = scope.launch_of(work), scope.nanoseconds(work)
        total += time
        if launch is not None and bisect_right(starts, launch.start) < bisect_right(starts, work.start):
            late += time
    return late > _BEHIND_FRACTION * total


_BEHIND_FRACTION = 0.2  # fraction of the GPU's work that runs in a later step
_NOTABLE_DIFFERENCE = 0.02  # fraction of a step: if the mean and the median differ by more, a note says so


def flops_of(scope: Scope) -> Flops:
    """Return the FLOPs executed in a step, if a GPU's trace has shapes. A trace never shows the model's own FLOPs."""
    found = count_flops(scope) if scope.has_gpu else _ONLY_LIVE
    if isinstance(found, str):
        return Flops(reason=found)
    return Flops(
        hardware=round(found.total), basis=f"shapes of operators in the trace, {found.dtype}", reason=_ONLY_LIVE
    )


def environment_of(scope: Scope) -> dict[str, str]:
    """Return what the trace says about the machine; no host name, no user, no path."""
    found = {"steps": scope.steps.basis}
    device = next((scope.devices[number] for number in scope.by_device if number in scope.devices), None)
    if device is not None:
        found |= {"device": device.name, "SMs": str(device.sms), "GPUs": str(len(scope.by_device))}
    if scope.trace.world is not None:
        found["world"] = str(scope.trace.world)
    versions = {key: value for key, value in scope.trace.about.items() if key.endswith("_version")}
    return {key: value for key, value in (found | versions).items() if value}


def _flops_level(scope: Scope) -> dict[str, Level]:
    return {"hfu": hfu_of(scope, count_flops(scope))} if scope.has_gpu else {}


def _profile_name(traces: Sequence[Trace]) -> str:
    first = traces[0].name or "a trace"
    return first if len(traces) == 1 else f"{first} and {len(traces) - 1} more"


def _profile_notes(scope: Scope) -> tuple[str, ...]:
    notes = [f"Read from {scope.steps.basis}. The times include the cost of the profiler."]
    middle = timing_of(scope).median
    if abs(middle - scope.steps.seconds) > _NOTABLE_DIFFERENCE * middle:
        notes.append(
            f"Seconds and shares of parts refer to the mean step, {scope.steps.seconds * 1e3:.4g} ms; the median step "
            f"takes {middle * 1e3:.4g} ms."
        )
    if scope.host_only:
        notes.append(f"Times are {host_only_reason(scope)}.")
    if scope.trace.left_out:
        notes.append(f"{scope.trace.left_out} entries of the trace have no time and are left out.")
    if not scope.steps.nanoseconds:
        notes.append("No time passes in the steps of this trace, so there is nothing to report.")
    return tuple(notes)
