"""What limits a step, in one sentence, and what to do about it. Plain data: it knows neither traces nor models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Limit = Literal["data", "launch", "communication", "straggler", "blocked", "memory", "compute", "fusable", "unknown"]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Action:
    """One thing to do. kind: a name that does not change, "loader-workers". text: what to do, with the command or the
    line that does it. milliseconds: of a step, what it is predicted to save at most; null where that cannot be
    predicted. evidence: the numbers that it rests on. confidence: how sure it is that this is the right thing.
    """

    kind: str
    text: str
    milliseconds: float | None = None
    evidence: str = ""
    confidence: Confidence = "medium"


@dataclass(frozen=True)
class Diagnosis:
    """The verdict. class: what limits the step. sentence: the same for people. actions: at most three, the best first;
    none where nothing is left to do. shares: what each limit takes of a step, a fraction of 1, the largest first.
    """

    limit: Limit = field(metadata={"key": "class"})
    sentence: str
    actions: tuple[Action, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
