"""A profile of nothing but traces: files from elsewhere, one for each rank of a job. It puts the parts together.

What a live profile reads from its own trace comes from the same functions, each of which takes what
`scope.scope_of(trace)` makes of a trace: `levels.levels_of`, `shares.shares_of`, `categories.categories_of`,
`spans.spans_of`, `ranks.ranks_of`, `layers.layers_of`, and `timing_of` and `environment_of` here.
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
from autofuse.profiling.trace.meetings import Meeting, clocks_of, meetings_of, rank_steps_of
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
    """What all files together tell: traces of one job, memory of a snapshot, counters of DCGM. A snapshot alone makes a
    profile without a step. Raises as profile_of_traces does, and trace.Unreadable where there is neither a trace nor a
    snapshot."""
    if not inputs.traces and inputs.memory is None:
        raise Unreadable("Counters by themselves make no profile: pass the trace of the same program beside them.")
    if inputs.traces:
        made = profile_of_traces(inputs.traces, ncu, peak)
    else:
        made = Profile("a memory snapshot", Timing((), Interval(0.0, 0.0)), ladder({}, _ONLY_LIVE), kind="trace")
    known = {level.name: level for level in made.ladder if level.value is not None or level.name not in inputs.levels}
    return replace(
        made,
        ladder=ladder(known | inputs.levels, "") if inputs.levels else made.ladder,
        memory=inputs.memory or made.memory,
        power=inputs.power or made.power,
        notes=(*made.notes, *inputs.notes),
    )


_ONLY_LIVE = "a trace does not tell it: profile the model where it runs, with autofuse.profile or `autofuse profile`"


def profile_of_traces(
    traces: Sequence[Trace], ncu: Path | None = None, peak: tuple[float | None, float | None] = (None, None)
) -> Profile:  # fmt: skip
    """What traces of one job tell, one trace a rank; of several ranks, the slowest one's numbers.

    ncu: a report of Nsight Compute as CSV, for the levels that it has. peak: FLOP/s and bytes a second of the device,
    for one that no data sheet is known of here, or in place of it. Raises ValueError without any trace,
    nsight.Unsuitable where the report cannot be used, OSError where it cannot be read.
    """
    if not traces:
        raise ValueError("A profile of traces takes at least one trace; there is none.")
    scopes, unnumbered = scopes_by_rank([scope_of(trace, peak=peak) for trace in traces])
    waits = waits_of_job(scopes)
    ranks = ranks_of(scopes)
    meetings = meetings_of(scopes)
    ranks = _told_more(ranks, scopes, waits, meetings)
    shown = max(ranks, key=lambda rank: rank.seconds).rank
    if waits is not None and waits.last is not None:
        shown = waits.last
    scope = scopes[shown]
    known = levels_of(scope) | _flops_level(scope) | (levels_of_report(ncu) if ncu else {})
    times = layers_of(scope.trace, scope.steps)
    worlds = [trace.world for trace in traces if trace.world is not None]
    return Profile(
        name=_name(traces),
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
        rank_steps=rank_steps_of(scopes, meetings),
        collectives=collective_rates(scopes, shown),
        environment=environment_of(scope),
        diagnosis=diagnosis_of(scopes, shown, waits),
        notes=(*_notes(scope), *unnumbered, *notes_of(ranks, max(worlds, default=None), shown)),
    )


def _told_more(
    ranks: Sequence[Rank], scopes: Mapping[int, Scope], waits: Waits | None, meetings: Sequence[Meeting]
) -> tuple[Rank, ...]:
    """The ranks with what each does in a step, what of its waits is exposed, and its clock."""
    if len(ranks) < 2:
        return tuple(ranks)
    does, clocks = seconds_of_ranks(scopes), clocks_of(meetings)
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
    """The length of every step; the average one where the trace marks none and only their number is known.

    They are as long as they were under the profiler, which slows the host down. Where the GPU is behind the host by
    whole steps, the marks tell when steps were launched and not how long they took: then it is the average, too.
    """
    windows = scope.steps.windows
    if scope.steps.count == len(windows) and not behind(scope):
        seconds = tuple((end - start) * 1e-9 for start, end in windows)
    else:
        seconds = (scope.steps.seconds,)
    return Timing(seconds, median_interval(seconds))


def behind(scope: Scope) -> bool:
    """Whether much of the GPU's work runs in a later step than the one that launched it."""
    starts = [start for start, _ in scope.steps.windows]
    late = total = 0
    for work in scope.work if len(starts) > 1 else ():
        launch, time = scope.launch_of(work), scope.nanoseconds(work)
        total += time
        if launch is not None and bisect_right(starts, launch.start) < bisect_right(starts, work.start):
            late += time
    return late > _BEHIND * total


_BEHIND = 0.2
_APART = 0.02  # of a step: the mean and the median are said to differ


def flops_of(scope: Scope) -> Flops:
    """What was executed in a step, where a GPU's trace recorded shapes. What the model asked for no trace tells."""
    found = count_flops(scope) if scope.has_gpu else _ONLY_LIVE
    if isinstance(found, str):
        return Flops(reason=found)
    return Flops(
        hardware=round(found.total), basis=f"shapes of operators in the trace, {found.dtype}", reason=_ONLY_LIVE
    )


def environment_of(scope: Scope) -> dict[str, str]:
    """What the trace says of the machine; no host, no user, no path."""
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


def _name(traces: Sequence[Trace]) -> str:
    first = traces[0].name or "a trace"
    return first if len(traces) == 1 else f"{first} and {len(traces) - 1} more"


def _notes(scope: Scope) -> tuple[str, ...]:
    said = [f"Read from {scope.steps.basis}. Steps are as long as they were under the profiler."]
    middle = timing_of(scope).median
    if abs(middle - scope.steps.seconds) > _APART * middle:
        said.append(
            f"Seconds and shares of parts are of the mean step, {scope.steps.seconds * 1e3:.4g} ms; the median step "
            f"takes {middle * 1e3:.4g} ms."
        )
    if scope.host_only:
        said.append(f"Times are {host_only_reason(scope)}.")
    if scope.trace.left_out:
        said.append(f"{scope.trace.left_out} entries of the trace say no time and are left out.")
    if not scope.steps.nanoseconds:
        said.append("No time passes in the steps of this trace, so nothing can be said about it.")
    return tuple(said)
