"""What a qualified name stands for where it can be imported: the functions that an `after` calls."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


@cache
def resolved(name: str) -> Any:
    """The object with that qualified name: torch.nn.functional.softplus. Raises ImportError or AttributeError."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if count == 1 or error.name not in {".".join(parts[: i + 1]) for i in range(count)}:
                raise
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ImportError(f"no module named {parts[0]!r}")
