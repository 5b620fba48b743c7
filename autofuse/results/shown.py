"""The base class of results: their JSON, and their forms on a terminal and in a notebook.

Results are plain data and import nothing that draws. autofuse/display draws them. It is imported when a result is shown
for the first time.
"""

from __future__ import annotations

import importlib
import json
import random
from typing import Any

from autofuse.results.data import dumped

_DRAWING = "autofuse.display.drawing"


class Shown:
    """The base class of results.

    A subclass has `to_dict`, and `tables` or a function in autofuse/display/drawing.py.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Gives the class a method of its own, because IPython prefers a class's own repr to an inherited method."""
        super().__init_subclass__(**arguments)
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def to_dict(self) -> dict[str, Any]:
        """The content of the JSON form. See docs/json.md."""
        raise NotImplementedError

    def to_json(self, indent: int | None = 2) -> str:
        """to_dict() as strict JSON. Infinite numbers and NaN become null."""
        return json.dumps(dumped(self.to_dict()), indent=indent, allow_nan=False)

    def __rich__(self) -> Any:
        return drawing().renderable(self)

    def __str__(self) -> str:
        return str(drawing().text(self))

    def _repr_html_(self) -> str:
        return str(drawing().notebook(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Prints the text that IPython shows without HTML: in a terminal, and in a notebook that is read as text."""
        printer.text(str(self))


def drawing() -> Any:
    """The module that draws results."""
    drawn = random.getstate()  # importing rich draws a random number, which would change what a user's seed gives
    try:
        return importlib.import_module(_DRAWING)
    finally:
        random.setstate(drawn)
