"""Diagnoses a step that ran on a CPU: data, other ranks, Python, or the operators themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autofuse.profiling.trace.categories import categories_of
from autofuse.profiling.trace.diagnosis.choice import choose_diagnosis
from autofuse.profiling.trace.diagnosis.job_losses import (
    sending_loss,
    straggler_loss,
    varying_rank_loss,
    with_straggler,
)
from autofuse.profiling.trace.diagnosis.limits import COMPUTES
from autofuse.profiling.trace.diagnosis.losses import Loss, milliseconds, percent, times
from autofuse.profiling.trace.diagnosis.messages import Waits
from autofuse.profiling.trace.diagnosis.optimizer_losses import optimizer_loss_on_host
from autofuse.profiling.trace.intervals import length
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.time_shares import communication, host_overhead
from autofuse.results.comparison import Category
from autofuse.results.diagnosis import Action, Confidence, Diagnosis

_WORKERS = 4


@dataclass(frozen=True)
class CpuStep:
    """Seconds of one step on a CPU.

    step: all of it.
    data: fetching batches.
    host: no operator computes, and nothing waits for data or ranks.
    operators: how many run.
    arithmetic, memory: operators that multiply, and others.
    sure: the confidence in `host`, which a recording stretches.
    """

    step: float
    data: float
    host: float
    operators: float
    arithmetic: float
    memory: float
    sure: Confidence = "medium"


def diagnosis_on_host(scopes: Mapping[int, Scope], rank: int, waits: Waits | None) -> Diagnosis:
    """Return the diagnosis of one rank's trace, or of a job's. The own work of `rank` is the limit."""
    scope = scopes[rank]
    exposed = scope.seconds(length(communication(scope)[1]))
    waited = min(exposed, waits.ranks[rank].exposed) if waits and rank in waits.ranks else 0.0
    losses = [sending_loss(scope, exposed - waited, exposed), varying_rank_loss(scope, waited)] if exposed else []
    losses += cpu_losses(_measure_cpu_step(scope))
    if (optimizer := optimizer_loss_on_host(scope, scope.steps.seconds)) is not None:
        losses.append(optimizer)
    does = {number: seconds_on_host(one) for number, one in scopes.items()}
    if waits is not None and (late := straggler_loss(scopes, waits, does)):
        return choose_diagnosis(with_straggler(losses, late), scope.steps.seconds)
    return choose_diagnosis(losses, scope.steps.seconds)


def cpu_losses(found: CpuStep) -> list[Loss]:
    """Return what a step on a CPU loses by itself, without other ranks."""
    return [_data_loss(found), _host_loss(found), _busy_loss(found)]


def arithmetic_and_memory(categories: Mapping[str, Category]) -> tuple[float, float]:
    """Return the seconds of operators that multiply, and of the others except communication."""
    arithmetic = sum(found.seconds for name, found in categories.items() if name in COMPUTES)
    others = sum(found.seconds for name, found in categories.items() if name not in (*COMPUTES, "communication"))
    return arithmetic, others


def _measure_cpu_step(scope: Scope) -> CpuStep:
    categories = categories_of(scope)
    data = scope.seconds(length(scope.rest(scope.rest(scope.marks.of("data")))))
    host = scope.seconds(length(host_overhead(scope)))
    operators = sum(found.count for found in categories.values())
    return CpuStep(scope.steps.seconds, data, host, operators, *arithmetic_and_memory(categories))


def seconds_on_host(scope: Scope) -> dict[str, float]:
    """Return what a rank on a CPU does in a step, in the form of diagnose.seconds_of_ranks."""
    found = _measure_cpu_step(scope)
    return {
        "data": found.data,
        "host": found.host,
        "kernels": found.arithmetic + found.memory,
        "count": found.operators,
        "copies": 0.0,
    }


def _data_loss(found: CpuStep) -> Loss:
    step, lost = found.step, found.data
    saved = min(lost, lost - max(0.0, lost / _WORKERS - (step - lost)))
    text = f"Load batches in other processes: DataLoader(..., num_workers={_WORKERS}, persistent_workers=True)."
    evidence = f"fetching a batch takes {times(lost)} of a step of {times(step)}"
    sentence = f"Waits for data: {percent(lost, step)} of the step passes in the data loader."
    return Loss("data", lost, sentence, (Action("loader-workers", text, milliseconds(saved), evidence, "high"),))


def _host_loss(found: CpuStep) -> Loss:
    step, lost = found.step, found.host
    evidence = (
        f"no operator computes for {times(lost)} of a step of {times(step)}, which runs "
        f"{found.operators:,.0f} operators"
    )
    sentence = (
        f"Launch-bound: {percent(lost, step)} of the step passes in Python and in dispatching {found.operators:,.0f} "
        "operators, not in the operators."
    )
    actions = (
        Action(
            "compile",
            "Run less Python: torch.compile(model), or autofuse.optimize(model).",
            milliseconds(lost),
            evidence,
            found.sure,
        ),
        Action(
            "larger-batch",
            "Make the batch larger: Python takes the same time, and each operator does more.",
            None,
            evidence,
            "medium",
        ),
    )
    return Loss("launch", lost, sentence, actions)


def _busy_loss(found: CpuStep) -> Loss:
    step = found.step
    if found.memory > found.arithmetic:
        evidence = f"{times(found.memory)} of a step of {times(step)} in operators that hardly compute"
        sentence = (
            f"Memory-bound: {percent(found.memory, step)} of the step is in operators that move data "
            "and hardly compute."
        )
        text = "Move fewer bytes: fuse operators in a row (autofuse.optimize(model), torch.compile(model))."
        return Loss("memory", found.memory, sentence, (Action("move-less", text, None, evidence, "medium"),))
    sentence = (
        f"Compute-bound: {percent(found.arithmetic, step)} of the step multiplies matrices; "
        "nothing that the trace shows is left to do."
    )
    return Loss("compute", found.arithmetic, sentence)
