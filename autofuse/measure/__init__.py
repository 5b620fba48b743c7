"""Measures time, memory and operators of a step, before and after a change."""

from __future__ import annotations

from autofuse.measure.compare import compare
from autofuse.results.comparison import Category, Comparison, Estimate, Interval, Verdict

__all__ = ["Category", "Comparison", "Estimate", "Interval", "Verdict", "compare"]
