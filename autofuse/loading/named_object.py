"""Imports the object with a full name: a function that an `after` calls."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


@cache
def resolve_name(name: str) -> Any:
    """Return the object with the full name `name`, such as `torch.nn.functional.softplus`.

    Raises:
        ImportError: A module of the name cannot be imported.
        AttributeError: A module has no such object.
    """
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            result: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            # Try a shorter module name, unless the missing module is imported inside an existing one.
            if count == 1 or error.name not in {".".join(parts[: i + 1]) for i in range(count)}:
                raise
            continue
        for part in parts[count:]:
            result = getattr(result, part)
        return result
    raise ImportError(f"no module named {parts[0]!r}")
