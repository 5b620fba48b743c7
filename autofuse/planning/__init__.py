"""Users import `plan` from here: `from autofuse.planning import plan`. It is defined in autofuse/profiling/plan/."""

from __future__ import annotations

from autofuse.profiling.plan.plan import plan

__all__ = ["plan"]
