"""What a target prints: a call, its arguments, and what it assumes.

Knows text and captured values; knows no function of torch or autofuse.
"""

from __future__ import annotations

from dataclasses import dataclass

from autofuse.ir.graph import Value
from autofuse.reasons.reason import Reason
from autofuse.rule import Constant, Replacement
from autofuse.source.targets.express import Speller

Arguments = dict[str, Value]  # argument name -> what was captured for it


class NotInTarget(Exception):
    """The target has no such operation; the message says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True)
class TargetCall:
    """A call to print: on one line, or one argument a line where that is too long. `unsafe` says what it assumes."""

    function: str
    arguments: tuple[str, ...]
    tail: str = ""  # what follows the call: .squeeze(1)
    before: tuple[str, ...] = ()  # statements that come before the one it stands in
    unsafe: str = ""

    def text(self) -> str:
        return f"{self.function}({', '.join(self.arguments)}){self.tail}"

    def wrapped(self, indent: str, step: str, newline: str) -> str:
        """The call with one argument a line; `indent` is that of the statement."""
        lines = "".join(f"{newline}{indent}{step}{a}," for a in self.arguments)
        return f"{self.function}({lines}{newline}{indent}){self.tail}"


def named(replacement: Replacement, captures: Arguments, s: Speller) -> Arguments:
    """Argument name -> value; positional arguments are named after what they take, absent ones are left out."""
    named = {}
    for name, given in replacement.arguments:
        if isinstance(given, Constant):
            named[name] = s.view.const(given.value)
        elif given in captures:
            named[name or given] = captures[given]
    return named
