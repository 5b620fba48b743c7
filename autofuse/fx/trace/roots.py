"""What names in a function of the user's stand for: globals, free variables, modules that it imports."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from autofuse.fx.trace.code_facts import Load
from autofuse.fx.trace.user_code import Ran

NOTHING: Any = object()


def root_of(ran: Ran, load: Load) -> Any:
    """The value that is loaded; NOTHING for a name of Python's own, and where nothing is bound to the name."""
    if load.kind == "global":
        return ran.namespace.get(load.name, NOTHING)
    if load.kind == "free":
        return ran.free.get(load.name, NOTHING)
    return imported(ran, load.name)


def imported(ran: Ran, name: str) -> Any:
    """The module that an import statement inside of a function gives."""
    return sys.modules.get(_absolute(ran, name), NOTHING)


def imported_names(ran: Ran, name: str) -> list[str]:
    """The names under which an import statement finds modules: `a`, `a.b` and `a.b.c` for the last of them."""
    parts = _absolute(ran, name).split(".")
    names = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return [n for n in names if n in sys.modules]


def _absolute(ran: Ran, name: str) -> str:
    if not name.startswith("."):
        return name
    package = ran.namespace.get("__package__") or ""
    try:
        return importlib.util.resolve_name(name, package)
    except (ImportError, ValueError):
        return ""
