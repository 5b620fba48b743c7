"""Whether a model runs compiled, and what that rests on. Plain data; it knows neither torch nor clocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from autofuse.results.comparison import Estimate, Interval

Chosen = Literal["eager", "compiled", "compiled original"]


@dataclass(frozen=True)
class CompileChoice:
    """What `optimize(..., compile=...)` decided.

    chosen: "eager" (nothing is compiled), "compiled" (the model with its fused places), "compiled original" (as it was
    written, for the fused places do not gain once it is compiled).
    modules: the names of the modules that are compiled, "" for the model itself; equal blocks are compiled one by one.
    fused: the ratio of times eager / compiled with the fused places; original: eager / compiled as it was written; both
    above 1 where compiling is faster, None where not timed. Eager is the model with its fused places.
    reason: why nothing was timed, or why nothing is compiled, as a clause.
    """

    chosen: Chosen
    modules: tuple[str, ...] = ()
    fused: Estimate | None = None
    original: Estimate | None = None
    reason: str = ""

    def __str__(self) -> str:
        """One line, e.g. "compiled: 1.22x (1.18 to 1.25) of eager"."""
        won = self.original if self.chosen == "compiled original" else self.fused
        if self.chosen == "eager":
            return f"not compiled: {self.reason}" if self.reason else "not compiled"
        return self.chosen if won is None else f"{self.chosen}: {won} of eager"

    def to_dict(self) -> dict[str, Any]:
        """Every field under its own name. See docs/json.md."""
        return {
            "chosen": self.chosen,
            "modules": list(self.modules),
            "fused": _pair(self.fused),
            "original": _pair(self.original),
            "reason": self.reason,
        }


def _pair(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else {"ratio": estimate.ratio, "interval": list(Interval(*estimate.interval))}
