"""Whether a model runs compiled, and why. Plain data, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from autofuse.results.comparison import Estimate, Interval

Chosen = Literal["eager", "compiled", "compiled original"]


@dataclass(frozen=True)
class CompileChoice:
    """The decision of `optimize(..., compile=...)`.

    Attributes:
        chosen: "eager" (nothing is compiled), "compiled" (the model with its fused places), or "compiled original" (the
            model as written, because the fused places gain nothing once it is compiled).
        modules: the names of the compiled modules, "" for the model itself. Equal blocks are compiled one by one.
        fused: the ratio of times eager / compiled with the fused places; above 1 if compiling is faster; None if not
            timed. Eager is the model with its fused places.
        original: likewise for the compiled original.
        reason: why nothing was timed or compiled, as a clause.
    """

    chosen: Chosen
    modules: tuple[str, ...] = ()
    fused: Estimate | None = None
    original: Estimate | None = None
    reason: str = ""

    def __str__(self) -> str:
        """One line, for example "compiled: 1.22x (1.18 to 1.25) of eager"."""
        won = self.original if self.chosen == "compiled original" else self.fused
        if self.chosen == "eager":
            return f"not compiled: {self.reason}" if self.reason else "not compiled"
        return self.chosen if won is None else f"{self.chosen}: {won} of eager"

    def to_dict(self) -> dict[str, Any]:
        """Each field under its own name. See docs/json.md."""
        return {
            "chosen": self.chosen,
            "modules": list(self.modules),
            "fused": _pair(self.fused),
            "original": _pair(self.original),
            "reason": self.reason,
        }


def _pair(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else {"ratio": estimate.ratio, "interval": list(Interval(*estimate.interval))}
