"""Checks for a variance that loses digits by cancellation: `mean(x ** 2) - mean(x) ** 2`.

In exact arithmetic this is the variance. In floating point it is not if the mean is much larger than the standard
deviation: both terms then have the same leading digits. The fused operation has no such error, so its result differs.
canonical/recognise/statistics.py recognises every spelling of the difference.
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing


def variance_has_no_cancellation(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports a variance that the code computes as a difference of two means."""
    if any(claim.view.of(v) in claim.view.differences for v in claim.site.removed.values):
        yield Missing("assumes that the mean is not much larger than the deviation, where E[x^2] - E[x]^2 loses digits")
