"""The result of a row. Plain data, which processes exchange through a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# "unavailable": the wrapping itself does not work here. "ended": its processes did.
Verdict = Literal["equal", "failed", "unavailable", "ended"]


@dataclass
class Result:
    """One row: what was fused, what ran, and the difference of the losses.

    Attributes:
        sites: rule -> number of fused sites.
        seen: kind of fused operator -> calls in one step on rank 0.
        difference: the largest difference of a loss between plain and optimized, in nats.
        allowed: the difference that rounding explains, in nats.
        seconds: wall-clock time.
        raised: whether an exception ended the row, and not a comparison.
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
