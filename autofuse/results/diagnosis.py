"""The diagnosis of a step: what limits it, and what to do about it. Plain data that knows no traces and no models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Limit = Literal["data", "launch", "communication", "straggler", "blocked", "memory", "compute", "fusable", "unknown"]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Action:
    """One thing to do.

    Attributes:
        kind: a name that does not change, such as "loader-workers".
        text: what to do, with the command or the line of code.
        milliseconds: the predicted saving per step at most; null if it cannot be predicted.
        evidence: the numbers on which the prediction is based.
        confidence: how certain it is that this helps.
    """

    kind: str
    text: str
    milliseconds: float | None = None
    evidence: str = ""
    confidence: Confidence = "medium"


@dataclass(frozen=True)
class Diagnosis:
    """The verdict.

    Attributes:
        class: what limits the step.
        sentence: the verdict as a sentence.
        actions: at most three, the best first; none if nothing is left to do.
        shares: the share of the step that each limit takes, the largest first.
    """

    limit: Limit = field(metadata={"key": "class"})
    sentence: str
    actions: tuple[Action, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
