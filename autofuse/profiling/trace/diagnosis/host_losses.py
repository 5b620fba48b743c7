"""Computes what a step of a GPU loses to its host: waits for data, for copies and for events."""

from __future__ import annotations

from autofuse.profiling.trace.diagnosis.host import Host
from autofuse.profiling.trace.diagnosis.losses import Loss, milliseconds, percent, times
from autofuse.profiling.trace.diagnosis.waiting import WaitedFor, computes, from_host
from autofuse.profiling.trace.intervals import length
from autofuse.profiling.trace.scope import Scope
from autofuse.results.diagnosis import Action, Confidence

_WORKERS = 4


def data_loss(scope: Scope, host: Host, waiting: WaitedFor) -> Loss:
    """Return the loss to data loading: the GPU idles with an empty queue while the host fetches a batch."""
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
        "N up to the cores for each GPU. If that is too few, make the work of a worker cheaper (decoding, "
        "augmentation)."
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
    into, pageable, megabytes = _describe_copies(scope)
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


def _describe_copies(scope: Scope) -> tuple[bool, bool, float]:
    """Return whether most copy time is to the GPU, whether its memory is pageable, and megabytes per step."""
    copies = [w for w in scope.work if w.category == "gpu_memcpy" and not computes(w) and scope.begins(w)]
    into = sum(w.duration for w in copies if from_host(w)) >= sum(w.duration for w in copies if not from_host(w))
    mine = [w for w in copies if from_host(w) == into]
    pageable = 2 * sum(w.duration for w in mine if "pageable" in w.name.lower()) > sum(w.duration for w in mine)
    sizes = (float(w.args.get("bytes", 0) or 0) for w in copies if isinstance(w.args.get("bytes", 0), (int, float)))
    return into, pageable, sum(sizes) / scope.steps.count / 1e6
