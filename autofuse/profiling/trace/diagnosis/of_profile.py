"""Diagnoses a live profile: its trace, and what only instruments measure.

A recording stretches the host's work. Steps timed without it, the doubled batch and the applicable rules say more than
the trace alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from autofuse.profiling.trace.diagnosis.choice import choose_diagnosis
from autofuse.profiling.trace.diagnosis.diagnose import losses_of
from autofuse.profiling.trace.diagnosis.host_only import CpuStep, arithmetic_and_memory, cpu_losses
from autofuse.profiling.trace.diagnosis.job_losses import sending_loss
from autofuse.profiling.trace.diagnosis.losses import Loss, milliseconds, percent, times
from autofuse.profiling.trace.diagnosis.optimizer_losses import optimizer_loss_on_host
from autofuse.profiling.trace.ranks import NOISE
from autofuse.profiling.trace.scope import Scope
from autofuse.results.diagnosis import Action, Diagnosis
from autofuse.results.profile import Place, Profile


def diagnose_profile(profile: Profile, scope: Scope | None) -> Diagnosis | None:
    """Return what limits the step; None if it was not recorded. Under torch.distributed, `profile` must have ranks.

    On a GPU the trace's losses count, in a step of the recorded length. On a CPU those of the timed step count.
    """
    if scope is None or not scope.steps.nanoseconds or not profile.timing.seconds:
        return None
    if scope.has_gpu:
        step, losses = scope.steps.seconds, losses_of(scope)
    else:
        step = profile.timing.median
        losses = [*cpu_losses(_cpu_step(profile)), *_sending_loss(profile, scope), *_optimizer_loss(profile, scope)]
    places = _fusing_loss(profile)
    if places is not None:
        losses = [_without_layers(loss) if loss.limit == "fusable" else loss for loss in losses]
        losses.append(places)
    late = _late_rank_loss(profile)
    if late is not None:  # the wait for the late rank is not sending
        losses = [loss for loss in losses if loss.limit != "communication"]
        losses.append(late)
    return choose_diagnosis(losses, step)


def _cpu_step(profile: Profile) -> CpuStep:
    step = profile.timing.median
    shares = {share.name: share.share or 0.0 for share in profile.shares}
    recorded = sum(category.seconds for category in profile.categories.values()) or 1.0
    arithmetic, memory = arithmetic_and_memory(profile.categories)
    stretch = max(1.0, profile.attribution.overhead or 1.0)
    host = shares.get("host", 0.0)
    low = max(0.0, host * stretch - (stretch - 1))  # assume that recording stretched the host only
    if profile.probe.ratio is not None:  # time that does not grow with the batch is Python's or the optimizer's
        fixed = 2 - profile.probe.ratio - shares.get("optimizer", 0.0) - shares.get("data", 0.0)
        low = min(host, max(low, fixed))
    busy = max(0.0, 1 - low - shares.get("data", 0.0) - shares.get("exposed communication", 0.0)) * step
    operators = sum(category.count for category in profile.categories.values())
    return CpuStep(
        step, shares.get("data", 0.0) * step, low * step, operators, busy * arithmetic / recorded,
        busy * memory / recorded, "high" if profile.probe.verdict == "overhead" else "medium",
    )  # fmt: skip


def _sending_loss(profile: Profile, scope: Scope) -> list[Loss]:
    exposed = next((share.seconds for share in profile.shares if share.name == "exposed communication"), None)
    return [sending_loss(scope, exposed, exposed)] if exposed else []


def _optimizer_loss(profile: Profile, scope: Scope) -> list[Loss]:
    seconds = next((share.seconds for share in profile.shares if share.name == "optimizer"), None)
    loss = optimizer_loss_on_host(scope, profile.timing.median, seconds)
    return [loss] if loss is not None else []


def _without_layers(fusing: Loss) -> Loss:
    """Return what unfused operators outside of layers lose. The rules that apply say more about those in layers."""
    actions = tuple(action for action in fusing.actions if action.kind == "fuse-optimizer")
    return replace(fusing, seconds=sum(action.milliseconds or 0.0 for action in actions) / 1e3, actions=actions)


def _fusing_loss(profile: Profile) -> Loss | None:
    """Return the predicted saving of the rules that apply; None if no model was read."""
    found = [(layer, place) for layer, place in profile.places if place.status == "applies" and not place.part_of]
    if not any(layer.places for layer in profile.layers):
        return None
    saving = [(layer, place) for layer, place in found if (place.predicted_saving or 0.0) > 0]
    total = sum(place.predicted_saving or 0.0 for _, place in saving)
    if not total:
        return None
    step = profile.timing.median
    layer, best = saving[0]
    evidence = (
        f"{_places_text(saving)}; the largest: {best.rule} in {layer.fqn or 'the model'}, {times(best.seconds or 0.0)}"
    )
    action = Action("optimize", "Fuse them: autofuse.optimize(model), or autofuse rewrite on the source.",
                    milliseconds(total), evidence, "medium")  # fmt: skip
    sentence = (
        f"Unfused operators: rules apply to {len(saving)} places, and fusing saves up to "
        f"{percent(total, step)} of the "
        "step."
    )
    return Loss("fusable", total, sentence, (action,))


def _places_text(places: Sequence[tuple[object, Place]]) -> str:
    rules = dict.fromkeys(place.rule for _, place in places)
    return f"{len(places)} places ({', '.join(rules)}) apply"


def _late_rank_loss(profile: Profile) -> Loss | None:
    """Return the loss to a late rank, which waits least itself."""
    ranks = [rank for rank in profile.ranks if rank.exposed is not None]
    if len(ranks) < 2:
        return None
    late = min(ranks, key=lambda rank: rank.exposed or 0.0)
    step = max(rank.seconds for rank in ranks)
    waited = median(rank.exposed or 0.0 for rank in ranks if rank is not late) - (late.exposed or 0.0)
    if waited < max(NOISE, 0.1) * step:
        return None
    others = len(ranks) - 1
    whom = "the other one waits" if others == 1 else f"the other {others} wait"
    sentence = (
        f"{percent(waited, step)} of the step waits for another rank: rank {late.rank} comes last "
        "to the collectives, and "
        f"{whom} for it."
    )
    text = (
        f"Look at rank {late.rank} first (its profile is profile.rank{late.rank}.json): its data, "
        "its host, its device, "
        "and how much work it is given."
        if late.rank
        else "Look at rank 0 first: what only the first rank does (logging, checkpoints), its data, its device."
    )
    evidence = (
        f"rank {late.rank} waits {times(late.exposed or 0.0)} a step in collectives, the others {times(waited)} more"
    )
    return Loss("straggler", waited, sentence, (Action("straggler", text, milliseconds(waited), evidence, "high"),))
