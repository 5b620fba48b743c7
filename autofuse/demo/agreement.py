"""Whether two loss curves agree, and the bound that decides it. Knows numbers only.

Two runs of one training drift apart however equal their arithmetic is: rounding is fed back in every step. How far an
error of a known size may carry them is measured, not guessed. Verification states the error of each fused place,
relative to the largest entry of the result or gradient that it saw it in. A control run, which is otherwise the eager
run, has *every* entry of every gradient off by that much, up or down at random, where a fused kernel has it in one.
What the control's loss has drifted by at a step, or at any step before it, bounds what the optimized run's loss may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

# A loss is a float32 number computed from float32 logits: its own last digits are noise in any run.
_EPSILON = 2.0**-23
_ROUNDINGS = 4


@dataclass(frozen=True)
class Agreement:
    """The verdict on two loss curves: the step (from 0) where they come closest to the bound, and both sides there."""

    agrees: bool
    step: int
    difference: float
    bound: float
    gradient_error: float

    @property
    def sentence(self) -> str:
        """The verdict for a reader."""
        verb = "agree" if self.agrees else "do NOT agree"
        return (
            f"The loss curves {verb} within the bound: at step {self.step + 1}, where they come closest to it, "
            f"they differ by {self.difference:.1e} nats, and gradients that are wrong by {self.gradient_error:.1e} "
            f"of their largest entry (what verification saw, or float32's rounding) explain {self.bound:.1e}."
        )


def agreement(eager: Sequence[float], optimized: Sequence[float], control: Sequence[float], error: float) -> Agreement:
    """Compare two loss curves, given the control's, whose gradients were off by `error`. Raises ValueError if empty."""
    if not eager:
        raise ValueError("There is no loss to compare: train for at least one step.")
    drift = accumulate((abs(a - b) for a, b in zip(control, eager, strict=True)), max)
    bounds = [d + _ROUNDINGS * _EPSILON * abs(loss) for d, loss in zip(drift, eager, strict=True)]
    differences = [abs(a - b) for a, b in zip(optimized, eager, strict=True)]
    # NaN compares as not within the bound.
    within = [d <= b for d, b in zip(differences, bounds, strict=True)]
    step = within.index(False) if not all(within) else max(range(len(eager)), key=lambda i: differences[i] / bounds[i])
    return Agreement(all(within), step, differences[step], bounds[step], error)


def gradient_error(verified: Sequence[float | None]) -> float:
    """The error that the control run gets: the largest that verification saw, never less than float32's rounding."""
    return max([_EPSILON, *(error for error in verified if error is not None)])
