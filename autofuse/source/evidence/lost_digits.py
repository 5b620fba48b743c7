"""Does the code lose digits that the fused operation keeps?

`mean(x ** 2) - mean(x) ** 2` is the variance in exact arithmetic. In floating point it is another number where the mean
is large against the deviation: then both terms agree in all the digits that they have. The canonical form knows every
spelling of that difference (canonical/recognise/statistics.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing


def digits_are_kept(claim: Claim) -> Iterator[Missing | Fails]:
    """No variance is a difference of two numbers that may be large."""
    if any(claim.view.of(v) in claim.view.differences for v in claim.site.doomed.values):
        yield Missing("assumes that the mean is not large against the deviation: E[x^2] - E[x]^2 loses digits then")
