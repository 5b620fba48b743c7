"""The time of a whole step of a model with and without its fused places. Plain data, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from autofuse.results.comparison import Estimate, Interval, Verdict, milliseconds

StepMode = Literal["training", "inference"]
_BUSY = 0.9  # of a step; the rest is what launches of kernels always leave
_STEPS: dict[StepMode, str] = {"training": "training step", "inference": "inference"}


def step_mode(training: bool) -> StepMode:
    """The name of a mode."""
    return "training" if training else "inference"


@dataclass(frozen=True)
class StepTime:
    """One step of the whole model, fused and as written, timed in interleaved pairs.

    Attributes:
        mode: "training" (forward, the loss of `autofuse.compare`, backward) or "inference" (the forward without
            gradients).
        before_seconds: the median step as written; None if not timed.
        after_seconds: the median step with the fused places; None if not timed.
        ratio: the median of the pairs' ratios before / after; above 1 if the fused model is faster.
        interval: its 95 % interval.
        verdict: as in a `Comparison`; `pairs` and `clock` too.
        not_timed: why there are no numbers, as a clause.
        remembered: whether an earlier process timed an equal step.
        busy: the part of the fused step in which a kernel runs on the GPU, from 0 to 1; None without a GPU.
        layers: of how many equal layers the timed step consists, "4 of 48 layers"; "" if of all. All times are those of
            the shorter model.
    """

    mode: StepMode
    before_seconds: float | None = None
    after_seconds: float | None = None
    ratio: float | None = None
    interval: Interval | None = None
    verdict: Verdict | None = None
    pairs: int = 0
    clock: Literal["wall", "core"] = "wall"
    not_timed: str = ""
    remembered: bool = False
    layers: str = ""
    busy: float | None = None

    def __str__(self) -> str:
        """One line, for example "training step 1.54x (1.48 to 1.60): 110 ms, the original 170 ms"."""
        name = _STEPS[self.mode]
        if self.ratio is None or self.interval is None:
            return f"{name} not timed: {self.not_timed}"
        after, before = milliseconds(self.after_seconds or 0.0), milliseconds(self.before_seconds or 0.0)
        earlier = " (timed by an earlier process)" if self.remembered else ""
        with_layers = f", with {self.layers}" if self.layers else ""
        line = f"{name} {Estimate(self.ratio, self.interval)}: {after}, the original {before}{with_layers}{earlier}"
        return line + self._waiting()

    def _waiting(self) -> str:
        """The clause on what the GPU waits for; "" if it rarely waits."""
        if self.busy is None or self.busy >= _BUSY:
            return ""
        return (
            f'; the GPU waits for Python in {1 - self.busy:.0%} of it, and compile="auto" would also try torch.compile'
        )

    def to_dict(self) -> dict[str, Any]:
        """Each field under its own name. See docs/json.md."""
        return {
            "mode": self.mode,
            "before_seconds": self.before_seconds,
            "after_seconds": self.after_seconds,
            "ratio": self.ratio,
            "interval": list(self.interval) if self.interval else None,
            "verdict": self.verdict,
            "pairs": self.pairs,
            "clock": self.clock,
            "not_timed": self.not_timed,
            "remembered": self.remembered,
            "layers": self.layers,
            "busy": self.busy,
        }
