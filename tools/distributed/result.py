"""What became of a row. Plain data, which goes through a file between processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# "unavailable": the wrapping itself does not work here. "ended": its processes did.
Verdict = Literal["equal", "failed", "unavailable", "ended"]


@dataclass
class Result:
    """One row: what was fused, what ran, how far the losses lie apart.

    sites: rule -> places fused. seen: kind of fused operator -> calls in one step on rank 0. difference, allowed: the
    greatest difference of a loss between plain and optimized, and what rounding explains, in nats. seconds: wall clock.
    raised: whether an exception ended it, rather than a comparison.
    """

    number: int
    name: str
    order: str
    ranks: int
    device: str
    verdict: Verdict = "equal"
    reason: str = ""
    note: str = ""
    sites: dict[str, int] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    difference: float | None = None
    allowed: float | None = None
    seconds: float = 0.0
    raised: bool = False
