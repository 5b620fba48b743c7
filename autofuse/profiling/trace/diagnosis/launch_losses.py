"""Computes what a step of a GPU loses to late launches: nothing is queued, and the host is late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autofuse.profiling.trace.diagnosis.host import Host
from autofuse.profiling.trace.diagnosis.losses import Loss, milliseconds, percent, times
from autofuse.profiling.trace.diagnosis.waiting import STRETCH, WaitedFor, computes
from autofuse.profiling.trace.diagnosis.words import allocator_variable, graph
from autofuse.profiling.trace.intervals import Interval, IntervalLookup, length
from autofuse.profiling.trace.kernels import category_of
from autofuse.profiling.trace.scope import Scope
from autofuse.results.diagnosis import Action

_GAP = 1.5e-6  # seconds between two kernels of a captured graph
_COMPILED = 0.3  # if more of the kernels are compiled, the model counts as compiled
_WAITING_OPERATORS = (
    "item",
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "masked_select",
    "unique",
    "_to_copy",
    "equal",
)


def launch_loss(scope: Scope, host: Host, waiting: WaitedFor) -> Loss:
    """Return the loss to late launches: the GPU idles with an empty queue, for one of four reasons."""
    launches = _Launches(scope, host, waiting)
    if not host.has_events:
        sentence, actions = _loss_without_host_events(launches)
    elif launches.reason == "wait":
        sentence, actions = _loss_to_waits_for_gpu(launches)
    elif launches.reason == "allocation":
        sentence, actions = _loss_to_allocation(launches)
    elif launches.reason == "pause":
        sentence, actions = _loss_to_pauses(launches)
    else:
        sentence = (
            f"Launch-bound: the GPU idles {launches.share} of the step while the host launches "
            f"{launches.kernels:,.0f} kernels."
        )
        actions = (launches.graph_action, launches.batch_action)
    return Loss("launch", launches.lost, sentence, actions)


@dataclass(frozen=True)
class _Launches:
    """The time without work on the GPU, in seconds of one step, and its reasons."""

    scope: Scope
    host: Host
    waiting: WaitedFor

    def seconds(self, moments: Sequence[Interval]) -> float:
        """The length of these moments in one step."""
        return self.scope.seconds(length(moments))

    @cached_property
    def lost(self) -> float:
        """The time in which nothing runs and nothing is queued."""
        w = self.waiting
        return sum(map(self.seconds, (w.latency, w.host, w.pause, w.allocation, w.untold)))

    @cached_property
    def reasons(self) -> dict[str, float]:
        """The cost of each reason.

        Waits and pauses overlap: without its waits, the host would finish the work of a pause in time. The larger of
        the two counts.
        """
        synced = _seconds_lost_to_waits(self.scope, self.host, self.waiting, self.lost)
        allocation, pause = self.seconds(self.waiting.allocation), self.seconds(self.waiting.pause)
        slow = max(0.0, self.lost - allocation - max(synced, pause))
        return {"wait": synced, "allocation": allocation, "pause": pause, "slow": slow}

    @property
    def reason(self) -> str:
        """The reason that costs most."""
        return max(self.reasons, key=lambda name: self.reasons[name])

    @property
    def share(self) -> str:
        """The lost time as a percentage of the step."""
        return percent(self.lost, self.scope.steps.seconds)

    @cached_property
    def kernels(self) -> float:
        """The kernels in one step."""
        return sum(1 for work in self.scope.kernels if self.scope.begins(work)) / self.scope.steps.count

    @property
    def evidence(self) -> str:
        """The lost time as a clause."""
        return (
            f"the GPU computes nothing for {times(self.lost)} of a step of {times(self.scope.steps.seconds)}, "
            "and nothing is queued"
        )

    @property
    def graph_action(self) -> Action:
        """The advice to launch fewer kernels."""
        saved = self.reasons["slow"] - self.kernels * _GAP
        return _graph_action(self.scope, self.host, saved, self.kernels, self.evidence)

    @property
    def batch_action(self) -> Action:
        """The advice to enlarge the batch."""
        text = "Make the batch larger: launching takes the same time, and each kernel does more."
        return Action("larger-batch", text, None, f"{self.kernels:,.0f} kernels a step", "medium")


_Advice = tuple[str, tuple[Action, ...]]


def _loss_without_host_events(launches: _Launches) -> _Advice:
    untold = launches.waiting.untold
    long = launches.scope.seconds(sum(end - start for start, end in untold if end - start >= STRETCH))
    if long > 0.5 * launches.lost:
        sentence = (
            f"The GPU idles {launches.share} of the step in long stretches. The trace does not show why: "
            "it has no events of the host."
        )
        return sentence, (_record_host_action(),)
    sentence = (
        f"Launch-bound, by the shape of the gaps: the GPU idles {launches.share} of the step between "
        f"{launches.kernels:,.0f} kernels."
    )
    return sentence, (launches.graph_action, launches.batch_action, _record_host_action())


def _loss_to_waits_for_gpu(launches: _Launches) -> _Advice:
    host, called = launches.host, _waiting_operators(launches.scope, launches.host)
    sentence = (
        f"Launch-bound by synchronisation: the GPU idles {launches.share} of the step, because the host waits for it "
        f"{host.count(host.syncs):,.0f} times a step and has nothing queued afterwards."
    )
    text = (
        f"Remove what waits for the GPU in the step{called}: .item(), .cpu(), print(loss), a Python `if` on a "
        "tensor, nonzero(). Log every N steps, and keep the numbers on the GPU until then."
    )
    saved, evidence = milliseconds(launches.reasons["wait"]), f"{launches.evidence}; {_sync_counts(host)}"
    first = Action("remove-synchronisation", text, saved, evidence, "high")
    return sentence, (first, launches.graph_action, launches.batch_action)


def _loss_to_allocation(launches: _Launches) -> _Advice:
    host, scope, allocation = launches.host, launches.scope, launches.reasons["allocation"]
    count, called = host.count(host.allocations), " or ".join(sorted({e.name for e in host.allocations}))
    sentence = (
        f"Launch-bound by memory allocation: {percent(allocation, scope.steps.seconds)} of the step the GPU idles "
        f"while the host is in {count:,.0f} calls of the driver's allocator."
    )
    text = (
        f"Reuse memory: {allocator_variable(scope)}=expandable_segments:True, inputs of few different sizes, "
        "no torch.cuda.empty_cache() in the step, and some memory left free."
    )
    first = Action("allocator", text, milliseconds(allocation), f"{count:,.0f} {called} a step", "high")
    return sentence, (first, launches.graph_action)


def _loss_to_pauses(launches: _Launches) -> _Advice:
    pause, doing = launches.reasons["pause"], _work_in_pauses(launches.scope, launches.waiting)
    sentence = (
        f"The host is busy with other code: {percent(pause, launches.scope.steps.seconds)} of the step the GPU idles "
        f"in long stretches without any launch{f', in {doing}' if doing else ''}."
    )
    text = (
        f"Remove {doing or 'what runs there (Python code, logging, a checkpoint, a metric)'} from "
        "the step, or run it in another thread or every N steps."
    )
    return sentence, (Action("host-work", text, milliseconds(pause), launches.evidence, "medium"),)


def _seconds_lost_to_waits(scope: Scope, host: Host, waiting: WaitedFor, lost: float) -> float:
    """Return the seconds of a step that would be saved if the host never waited for the GPU.

    Without those waits, the host runs ahead, and a step takes as long as the slower of the two: the host without its
    waits, the GPU without its gaps.
    """
    if not host.syncs:
        return 0.0
    step = scope.steps.seconds
    others = scope.seconds(length(waiting.data)) + scope.seconds(length(waiting.copy))
    busy = step - scope.seconds(length(host.waiting)) - others
    gpu = step - lost - others
    return max(0.0, min(lost, step - others - max(busy, gpu)))


def _graph_action(scope: Scope, host: Host, saved: float, kernels: float, base: str) -> Action:
    compiled = sum(1 for k in scope.kernels if category_of(k.name) == "compiled")
    evidence = f"{base}; {kernels:,.0f} kernels of {_mean_kernel_seconds(scope) * 1e6:.3g} us a step"
    if host.graph_launches:
        text = "Fuse small kernels: torch.compile(model), or autofuse.optimize(model); they are in a graph already."
        return Action("fuse-small-kernels", text, milliseconds(saved), evidence, "medium")
    if compiled > _COMPILED * len(scope.kernels):
        text = f'Launch the compiled kernels as {graph(scope)}: torch.compile(model, mode="reduce-overhead").'
    else:
        text = (
            'Launch fewer, larger kernels: torch.compile(model, mode="reduce-overhead") fuses them '
            f"and launches them as {graph(scope)}; autofuse.optimize(model) fuses without compiling; "
            "AdamW(..., fused=True)."
        )
    return Action("cuda-graphs", text, milliseconds(saved), evidence, "high" if host.linked else "medium")


def _mean_kernel_seconds(scope: Scope) -> float:
    times_of = [scope.nanoseconds(k) for k in scope.kernels if scope.begins(k) and computes(k)]
    return sum(times_of) / len(times_of) * 1e-9 if times_of else 0.0


def _record_host_action() -> Action:
    text = "Take the trace with ProfilerActivity.CPU, too: it shows what the host does in the gaps."
    return Action("record-host", text, None, "the trace has no events of the host", "high")


def _waiting_operators(scope: Scope, host: Host) -> str:
    """Return the operators that contain the waits, in brackets."""
    inside = IntervalLookup((e.start, e.start + 1) for e in host.syncs)
    names = Counter(e.name for e in scope.trace.of("cpu_op") if scope.begins(e) and inside.of(e.start, e.end))
    named = [name for name, _ in names.most_common() if name.rpartition("::")[2] in _WAITING_OPERATORS]
    return f" ({', '.join(named[:2])})" if named else ""


def _sync_counts(host: Host) -> str:
    names = Counter(e.name for e in host.syncs)
    return (
        ", ".join(f"{host.count([e for e in host.syncs if e.name == name]):,.0f} {name}" for name in names) + " a step"
    )


def _work_in_pauses(scope: Scope, waiting: WaitedFor) -> str:
    """Return the range or the operator that takes more than half of the pauses; "" if there is none."""
    pauses = IntervalLookup(waiting.pause)
    taken = Counter[str]()
    for event in scope.trace.of("user_annotation", "cpu_op", "python_function"):
        if not event.name.startswith(("ProfilerStep#", "Optimizer.", "nn.Module: ")) and scope.begins(event):
            inside = pauses.length(event.start, event.end)
            if inside > 0.5 * event.duration:
                taken[event.name] += inside
    whole = length(waiting.pause)
    return next((name[:60] for name, time in taken.most_common(1) if time > 0.5 * whole), "")
