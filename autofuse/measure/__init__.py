"""How long a step takes, what memory it needs and which operators it runs, before and after."""

from __future__ import annotations

from autofuse.measure.compare import compare
from autofuse.results.comparison import Category, Comparison, Estimate, Interval, Verdict

__all__ = ["Category", "Comparison", "Estimate", "Interval", "Verdict", "compare"]
