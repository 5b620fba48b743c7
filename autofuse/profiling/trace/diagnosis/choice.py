"""Chooses which of a step's losses is reported first, and which actions follow.

Waits come first, because a device that does not compute cannot be made to compute faster. If it computes most of the
time, the loss is fusing if that would save enough, else memory or arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autofuse.profiling.trace.diagnosis.losses import Loss
from autofuse.results.diagnosis import Action, Diagnosis

# Fractions of the step.
LARGE = 0.15  # a longer wait is the limit, unless fusing saves 1.5 times as much
TOGETHER = 0.25  # if all waits take longer, the longest is the limit, unless fusing saves more
WORTH = 0.03  # an action of another loss must save at least this much
LITTLE = 0.01  # after the first action, actions that are predicted to save less are left out
FUSABLE = 0.10  # if fusing saves more, unfused kernels are the limit
_MOST = 3
_WAITING = ("data", "launch", "communication", "straggler", "blocked")


def choose_diagnosis(losses: Sequence[Loss], step: float) -> Diagnosis:
    """Return the diagnosis: the reported loss with its actions, then actions of the others by what they save."""
    waits = sorted((loss for loss in losses if loss.limit in _WAITING), key=lambda loss: -loss.seconds)
    others = [loss for loss in losses if loss.limit not in _WAITING]
    fusing = _join_fusing([loss for loss in others if loss.limit == "fusable"])
    busy = next((loss for loss in others if loss.limit != "fusable"), None)
    first = waits[0] if waits else None
    waited = sum(loss.seconds for loss in waits)
    if first and first.seconds >= LARGE * step or first and waited >= TOGETHER * step:
        reported = first
        if fusing and first.seconds < LARGE * step and fusing.seconds > first.seconds:
            reported = fusing
        elif fusing and fusing.seconds > 1.5 * first.seconds:
            reported = fusing
    elif fusing and fusing.seconds >= FUSABLE * step:
        reported = fusing
    else:
        reported = busy or fusing or losses[0]
    rest = sorted(
        (loss for loss in (*waits, *([fusing] if fusing else [])) if loss is not reported), key=lambda x: -x.seconds
    )
    actions = list(reported.actions[: _MOST - 1] if _worth_acting_on(rest, step) else reported.actions[:_MOST])
    for loss in _worth_acting_on(rest, step):
        most = _MOST - 1 if loss is fusing else 1  # each fusion saves other kernels, so their savings add up
        actions += [a for a in loss.actions[:most] if a.kind not in {known.kind for known in actions}]
    actions = [a for at, a in enumerate(actions) if not at or _is_worth_listing(a, step)]
    sentence = reported.sentence
    if not reported.actions and actions:
        sentence = f"{sentence.partition('; nothing')[0]}; other savings are listed below."
    shares: dict[str, float] = {}
    for loss in sorted(losses, key=lambda loss: -loss.seconds):
        if loss.seconds > 0 and step:
            shares[loss.limit] = shares.get(loss.limit, 0.0) + loss.seconds / step
    return Diagnosis(reported.limit, sentence, tuple(actions[:_MOST]), shares)


def _join_fusing(losses: Sequence[Loss]) -> Loss | None:
    """Return the losses to unfused operators as one, with the sentence of the largest."""
    if not losses:
        return None
    actions = sorted((a for loss in losses for a in loss.actions), key=lambda a: -(a.milliseconds or 0.0))
    largest = max(losses, key=lambda loss: loss.seconds)
    return replace(largest, seconds=sum(loss.seconds for loss in losses), actions=tuple(actions))


def _is_worth_listing(action: Action, step: float) -> bool:
    """Whether an action is predicted to save a notable amount, or has no prediction."""
    return action.milliseconds is None or action.milliseconds * 1e-3 >= LITTLE * step


def _worth_acting_on(losses: Sequence[Loss], step: float) -> list[Loss]:
    return [loss for loss in losses if loss.seconds >= WORTH * step and loss.actions]
