"""Diagnoses a trace, or the traces of all ranks of a job: which limit costs most, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping

from autofuse.profiling.trace.diagnosis.busy_losses import busy_loss, fusing_loss
from autofuse.profiling.trace.diagnosis.choice import choose_diagnosis
from autofuse.profiling.trace.diagnosis.fusing import sequences_of
from autofuse.profiling.trace.diagnosis.host import Host
from autofuse.profiling.trace.diagnosis.host_losses import blocked_loss, data_loss
from autofuse.profiling.trace.diagnosis.host_only import diagnosis_on_host, seconds_on_host
from autofuse.profiling.trace.diagnosis.job_losses import communication_losses, straggler_loss, with_straggler
from autofuse.profiling.trace.diagnosis.launch_losses import launch_loss
from autofuse.profiling.trace.diagnosis.limits import limits_of
from autofuse.profiling.trace.diagnosis.losses import Loss, milliseconds, percent
from autofuse.profiling.trace.diagnosis.messages import Waits
from autofuse.profiling.trace.diagnosis.waiting import WaitedFor, waiting_of
from autofuse.profiling.trace.intervals import length
from autofuse.profiling.trace.scope import Scope
from autofuse.results.diagnosis import Action, Diagnosis


def diagnosis_of(scopes: Mapping[int, Scope], shown: int, waits: Waits | None) -> Diagnosis | None:
    """Return what limits the step; None for a trace in which no time passes.

    Args:
        scopes: The scope of each rank.
        shown: The rank whose numbers the profile shows.
        waits: The result of waits_of_job.
    """
    if not scopes[shown].steps.nanoseconds:
        return None
    rank = shown
    if waits is not None:  # the own work of the rank that waits least is the limit
        rank = waits.last if waits.last is not None else min(waits.ranks, key=lambda r: waits.ranks[r].exposed)
    scope = scopes[rank]
    if scope.host_only:  # the time of the accelerator's work is unknown
        return None
    if not scope.has_gpu:
        return diagnosis_on_host(scopes, rank, waits)
    losses = losses_of(scope, rank, waits)
    if waits is not None and (late := straggler_loss(scopes, waits, seconds_of_ranks(scopes))):
        losses = with_straggler(losses, late)
    return choose_diagnosis(losses, scope.steps.seconds)


def losses_of(scope: Scope, rank: int = 0, waits: Waits | None = None) -> list[Loss]:
    """Return every loss of a step on a GPU, in one rank's trace."""
    host = Host(scope)
    waiting, limits = waiting_of(scope, host), limits_of(scope)
    return [
        data_loss(scope, host, waiting),
        launch_loss(scope, host, waiting),
        blocked_loss(scope, host, waiting),
        *communication_losses(scope, waiting, waits, rank),
        *_loss_to_gpus_in_sequence(scope),
        fusing_loss(scope, sequences_of(scope), limits),
        busy_loss(scope, limits),
    ]


def _loss_to_gpus_in_sequence(scope: Scope) -> list[Loss]:
    """Return the loss of several GPUs in one trace that compute one after the other."""
    count = len(scope.by_device)
    if count < 2:
        return []
    each = [length(scope.moments(kernels)) for kernels in scope.by_device.values()]
    together = length(scope.moments(k for kernels in scope.by_device.values() for k in kernels))
    mean = sum(each) / count
    if not together or mean > 0.7 * together:
        return []  # Each GPU computes most of the time in which any of them does, so they do not take turns.
    step = scope.steps.seconds
    lost = scope.seconds(together - mean)
    sentence = (
        f"Blocked: {count} GPUs compute one after the other; on average each waits "
        f"{percent(lost, step)} of the step for another."
    )
    text = (
        "Let the GPUs work at the same time: microbatches through a pipeline "
        "(torch.distributed.pipelining), or FSDP or tensor parallelism in place of layers spread "
        "over GPUs."
    )
    evidence = (
        f"a kernel runs somewhere {percent(scope.seconds(together), step)} of the step, on each "
        f"GPU {percent(scope.seconds(mean), step)}"
    )
    return [Loss("blocked", lost, sentence, (Action("pipeline", text, milliseconds(lost), evidence, "high"),))]


def seconds_of_ranks(scopes: Mapping[int, Scope]) -> dict[int, dict[str, float]]:
    """Return what each rank does in a step: seconds of "data", "host", "copies" (waits for copies) and "kernels".

    "count" is the number of kernels. On a CPU, kernels are operators.
    """
    found = {}
    for rank, scope in scopes.items():
        if not scope.has_gpu:
            found[rank] = seconds_on_host(scope)
            continue
        waiting: WaitedFor = waiting_of(scope, Host(scope))
        host = (*waiting.host, *waiting.latency, *waiting.pause, *waiting.allocation, *waiting.untold)
        found[rank] = {
            "data": scope.seconds(length(waiting.data)),
            "host": scope.seconds(length(host)),
            "copies": scope.seconds(length((*waiting.copy, *waiting.event))),
            "kernels": scope.seconds(length(waiting.computing)),
            "count": sum(1 for k in scope.kernels if scope.begins(k)) / scope.steps.count,
        }
    return found
