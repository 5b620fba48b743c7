"""What every result that people look at has in common: its JSON, and its forms on a terminal and in a notebook.

Results are plain data and import nothing that draws. How each one is drawn stands in autofuse/display/, which is
imported when somebody looks at a result for the first time.
"""

from __future__ import annotations

import importlib
import json
import random
from typing import Any

from autofuse.results.data import dumped

_DRAWING = "autofuse.display.drawing"


class Shown:
    """A base of results. A subclass has `to_dict`, and `tables` or a drawing of its own in autofuse/display/."""

    def to_dict(self) -> dict[str, Any]:
        """What the JSON form holds. See docs/json.md."""
        raise NotImplementedError

    def to_json(self, indent: int | None = 2) -> str:
        """to_dict() as strict JSON: a number that is infinite or NaN becomes null."""
        return json.dumps(dumped(self.to_dict()), indent=indent, allow_nan=False)

    def __rich__(self) -> Any:
        return drawing().renderable(self)

    def __str__(self) -> str:
        return str(drawing().text(self))

    def _repr_html_(self) -> str:
        return str(drawing().notebook(self))


def drawing() -> Any:
    """The module that draws results."""
    drawn = random.getstate()  # rich draws from Python's generator as it is imported, behind a seed of the user's
    try:
        return importlib.import_module(_DRAWING)
    finally:
        random.setstate(drawn)
