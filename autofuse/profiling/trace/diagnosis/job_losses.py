"""Computes what a step of one rank loses to other ranks: sending data, and waiting for a late rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from autofuse.profiling.trace.diagnosis.losses import Loss, milliseconds, percent, times
from autofuse.profiling.trace.diagnosis.messages import Waits, size_of, waits_of_one
from autofuse.profiling.trace.diagnosis.remedies import REMEDIES
from autofuse.profiling.trace.diagnosis.waiting import WaitedFor
from autofuse.profiling.trace.diagnosis.words import clock_tool
from autofuse.profiling.trace.intervals import length
from autofuse.profiling.trace.ranks import collectives, communication_events
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.time_shares import communication
from autofuse.profiling.trace.trace import Event
from autofuse.results.diagnosis import Action

_INSPECTED = 50  # how many of the longest messages are inspected for their kind
_MOST_FRACTION = 0.6  # waits for more than this fraction of the exposed communication are its cause


def communication_losses(scope: Scope, waiting: WaitedFor, waits: Waits | None, rank: int) -> list[Loss]:
    """Return the exposed communication, split into sending and waiting. `rank`: the rank of the scope."""
    step = scope.steps.seconds
    exposed = scope.seconds(length(waiting.communication) + length(waiting.host_collective))
    if not exposed:
        return []
    if waits is not None:
        waited = min(exposed, waits.ranks[rank].exposed) if rank in waits.ranks else 0.0
        return [sending_loss(scope, exposed - waited, exposed), *([varying_rank_loss(scope, waited)] if waited else [])]
    waited = min(exposed, waits_of_one(scope))
    if waited > _MOST_FRACTION * exposed:
        return [sending_loss(scope, exposed - waited, exposed), _unknown_straggler_loss(waited, step)]
    return [sending_loss(scope, exposed, exposed)]


def straggler_loss(
    scopes: Mapping[int, Scope], waits: Waits, reasons: Mapping[int, Mapping[str, float]]
) -> Loss | None:
    """Return what the other ranks lose to the rank that comes last; None if no rank does.

    reasons: by rank, the seconds of a step by activity: "data", "host", "copies", "kernels", and "count".
    """
    late = waits.last
    if late is None or len(scopes) < 2:
        return None
    step = scopes[late].steps.seconds
    lost = median(wait.exposed for rank, wait in waits.ranks.items() if rank != late)
    lost = max(0.0, lost - waits.ranks[late].exposed)
    if not lost:
        return None
    why, action = _reason_and_action(late, reasons, lost, scopes[late])
    others = len(scopes) - 1
    sentence = (
        f"{percent(lost, step)} of the step waits for another rank: rank {late} comes last to the collectives"
        f"{why}, and the other {others} wait for it."
    )
    if others == 1:
        sentence = sentence.replace(", and the other 1 wait for it", ", and the other one waits for it")
    evidence = f"rank {late} causes {waits.blame:.0%} of the exposed waits: {times(lost)} of a step of {times(step)}"
    kind, text, sure = action
    return Loss("straggler", lost, sentence, (Action(kind, text, milliseconds(lost), evidence + why, sure),))  # type: ignore[arg-type]


def with_straggler(losses: Sequence[Loss], late: Loss) -> list[Loss]:
    """Return the losses of the late rank together with what the others lose to it.

    The late rank loses the same seconds to one of its own losses, so they are subtracted there.
    """
    by_itself = _OWN_LIMIT.get(late.actions[0].kind)
    rest = [
        replace(loss, seconds=max(0.0, loss.seconds - late.seconds)) if loss.limit == by_itself else loss
        for loss in losses
    ]
    return [*rest, late]


_OWN_LIMIT = {"straggler-data": "data", "straggler-host": "launch", "straggler-copies": "blocked"}


def _reason_and_action(
    late: int, reasons: Mapping[int, Mapping[str, float]], lost: float, scope: Scope
) -> tuple[str, tuple[str, str, str]]:
    """Return the activity in which the late rank exceeds the median of the others most, and an action."""
    mine, on_gpu = reasons[late], scope.has_gpu
    others = [found for rank, found in reasons.items() if rank != late]
    more = {name: mine[name] - median(found[name] for found in others) for name in mine if name != "count"}
    name = max(more, key=lambda key: more[key])
    if more[name] < 0.3 * lost:  # no single activity explains the delay
        text = f"Look at rank {late} first: its machine, its clocks, its link, and how much work it is given."
        return "", ("straggler", text, "medium")
    because = f" ({(_ACTIVITIES if on_gpu else _ACTIVITIES_ON_CPU)[name]} {times(more[name])} longer)"
    if name == "data":
        return because, (
            "straggler-data",
            f"Look at the data loader of rank {late}: its disk, its cores, its longest samples.",
            "high",
        )
    if name == "kernels":
        usual = median(found["count"] for found in others)
        if mine["count"] > 1.1 * usual:  # more kernels are more work; as many kernels run on a slower device
            text = (
                f"Give rank {late} less work: it runs {mine['count']:,.0f} "
                f"{'kernels' if on_gpu else 'operators'} a step, the others {usual:,.0f}."
            )
            return because, ("balance", text, "high")
        if not on_gpu:
            text = (
                f"Check the cores of rank {late}: it runs as many operators, and they take longer. Look for "
                "other programs and for lower clocks."
            )
            return because, ("slow-cores", text, "medium")
        text = (
            f"Check the GPU of rank {late}: it runs as many kernels, and they take longer. Its clocks and temperature"
            f"{clock_tool(scope)}, or larger inputs than the others'."
        )
        return because, ("slow-gpu", text, "medium")
    text = (
        f"Look at the host of rank {late}: other programs on its cores, what only that rank does "
        "(logging, checkpoints)."
    )
    return because, (f"straggler-{name}", text, "high")


_ACTIVITIES = {
    "data": "it waits for data",
    "host": "its GPU waits for its host",
    "copies": "it copies",
    "kernels": "its kernels run",
}
_ACTIVITIES_ON_CPU = {**_ACTIVITIES, "host": "its Python runs", "kernels": "its operators run"}


def sending_loss(scope: Scope, lost: float, exposed: float) -> Loss:
    """Return the loss of a step to sending data while nothing computes."""
    step = scope.steps.seconds
    alone = scope.seconds(length(communication(scope)[0]))
    kinds = Counter[str]()
    for event in sorted(communication_events(scope), key=lambda e: -e.duration)[:_INSPECTED]:
        kinds[_kind_of_collective(event, scope)] += event.duration
    kind = kinds.most_common(1)[0][0] if kinds else ""
    sizes = [size for event in collectives(scope) if (size := size_of(event)) is not None]
    sent = (
        f"; {sum(sizes) / scope.steps.count / 1e6:,.1f} MB in {len(sizes) / scope.steps.count:,.0f} collectives"
        if sizes
        else ""
    )
    hidden = 1 - exposed / alone if alone else 0.0
    evidence = (
        f"collectives take {times(max(alone, exposed))} of a step of {times(step)}, "
        f"{max(0.0, hidden):.0%} of it behind kernels{sent}"
    )
    if kind == "sendrecv":
        sentence = (
            f"{percent(lost, step)} of the step waits for {_name_of_others(scope)}: "
            "for messages of the stages before and after."
        )
    else:
        waits = f"{percent(lost, step)} of the step waits for {_name_of_others(scope)}"
        sentence = f"{waits}: for communication that nothing hides."
    return Loss(
        "communication",
        lost,
        sentence,
        tuple(
            Action(
                name,
                text,
                milliseconds(min(lost, step - exposed)) if at == 0 else None,
                evidence,
                "high" if at == 0 else "medium",
            )
            for at, (name, text) in enumerate(REMEDIES[kind] if kind in REMEDIES else REMEDIES["allreduce"])
        ),
    )


def _name_of_others(scope: Scope) -> str:
    return "other GPUs" if scope.has_gpu else "other ranks"


def _kind_of_collective(event: Event, scope: Scope) -> str:
    """Return the kind of collective, from the trace's field, from its name, or from the operator that launched it."""
    for name in (str(event.args.get("Collective name", "")), event.name, *_operators_around(event, scope)):
        bare = re.sub(r"[^a-z]", "", name.lower())
        for kind in REMEDIES:
            if kind in bare:
                return kind
        if bare.endswith(("send", "recv")):
            return "sendrecv"
    return "allreduce"


def _operators_around(event: Event, scope: Scope) -> list[str]:
    """Return the operators of torch.distributed that contain the launch of a message."""
    launch = scope.launch_of(event)
    if launch is None:
        return []
    where = (launch.process, launch.thread)
    return [
        e.name
        for e in scope.trace.of("cpu_op")
        if e.name.startswith(("c10d", "_c10d")) and (e.process, e.thread) == where and e.start <= launch.start < e.end
    ]


def varying_rank_loss(scope: Scope, lost: float) -> Loss:
    """Return the loss of a step to waits for varying ranks."""
    step = scope.steps.seconds
    sentence = (
        f"{percent(lost, step)} of the step waits for {_name_of_others(scope)}: the rank that comes last to "
        "a collective varies."
    )
    text = (
        "Give the ranks equal work: sort or pack sequences by length, pad less, the same number "
        "of tokens for each rank."
    )
    evidence = f"{times(lost)} of a step of {times(step)} in collectives before the last rank comes"
    return Loss("communication", lost, sentence, (Action("balance", text, milliseconds(lost), evidence, "medium"),))


def _unknown_straggler_loss(lost: float, step: float) -> Loss:
    sentence = (
        f"{percent(lost, step)} of the step waits for another rank: collectives of one size take "
        "far longer at some times "
        "than at others."
    )
    text = (
        "Find the rank that comes last: take traces of all ranks for the same steps, and pass "
        "them together to autofuse profile --trace."
    )
    evidence = f"collectives take {times(lost)} a step longer than the shortest of the same kind and size"
    return Loss("straggler", lost, sentence, (Action("find-straggler", text, milliseconds(lost), evidence, "medium"),))
