"""The name by which LibCST's command line finds the codemod: `autofuse.source.codemod.AutofuseCommand`.

The command itself is in autofuse/project/codemod.py, which imports this folder; it is imported on demand.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = ["AutofuseCommand"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("autofuse.project.codemod"), name)


def __dir__() -> list[str]:
    return _NAMES
