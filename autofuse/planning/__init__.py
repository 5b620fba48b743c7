"""The name by which users import it: `from autofuse.planning import plan`. It is made in autofuse/profiling/plan/."""

from __future__ import annotations

from autofuse.profiling.plan.plan import plan

__all__ = ["plan"]
