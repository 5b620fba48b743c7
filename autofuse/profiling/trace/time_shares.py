"""The shares of a step's time: forward, backward, optimizer, waiting for data, idle; and what runs at the same time.

Live profiles use `shares_of(scope_of(trace))`, too. Each share says how it was determined, or why it is unknown.

- **forward, backward, optimizer, data, idle** are disjoint (autofuse/profiling/trace/phases.py). On a GPU they are
  moments of the GPU. It is idle if it runs neither a kernel nor a copy and nothing waits for a DataLoader.
- **host** on a GPU: moments at which it runs nothing and no launched work is pending, so it waits for the host to
  launch. Waiting for data is not included. On a CPU: moments at which no operator computes and nothing waits for data
  or for other ranks: Python, and dispatch outside of computing operators.
- **communication**: moments at which a collective runs. **exposed communication**: those at which no computing kernel
  (on a CPU, no computing operator) runs at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.ir.operator_categories import is_collective
from autofuse.profiling.trace.host_marks import PHASES, Phase
from autofuse.profiling.trace.intervals import Interval, difference, length, union
from autofuse.profiling.trace.kernels import communicates
from autofuse.profiling.trace.phases import computing_on_host, device_moments, host_moments
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.steps import LAUNCHES
from autofuse.results.profile_parts import Share

UNKNOWN = 0.2  # the fraction of the steps for which the phase may be unknown
_BASIS: dict[str, str] = {
    "forward": "everything that belongs to no other phase, including the loss",
    "backward": "nodes of the autograd engine",
    "optimizer": "torch's own ranges Optimizer.step and zero_grad",
    "data": "torch's own ranges of DataLoader",
}


def shares_of(scope: Scope) -> tuple[Share, ...]:
    """Return every share in a fixed order: the five disjoint ones, then host, communication, exposed communication."""
    phases, unknown = _phase_shares(scope)
    alone, exposed = communication(scope)
    known = [_phase_share(name, phases[name], unknown, scope) for name in PHASES]
    idle = scope.rest(*phases.values(), unknown)
    nothing = "neither a kernel nor a copy runs" if scope.has_gpu else "neither an operator nor a module runs"
    ran = "kernels of collectives" if scope.has_gpu else "ranges of collectives"
    return (
        *known,
        _share("idle", idle, scope, f"{nothing}, and nothing waits for data"),
        _host_share(scope),
        _share("communication", alone, scope, ran if alone else "no collective is in the trace"),
        _share("exposed communication", exposed, scope, f"{ran} while nothing computes"),
    )


def communication(scope: Scope) -> tuple[list[Interval], list[Interval]]:
    """Return the moments of the steps at which a collective runs, and those at which nothing computes meanwhile.

    On a GPU, kernels compute and copies do not. With several GPUs in one trace, a moment counts if it does on any of
    them.
    """
    if not scope.has_gpu:
        events = scope.trace.of("user_annotation")
        running = scope.moments(e for e in events if is_collective(e.name))
        running = running or scope.moments(e for e in scope.trace.of("cpu_op") if is_collective(e.name))
        return running, difference(running, computing_on_host(scope))
    running = scope.moments(k for k in scope.kernels if communicates(k.name))
    computing = scope.moments(k for k in scope.kernels if not communicates(k.name))
    return running, difference(running, computing)


def host_overhead(scope: Scope) -> list[Interval]:
    """Return the moments of the steps at which the machine waits for the host."""
    data = scope.rest(scope.rest(scope.marks.of("data")))
    if not scope.has_gpu:
        return scope.rest(computing_on_host(scope), data, communication(scope)[0])
    queued = []
    for work in scope.work:
        launch = scope.launch_of(work)
        queued.append((min(launch.end, work.start) if launch else work.start, work.end))
    return scope.rest(union(queued), data)


def _host_share(scope: Scope) -> Share:
    if not scope.has_gpu:
        basis = "no computing operator runs: Python and dispatch, without that inside computing operators"
        return _share("host", host_overhead(scope), scope, basis)
    unlinked = sum(scope.nanoseconds(work) for work in scope.work if scope.launch_of(work) is None)
    if unlinked > UNKNOWN * sum(map(scope.nanoseconds, scope.work)):
        why = "the trace does not show when the host launched the GPU's work: take it with ProfilerActivity.CPU, too"
        return Share("host", None, None, reason=why)
    return _share(
        "host", host_overhead(scope), scope, f"the GPU runs nothing, nothing is queued; {_launches_text(scope)}"
    )


def _launches_text(scope: Scope) -> str:
    calls = [e for e in scope.trace.of(*LAUNCHES) if "launch" in e.name.lower() and scope.begins(e)]
    each, milliseconds = len(calls) / scope.steps.count, scope.seconds(sum(e.duration for e in calls)) * 1e3
    return f"{each:,.0f} launches a step take {milliseconds:,.3g} ms of the host's time"


def _phase_shares(scope: Scope) -> tuple[dict[Phase, list[Interval]], list[Interval]]:
    if scope.has_gpu:
        return device_moments(scope)
    return host_moments(scope), []


def _phase_share(name: Phase, moments: list[Interval], unknown: list[Interval], scope: Scope) -> Share:
    """Return the share of a phase. If much of the GPU's work has no known launch, only waiting for data is known."""
    if name != "data" and scope.share(length(unknown)) > UNKNOWN:
        why = f"for {scope.share(length(unknown)):.0%} of the step the trace does not show what launched the GPU's work"
        return Share(name, None, None, reason=f"{why} (a captured graph, or a trace without the host's calls)")
    unlinked = scope.share(length(unknown))
    part = f"; for {unlinked:.1%} of the step the phase is unknown" if unlinked >= 0.001 and name != "data" else ""
    where = "GPU work launched in: " if scope.has_gpu and name != "data" else ""
    idle_gpu = ", while the GPU runs nothing" if scope.has_gpu and name == "data" else ""
    return _share(name, moments, scope, where + _BASIS[name] + idle_gpu + part)


def _share(name: str, moments: Sequence[Interval], scope: Scope, basis: str) -> Share:
    nanoseconds = length(moments)
    interval = scope.interval(scope.by_step(moments))
    return Share(name, scope.seconds(nanoseconds), scope.share(nanoseconds), basis, interval=interval)
