"""The one judge of modules and of kernels: tensor by tensor, is it as near to the exact result as rounding explains?

An entry point (modules.py, functions.py) says which tensors there are, what they should be and how they may be rounded.
Knows names, numbers and their bound (bounds.py); must not know what computed them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from autofuse.verify.bounds import Gap, RoundingSpread, gap


@dataclass(frozen=True)
class Compared:
    """One result or gradient: as it came out, as the original has it, and exactly.

    terms: of how many terms an entry is the sum. rounded: what rounding at random is off by.
    """

    name: str
    found: Tensor
    original: Tensor
    exact: Tensor
    terms: int = 1
    rounded: Sequence[RoundingSpread] = ()


@dataclass(frozen=True)
class Judged:
    """The tensor that comes nearest to its bound, or the first that is beyond it; no name where all are exact."""

    name: str = ""
    gap: Gap = field(default_factory=Gap)

    def sentence(self, where: str = "") -> str:
        """What is wrong with a tensor that is beyond its bound; `where` says under which circumstances."""
        if math.isinf(self.gap.error):
            return f"{self.name} is not finite{where} where the original is"
        return (
            f"{self.name} is off by {self.gap.error:.1e} of its largest entry{where}; "
            f"rounding explains {self.gap.bound:.1e}"
        )


def judged(
    tensors: Iterable[Compared], unit: float, *, share: float = 1.0,
    rounded: Callable[[Compared], Sequence[RoundingSpread]] | None = None,
) -> Judged:  # fmt: skip
    """Compare one after the other, up to the first that is beyond its bound.

    unit: the unit of rounding. share: how much of the original's own error counts. rounded: asked for runs that are
    rounded at random, where a tensor is beyond its bound without them.
    """
    worst = Judged()
    for t in tensors:
        found = gap(t.found, t.original, t.exact, unit, t.rounded, share=share, terms=t.terms)
        if not found.within and rounded is not None:
            found = gap(t.found, t.original, t.exact, unit, rounded(t), share=share, terms=t.terms)
        if not found.within:
            return Judged(t.name, found)
        worst = max(worst, Judged(t.name, found), key=lambda j: j.gap.ratio)
    return worst


def capital(sentence: str) -> str:
    """With a capital letter at its start."""
    return sentence[:1].upper() + sentence[1:]
