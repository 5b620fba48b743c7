"""The form of every loss: what a step loses to one limit, what that means, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from autofuse.results.diagnosis import Action, Limit


@dataclass(frozen=True)
class Loss:
    """The loss of a step to one limit.

    seconds: the time of one step that this limit costs.
    sentence: what to report if this loss is the greatest.
    actions: what to do, the best first.
    """

    limit: Limit
    seconds: float
    sentence: str
    actions: tuple[Action, ...] = ()


def percent(part: float, whole: float) -> str:
    """Return a percentage such as "55 %", below one percent with one more digit."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 0.95 else f"{share:.1f} %"


def milliseconds(seconds: float) -> float:
    """Return milliseconds with three digits, because predictions are not more precise."""
    return float(f"{max(0.0, seconds) * 1e3:.3g}")


def times(seconds: float) -> str:
    """Return a duration such as "12.3 ms"."""
    return f"{seconds * 1e3:,.3g} ms" if seconds < 0.9995 else f"{seconds:,.3g} s"
