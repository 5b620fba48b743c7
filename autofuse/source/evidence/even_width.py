"""Checks that a tensor that is rotated by halves has an even size in its last dimension.

`torch.cat((-x2, x1), -1)` also joins halves of different sizes, and `ops.rotary` raises an error for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.site_values import describe_value

_HALVES = "AF401"  # pairs of neighbours raise an error for an odd size by themselves


def width_is_even(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports the width of a tensor that an edit rotates by halves, because the text rarely shows it."""
    captures = claim.site.captures
    if claim.site.rule.rule.code == _HALVES and "x" in captures:
        yield Missing(f"assumes that the last dimension of {describe_value(claim, captures['x'], 'the input')} is even")
