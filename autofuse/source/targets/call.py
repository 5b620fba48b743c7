"""The result of a target: a call as text, its arguments, and its assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from autofuse.ir.graph import Value
from autofuse.reasons.reason import Reason
from autofuse.rule import Constant, Replacement
from autofuse.source.targets.line_breaks import Lines, break_argument
from autofuse.source.targets.speller import Speller

Arguments = dict[str, Value]  # argument name -> captured value


class NotInTarget(Exception):
    """The target has no such operation; the message gives the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True)
class TargetCall:
    """A call as text.

    Attributes:
        function: the text of the called function.
        arguments: the text of each argument.
        tail: the text after the call: `.squeeze(1)`.
        before: statements that precede the statement with the call.
        unsafe: the assumptions of the call; "" if there are none.
    """

    function: str
    arguments: tuple[str, ...]
    tail: str = ""
    before: tuple[str, ...] = ()
    unsafe: str = ""

    def text(self) -> str:
        """Return the call on one line."""
        return f"{self.function}({', '.join(self.arguments)}){self.tail}"

    def wrapped(self, indent: str, step: str, newline: str, room: int) -> str:
        """Return the call with its arguments on one new line if they fit there, otherwise one on each line.

        Args:
            indent: the indentation of the statement.
            step: one level of indentation.
            newline: the line ending of the file.
            room: the maximum line length.
        """
        inner = Lines(indent + step, step, newline, room)
        if inner.fits(", ".join(self.arguments)):
            return f"{self.function}({inner.start()}{', '.join(self.arguments)}{newline}{indent}){self.tail}"
        lines = "".join(f"{inner.start()}{break_argument(a, inner)}," for a in self.arguments)
        return f"{self.function}({lines}{newline}{indent}){self.tail}"


def arguments_by_name(replacement: Replacement, captures: Arguments, speller: Speller) -> Arguments:
    """Return the captured value of each argument by name; a missing argument is left out."""
    values = {}
    for name, source in replacement.arguments:
        if isinstance(source, Constant):
            values[name] = speller.view.const(source.value)
        elif source in captures:
            values[name or source] = captures[source]  # a positional argument takes the name of its capture
    return values
