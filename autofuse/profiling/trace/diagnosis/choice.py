"""Which of a step's losses is told first, and which actions stand below it.

WaitedFor comes first: a device that does not compute cannot be made to compute faster. Where it computes most of the
time, what fusing would save decides, and else whether memory or arithmetic is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.profiling.trace.diagnosis.losses import Loss
from autofuse.results.diagnosis import Action, Diagnosis

LARGE = 0.15  # of the step, that is waited for one thing: it is the limit, whatever else there is
TOGETHER = 0.25  # of the step, that is waited for several things together
WORTH = 0.03  # of the step: what saves less is no action
LITTLE = 0.01  # of the step: what is predicted to save less is left out below the first action
FUSABLE = 0.10  # of the step, that fusing saves: kernels in a row are the limit
_MOST = 3
_WAITING = ("data", "launch", "communication", "straggler", "blocked")


def chosen(losses: Sequence[Loss], step: float) -> Diagnosis:
    """The loss that is told, its actions, then those of the others by what they save."""
    waits = sorted((loss for loss in losses if loss.limit in _WAITING), key=lambda loss: -loss.seconds)
    others = [loss for loss in losses if loss.limit not in _WAITING]
    fusing = next((loss for loss in others if loss.limit == "fusable"), None)
    busy = next((loss for loss in others if loss.limit != "fusable"), None)
    first = waits[0] if waits else None
    waited = sum(loss.seconds for loss in waits)
    if first and first.seconds >= LARGE * step or first and waited >= TOGETHER * step:
        told = first
        if fusing and first.seconds < LARGE * step and fusing.seconds > first.seconds:
            told = fusing
        elif fusing and fusing.seconds > 1.5 * first.seconds:
            told = fusing
    elif fusing and fusing.seconds >= FUSABLE * step:
        told = fusing
    else:
        told = busy or fusing or losses[0]
    rest = sorted(
        (loss for loss in (*waits, *([fusing] if fusing else [])) if loss is not told), key=lambda x: -x.seconds
    )
    actions = list(told.actions[: _MOST - 1] if _worthy(rest, step) else told.actions[:_MOST])
    for loss in _worthy(rest, step):
        actions += [a for a in loss.actions[:1] if a.kind not in {known.kind for known in actions}]
    actions = [a for at, a in enumerate(actions) if not at or _saves(a, step)]
    sentence = told.sentence
    if not told.actions and actions:
        sentence = f"{sentence.partition('; nothing')[0]}; what else there is to gain is below."
    shares: dict[str, float] = {}
    for loss in sorted(losses, key=lambda loss: -loss.seconds):
        if loss.seconds > 0 and step:
            shares[loss.limit] = shares.get(loss.limit, 0.0) + loss.seconds / step
    return Diagnosis(told.limit, sentence, tuple(actions[:_MOST]), shares)


def _saves(action: Action, step: float) -> bool:
    """Whether it is predicted to save anything to speak of, or nothing is predicted."""
    return action.milliseconds is None or action.milliseconds * 1e-3 >= LITTLE * step


def _worthy(losses: Sequence[Loss], step: float) -> list[Loss]:
    return [loss for loss in losses if loss.seconds >= WORTH * step and loss.actions]
