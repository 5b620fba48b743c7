"""A call that is too long for its line, and what methods are called on: the call gets a statement of its own.

`x = F.f(...).transpose(1, 2).reshape(b, n, c)` becomes `x = F.f(...)` and `x = x.transpose(1, 2).reshape(b, n, c)`.
Formatters lay out a chain behind a long call in ways of their own, and people write two statements. Knows text and
libcst's expressions.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace

import libcst as cst

from autofuse.source.place.edits import NewText
from autofuse.source.targets import TargetCall


@dataclass(frozen=True)
class ChainedCall:
    """The call for a statement of its own, which gives `name`, and what then stands in its place."""

    node: cst.BaseExpression
    name: str
    call: TargetCall
    rest: str
    start: str = ""  # what the result is given to at once: `self.layers[4](`

    def statement(self, room: int, step: str, newline: str) -> str:
        """The statement that calls: on one line, or one argument a line where it has no `room` on one."""
        line = f"{self.name} = {self.call.text()}"
        return line if len(line) <= room else f"{self.name} = {self.call.wrapped('', step, newline, room)}"


def chained_call(
    line: cst.SimpleStatementLine, texts: dict[cst.BaseExpression, NewText], text: str
) -> ChainedCall | None:
    """The replaced expression of a statement that methods are called on. `text` is that of the piece it stands in."""
    statement = line.body[0] if len(line.body) == 1 else None
    value = statement.value if isinstance(statement, (cst.Assign, cst.Return)) else None
    node = _receiver(value, texts) if value is not None else None
    if statement is None or value is None or node is None:
        return None
    new = texts[node]
    if new.call is None:
        return None
    start, opened, function = new.call.function.rpartition("(")
    call = replace(new.call, function=function, tail="")
    rest = new.text.removeprefix(start + opened + call.text())
    name = _name(statement, value, call, text)
    if (
        name is None
        or rest == new.text
        or not (rest or node is not value)
        or rest
        and not rest.startswith(")" if opened else ".")
    ):
        return None
    return ChainedCall(node, name, call, rest, start + opened)


def _receiver(value: cst.BaseExpression, texts: Container[cst.BaseExpression]) -> cst.BaseExpression | None:
    """The replaced expression that is computed first: at the start of a chain of methods, attributes and indices, to
    the left of an operator or behind a name, or the first argument of a function."""
    while value not in texts:
        if isinstance(value, cst.Call):
            first = value.args[0] if value.args and not value.args[0].star and _is_dotted(value.func) else None
            value = value.func if first is None else first.value
        elif isinstance(value, (cst.Attribute, cst.Subscript)):
            value = value.value
        elif isinstance(value, cst.BinaryOperation):
            value = value.right if isinstance(value.left, cst.Name) else value.left
        else:
            return None
    return value


def _is_dotted(function: cst.BaseExpression) -> bool:
    """`self.proj`, `self.mlp[4]`: looking it up before its argument or after it is the same."""
    while isinstance(function, (cst.Attribute, cst.Subscript)):
        function = function.value
    return isinstance(function, cst.Name)


def _name(statement: cst.CSTNode, value: cst.BaseExpression, call: TargetCall, text: str) -> str | None:
    """A name for what the call gives: that of the statement if the rest of the chain does not read it."""
    if isinstance(statement, cst.Assign):
        target = statement.targets[0].target
        if len(statement.targets) != 1 or not isinstance(target, cst.Name):
            return None
        chain = cst.Module([]).code_for_node(value)
        if not _mentions(chain, target.value):
            return target.value
    name = "attn_output" if call.function.endswith("attention") else "output"
    return None if _mentions(text, name) else name


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None
