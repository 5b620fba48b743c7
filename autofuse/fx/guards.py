"""What a trace took for granted, as Python text that a generated forward tests before it trusts the trace.

A guard speaks of `self` and of forward's own parameters. Knows no torch.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Guards:
    """The tests, in the order in which they were met, and the objects that they name."""

    tests: dict[str, None] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)

    def add(self, test: str) -> None:
        self.tests[test] = None

    def equal(self, text: str, value: Any) -> None:
        """`text` must give `value`."""
        if value is None or isinstance(value, (bool, enum.Enum)):
            self.add(f"{text} is {self.name_of(value)}")
        elif isinstance(value, float) and math.isnan(value):
            self.add(f"{text} != {text}")
        else:
            self.add(f"{text} == {self.name_of(value)}")

    def same(self, text: str, value: Any) -> None:
        """`text` must give that very object."""
        self.add(f"{text} is {self.name_of(value)}")

    def name_of(self, value: Any) -> str:
        """Text for a value: itself where that is short and exact, else a name bound to it."""
        if value is None or type(value) in (bool, int, str) or type(value) is float and math.isfinite(value):
            return repr(value)
        for name, known in self.names.items():
            if known is value or isinstance(value, Hashable) and type(known) is type(value) and known == value:
                return name
        name = f"_c{len(self.names)}"
        self.names[name] = value
        return name

    @property
    def text(self) -> str:
        """All tests as one expression."""
        return " and ".join(f"({t})" if " or " in t else t for t in self.tests) or "True"
