"""The judgement that modules and kernels share: is each tensor as close to the exact result as rounding explains?

An entry point (modules.py, functions.py) supplies the tensors, their exact values and their possible rounding. This
file handles names, numbers and their bound (bounds.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from autofuse.verify.bounds import Gap, RoundingSpread, measure_gap


@dataclass(frozen=True)
class TensorComparison:
    """One result or gradient of the candidate, of the original, and exactly.

    Attributes:
        name: its name for a message.
        found: the candidate's tensor.
        original: the original's tensor.
        exact: the exact tensor.
        terms: how many terms each entry is the sum of.
        rounded: the spreads of randomly rounded runs.
    """

    name: str
    result: Tensor
    original: Tensor
    exact: Tensor
    terms: int = 1
    rounded: Sequence[RoundingSpread] = ()


@dataclass(frozen=True)
class TensorJudgement:
    """The tensor that is closest to its bound, or the first that exceeds it.

    The name is "" if all tensors are exact.
    """

    name: str = ""
    gap: Gap = field(default_factory=Gap)

    def sentence(self, where: str = "") -> str:
        """Describe the error of a tensor that exceeds its bound; `where` adds the circumstances."""
        if math.isinf(self.gap.error):
            return f"{self.name} has infinite or NaN entries{where} where the original's are finite"
        return (
            f"{self.name} is off by {self.gap.error:.1e} of its largest entry{where}; "
            f"rounding explains {self.gap.bound:.1e}"
        )


def judge_tensors(
    tensors: Iterable[TensorComparison], unit: float, *, share: float = 1.0,
    rounded: Callable[[TensorComparison], Sequence[RoundingSpread]] | None = None,
) -> TensorJudgement:  # fmt: skip
    """Compare tensors one by one, up to the first that exceeds its bound.

    Args:
        tensors: the tensors.
        unit: the unit roundoff.
        share: the share of the original's own error that counts.
        rounded: returns the spreads of randomly rounded runs. It is called only if a tensor exceeds its bound without
            them, because these runs are slow.
    """
    worst = TensorJudgement()
    for tensor in tensors:
        tensor_gap = measure_gap(
            tensor.result, tensor.original, tensor.exact, unit, tensor.rounded, share=share, terms=tensor.terms
        )
        if not tensor_gap.within and rounded is not None:
            tensor_gap = measure_gap(
                tensor.result, tensor.original, tensor.exact, unit, rounded(tensor), share=share, terms=tensor.terms
            )
        if not tensor_gap.within:
            return TensorJudgement(tensor.name, tensor_gap)
        worst = max(worst, TensorJudgement(tensor.name, tensor_gap), key=lambda j: j.gap.ratio)
    return worst


def capitalize_first(sentence: str) -> str:
    """Return the sentence with a capital first letter."""
    return sentence[:1].upper() + sentence[1:]
