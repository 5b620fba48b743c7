"""Finds the values of the names in a user's function: globals, free variables and imported modules."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from autofuse.fx.trace.code_facts import Load
from autofuse.fx.trace.user_code import Execution

NOTHING: Any = object()


def root_of(ran: Execution, load: Load) -> Any:
    """Returns the value that is loaded, or NOTHING for an unbound name or one of Python's built-in names."""
    if load.kind == "global":
        return ran.namespace.get(load.name, NOTHING)
    if load.kind == "free":
        return ran.free.get(load.name, NOTHING)
    return imported_module(ran, load.name)


def imported_module(ran: Execution, name: str) -> Any:
    """Returns the module that an import statement inside a function refers to, or NOTHING."""
    return sys.modules.get(_absolute_name(ran, name), NOTHING)


def imported_names(ran: Execution, name: str) -> list[str]:
    """Returns the keys of `sys.modules` that an import statement reads: `a`, `a.b` and `a.b.c` for `import a.b.c`."""
    parts = _absolute_name(ran, name).split(".")
    names = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return [n for n in names if n in sys.modules]


def _absolute_name(ran: Execution, name: str) -> str:
    if not name.startswith("."):
        return name
    package = ran.namespace.get("__package__") or ""
    try:
        return importlib.util.resolve_name(name, package)
    except (ImportError, ValueError):
        return ""
