"""A name that users import stays where it is."""

from __future__ import annotations

import pytest

import autofuse.planning
from autofuse.planning import plan
from autofuse.profiling.plan import plan as module


def test_plan_is_imported_from_planning() -> None:
    assert plan is module.plan and dir(autofuse.planning) == ["plan"]


def test_nothing_else_is() -> None:
    with pytest.raises(AttributeError, match=r"'autofuse.planning' has no attribute 'memory'"):
        autofuse.planning.memory  # noqa: B018
