"""`from autofuse.planning import plan`: the name by which users import it. It is in autofuse/profiling/plan/."""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = ["plan"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("autofuse.profiling.plan.plan"), name)


def __dir__() -> list[str]:
    return _NAMES
