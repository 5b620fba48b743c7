"""Computes what a step of a GPU loses to its host: waits for data, for launches, for copies and events."""

from __future__ import annotations

from collections import Counter

from autofuse.profiling.trace.diagnosis.host import Host
from autofuse.profiling.trace.diagnosis.losses import Loss, milliseconds, percent, times
from autofuse.profiling.trace.diagnosis.waiting import STRETCH, WaitedFor, computes, from_host
from autofuse.profiling.trace.diagnosis.words import allocator_variable, graph
from autofuse.profiling.trace.intervals import IntervalLookup, length
from autofuse.profiling.trace.kernels import category_of
from autofuse.profiling.trace.scope import Scope
from autofuse.results.diagnosis import Action, Confidence

_WORKERS = 4
_GAP = 1.5e-6  # seconds between two kernels of a captured graph
_COMPILED = 0.3  # if more of the kernels are compiled, the model counts as compiled


def data_loss(scope: Scope, host: Host, waiting: WaitedFor) -> Loss:
    """Return the loss to data: the GPU computes nothing, nothing is queued, and the host fetches a batch."""
    step, lost = scope.steps.seconds, scope.seconds(length(waiting.data))
    share = percent(lost, step)
    if waiting.inferred:
        seen = (
            "the host launches nothing until it copies a batch" if host.has_events else "a copy to the GPU ends the gap"
        )
        evidence = f"the GPU does nothing for {times(lost)} of a step of {times(step)}; {seen}"
        sentence = f"Waits for data: {share} of the step the GPU idles until the next batch is copied to it."
    else:
        loading = scope.seconds(length(host.data))
        evidence = f"fetching a batch takes {times(loading)} of a step of {times(step)}, {times(lost)} of it alone"
        sentence = f"Waits for data: {share} of the step the GPU idles while the host waits for the data loader."
    sure: Confidence = "high" if not waiting.inferred else "medium" if host.has_events else "low"
    single = any("SingleProcess" in event.name for event in host.loader_marks)
    loader = scope.seconds(length(host.data)) or lost
    saved = max(0.0, min(lost, lost - max(0.0, loader / _WORKERS - (step - lost)))) if single else lost
    more = (
        f"Load batches in other processes: DataLoader(..., num_workers={_WORKERS}, pin_memory=True, "
        "persistent_workers=True)."
        if single
        else "Use more loader workers: DataLoader(..., num_workers=N, persistent_workers=True, "
        "prefetch_factor=4), with "
        "N up to the cores for each GPU; make what a worker does cheaper (decoding, "
        "augmentation) where cores are short."
    )
    actions = (
        Action("loader-workers", more, milliseconds(saved), evidence, sure),
        Action(
            "data-format",
            "Store the samples as they are used (decoded, tokenised, resized) on a local disk.",
            None,
            evidence,
            "medium",
        ),
    )
    return Loss("data", lost, sentence, actions)


def launch_loss(scope: Scope, host: Host, waiting: WaitedFor) -> Loss:
    """Return the loss to late launches: the GPU computes nothing, and nothing is queued, for one of four reasons."""
    step = scope.steps.seconds
    latency, slow, pause, allocation = (
        scope.seconds(length(moments)) for moments in (waiting.latency, waiting.host, waiting.pause, waiting.allocation)
    )
    untold = scope.seconds(length(waiting.untold))
    lost = latency + slow + pause + allocation + untold
    synced = _seconds_lost_to_waits(scope, host, waiting, lost)
    kernels = sum(1 for work in scope.kernels if scope.begins(work)) / scope.steps.count
    share = percent(lost, step)
    # Waits and pauses overlap: without its waits, the host would finish the work of a pause in time. The larger counts.
    reasons = {"wait": synced, "allocation": allocation, "pause": pause}
    reasons["slow"] = max(0.0, lost - allocation - max(synced, pause))
    reason = max(reasons, key=lambda name: reasons[name])
    base = f"the GPU computes nothing for {times(lost)} of a step of {times(step)}, and nothing is queued"
    graph = _graph_action(scope, host, reasons["slow"] - kernels * _GAP, kernels, base)
    batch = Action(
        "larger-batch",
        "Make the batch larger: launching takes the same time, and each kernel does more.",
        None,
        f"{kernels:,.0f} kernels a step",
        "medium",
    )
    if not host.has_events:
        long = scope.seconds(sum(end - start for start, end in waiting.untold if end - start >= STRETCH))
        if long > 0.5 * lost:
            sentence = (
                f"The GPU idles {share} of the step in long stretches. The trace does not show why: "
                "it has no events of the host."
            )
            return Loss("launch", lost, sentence, (_record(),))
        sentence = (
            f"Launch-bound, by the shape of the gaps: the GPU idles {share} of the step between {kernels:,.0f} kernels."
        )
        return Loss("launch", lost, sentence, (graph, batch, _record()))
    if reason == "wait":
        count, called = host.count(host.syncs), _waiting_operators(scope, host)
        sentence = (
            f"Launch-bound by synchronisation: the GPU idles {share} of the step, because the host waits for it "
            f"{count:,.0f} times a step and has nothing queued afterwards."
        )
        text = (
            f"Remove what waits for the GPU in the step{called}: .item(), .cpu(), print(loss), a Python `if` on a "
            "tensor, nonzero(). Log every N steps, and keep the numbers on the GPU until then."
        )
        first = Action("remove-synchronisation", text, milliseconds(synced), f"{base}; {_sync_counts(host)}", "high")
        return Loss("launch", lost, sentence, (first, graph, batch))
    if reason == "allocation":
        count, called = host.count(host.allocations), " or ".join(sorted({e.name for e in host.allocations}))
        called = f"{count:,.0f} {called}"
        sentence = (
            f"Launch-bound by memory allocation: {percent(allocation, step)} of the step the GPU idles while the host "
            f"is in {count:,.0f} calls of the driver's allocator."
        )
        text = (
            f"Reuse memory: {allocator_variable(scope)}=expandable_segments:True, inputs of few different sizes, "
            "no torch.cuda.empty_cache() in the step, and some memory left free."
        )
        first = Action("allocator", text, milliseconds(allocation), f"{called} a step", "high")
        return Loss("launch", lost, sentence, (first, graph))
    if reason == "pause":
        doing = _work_in_pauses(scope, waiting)
        sentence = (
            f"The host does something else: {percent(pause, step)} of the step the GPU idles in long stretches without "
            f"any launch{f', in {doing}' if doing else ''}."
        )
        text = (
            f"Remove {doing or 'what runs there (Python code, logging, a checkpoint, a metric)'} from "
            "the step, or run it in another thread or every N steps."
        )
        first = Action("host-work", text, milliseconds(pause), base, "medium")
        return Loss("launch", lost, sentence, (first,))
    sentence = f"Launch-bound: the GPU idles {share} of the step while the host launches {kernels:,.0f} kernels."
    return Loss("launch", lost, sentence, (graph, batch))


def blocked_loss(scope: Scope, host: Host, waiting: WaitedFor) -> Loss:
    """Return the loss to blocked kernels: queued kernels wait for a copy or for an event, or the host itself copies."""
    step = scope.steps.seconds
    copy, event = (scope.seconds(length(moments)) for moments in (waiting.copy, waiting.event))
    lost = copy + event
    if event > copy:
        calls = [e for e in host.calls if "WaitEvent" in e.name]
        sentence = (
            f"Blocked: {percent(event, step)} of the step kernels are queued on the GPU, and wait for an event of "
            "another stream or process."
        )
        text = (
            "Find what the stream waits for (wait_stream, wait_event, Event.wait). Record that "
            "event earlier, or wait for it later: right before its result is used."
        )
        evidence = (
            f"{times(event)} with work queued and nothing running; {host.count(calls):,.0f} waits for events a step"
        )
        return Loss("blocked", lost, sentence, (Action("event", text, milliseconds(event), evidence, "high"),))
    into, pageable, megabytes = _copies(scope)
    way = "to the GPU" if into else "from the GPU"
    memory = (
        " from memory that is not pinned" if pageable and into else " to memory that is not pinned" if pageable else ""
    )
    sentence = f"Blocked by copies: {percent(copy, step)} of the step the GPU waits for copies {way}{memory}."
    if not into:
        text = (
            "Keep tensors on the GPU: remove .cpu(), .numpy() and offloading from the step, or copy "
            "to pinned memory with non_blocking=True."
        )
    elif pageable:
        text = (
            "Pin the memory and copy ahead: DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)."
        )
    else:
        text = (
            "Copy the next batch in its own stream while this one computes (torch.cuda.Stream, "
            "non_blocking=True), or keep on the GPU what every step copies (offloaded weights)."
        )
    kind = "pin-memory" if into and pageable else "prefetch" if into else "keep-on-device"
    evidence = f"{times(copy)} of copies while nothing else runs; {megabytes:,.1f} MB a step"
    return Loss("blocked", lost, sentence, (Action(kind, text, milliseconds(copy), evidence, "high"),))


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


def _record() -> Action:
    text = "Take the trace with ProfilerActivity.CPU, too: it shows what the host does in the gaps."
    return Action("record-host", text, None, "the trace has no events of the host", "high")


def _waiting_operators(scope: Scope, host: Host) -> str:
    """Return the operators that contain the waits, in brackets."""
    inside = IntervalLookup((e.start, e.start + 1) for e in host.syncs)
    names = Counter(e.name for e in scope.trace.of("cpu_op") if scope.begins(e) and inside.of(e.start, e.end))
    named = [name for name, _ in names.most_common() if name.rpartition("::")[2] in _WAITING_OPERATORS]
    return f" ({', '.join(named[:2])})" if named else ""


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


def _copies(scope: Scope) -> tuple[bool, bool, float]:
    """Return whether most copy time is to the GPU, whether its memory is pageable, and megabytes per step."""
    copies = [w for w in scope.work if w.category == "gpu_memcpy" and not computes(w) and scope.begins(w)]
    into = sum(w.duration for w in copies if from_host(w)) >= sum(w.duration for w in copies if not from_host(w))
    mine = [w for w in copies if from_host(w) == into]
    pageable = 2 * sum(w.duration for w in mine if "pageable" in w.name.lower()) > sum(w.duration for w in mine)
    sizes = (float(w.args.get("bytes", 0) or 0) for w in copies if isinstance(w.args.get("bytes", 0), (int, float)))
    return into, pageable, sum(sizes) / scope.steps.count / 1e6
