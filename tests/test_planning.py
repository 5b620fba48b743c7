"""autofuse.planning keeps the name that users import."""

from __future__ import annotations

import autofuse.planning
from autofuse.planning import plan
from autofuse.profiling.plan import plan as module


def test_plan_is_imported_from_planning() -> None:
    assert plan is module.plan and autofuse.planning.__all__ == ["plan"]
