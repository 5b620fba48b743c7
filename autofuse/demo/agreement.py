"""Decides whether two loss curves agree, by a measured bound.

Two runs of one training drift apart, because every step amplifies the rounding errors of the steps before. A control
run measures how far errors of a known size can carry a loss curve:

1. Verification reports the error of each fused site, relative to the largest entry of the result or gradient.
2. The control run is the eager run, with an error of that size, up or down at random, in *every* entry of every
   gradient. In a fused kernel only one entry has an error of that size.
3. The bound at a step is the largest drift of the control's loss so far. The optimized run's loss must stay within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

# A loss is a float32 number, computed from float32 logits. Its last digits are noise in every run.
_EPSILON = 2.0**-23
_ROUNDINGS = 4


@dataclass(frozen=True)
class Agreement:
    """The verdict on two loss curves.

    Attributes:
        agrees: Whether the difference is within the bound at every step.
        step: The first step outside of the bound; else the step that is closest to it. Steps count from 0.
        difference: The difference of the losses at that step, in nats.
        bound: The bound at that step, in nats.
        gradient_error: The relative error of the control run's gradients.
    """

    agrees: bool
    step: int
    difference: float
    bound: float
    gradient_error: float

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        verb = "agree" if self.agrees else "do NOT agree"
        return (
            f"The loss curves {verb} within the bound. At step {self.step + 1}, where they come closest to it, "
            f"they differ by {self.difference:.1e} nats. Gradients with an error of {self.gradient_error:.1e} of their "
            f"largest entry (measured by verification, or float32's rounding) explain {self.bound:.1e}."
        )


def agreement(eager: Sequence[float], optimized: Sequence[float], control: Sequence[float], error: float) -> Agreement:
    """Compares two loss curves.

    Args:
        eager: The losses of the eager run, in nats.
        optimized: The losses of the optimized run.
        control: The losses of the control run.
        error: The relative error of the control run's gradients.

    Raises:
        ValueError: The curves are empty.
    """
    if not eager:
        raise ValueError("There is no loss to compare: train for at least one step.")
    drift = accumulate((abs(a - b) for a, b in zip(control, eager, strict=True)), max)
    bounds = [d + _ROUNDINGS * _EPSILON * abs(loss) for d, loss in zip(drift, eager, strict=True)]
    differences = [abs(a - b) for a, b in zip(optimized, eager, strict=True)]
    # A NaN is never within the bound.
    within = [d <= b for d, b in zip(differences, bounds, strict=True)]
    step = within.index(False) if not all(within) else max(range(len(eager)), key=lambda i: differences[i] / bounds[i])
    return Agreement(all(within), step, differences[step], bounds[step], error)


def gradient_error(verified: Sequence[float | None]) -> float:
    """Returns the gradient error of the control run: the largest verified error, but at least float32's rounding."""
    return max([_EPSILON, *(error for error in verified if error is not None)])
