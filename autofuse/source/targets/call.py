"""What a target prints: a call, its arguments, and what it assumes.

Knows text and captured values; knows no function of torch or autofuse.
"""

from __future__ import annotations

import ast
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

    def wrapped(self, indent: str, step: str, newline: str, room: int) -> str:
        """The call with one argument a line; `indent` is that of the statement, `room` what a line may have."""
        inner = indent + step
        lines = "".join(f"{newline}{inner}{_fitted(a, inner, step, newline, room)}," for a in self.arguments)
        return f"{self.function}({lines}{newline}{indent}){self.tail}"


def _fitted(argument: str, indent: str, step: str, newline: str, room: int) -> str:
    """An argument; one that chooses (`mask.bool() if mask is not None else None`) on three lines if one is too long."""
    if len(indent) + len(argument) < room or " if " not in argument:
        return argument
    call = ast.parse(f"f({argument})", mode="eval").body
    given = [*call.args, *call.keywords] if isinstance(call, ast.Call) else []
    value = given[0].value if len(given) == 1 and isinstance(given[0], ast.keyword) else given[0]
    if len(given) != 1 or not isinstance(value, ast.IfExp):
        return argument
    body, test, other = (ast.get_source_segment(f"f({argument})", v) for v in (value.body, value.test, value.orelse))
    start = argument[: value.col_offset - len("f(")]
    lines = "".join(f"{newline}{indent}{step}{part}" for part in (body, f"if {test}", f"else {other}"))
    return f"{start}({lines}{newline}{indent})" if not start.endswith("(") else argument


def named(replacement: Replacement, captures: Arguments, s: Speller) -> Arguments:
    """Argument name -> value; positional arguments are named after what they take, absent ones are left out."""
    named = {}
    for name, given in replacement.arguments:
        if isinstance(given, Constant):
            named[name] = s.view.const(given.value)
        elif given in captures:
            named[name or given] = captures[given]
    return named
