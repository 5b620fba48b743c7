"""Splits a statement if the fused call and the chain of methods after it are too long for one line.

`x = F.f(...).transpose(1, 2).reshape(b, n, c)` becomes `x = F.f(...)` and `x = x.transpose(1, 2).reshape(b, n, c)`.
Formatters wrap a long chain in several ways, and people write two statements.
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
    """A call that gets a statement of its own.

    Attributes:
        node: the expression that the call replaces.
        name: the variable that the new statement assigns.
        call: the call.
        rest: the code after the variable in the original statement.
        start: the code before it, if the result is the first argument of a function: `self.layers[4](`.
    """

    node: cst.BaseExpression
    name: str
    call: TargetCall
    rest: str
    start: str = ""

    def statement(self, room: int, step: str, newline: str) -> str:
        """The new statement. If it does not fit on one line of `room` characters, it has one argument per line."""
        line = f"{self.name} = {self.call.text()}"
        return line if len(line) <= room else f"{self.name} = {self.call.wrapped('', step, newline, room)}"


def find_chained_call(
    line: cst.SimpleStatementLine, texts: dict[cst.BaseExpression, NewText], text: str
) -> ChainedCall | None:
    """Finds the fused call at the start of a chain.

    Args:
        line: the statement.
        texts: the replaced expressions.
        text: the code of the module, in which a new variable must be unused.
    """
    statement = line.body[0] if len(line.body) == 1 else None
    value = statement.value if isinstance(statement, (cst.Assign, cst.Return)) else None
    node = _first_evaluated(value, texts) if value is not None else None
    if statement is None or value is None or node is None:
        return None
    new = texts[node]
    if new.call is None:
        return None
    # The call may be the argument of another one, as in `self.layers[4](F.f(...))`. Only the inner call is split off.
    start, bracket, function = new.call.function.rpartition("(")
    call = replace(new.call, function=function, tail="")
    rest = new.text.removeprefix(start + bracket + call.text())
    name = _variable_for(statement, value, node, call, start + bracket + rest, text)
    is_call_first, something_follows = rest != new.text, bool(rest) or node is not value
    if name is None or not is_call_first or not something_follows:
        return None
    if rest and not rest.startswith(")" if bracket else "."):
        return None
    return ChainedCall(node, name, call, rest, start + bracket)


def _first_evaluated(value: cst.BaseExpression, texts: Container[cst.BaseExpression]) -> cst.BaseExpression | None:
    """The replaced expression that `value` evaluates first, or None. There are three cases:

    - the start of a chain of methods, attributes and indices,
    - the left operand of an operator, or the right operand after a name,
    - the first argument of a function.
    """
    while value not in texts:
        if isinstance(value, cst.Call):
            argument = value.args[0] if value.args and not value.args[0].star and _is_dotted(value.func) else None
            value = value.func if argument is None else argument.value
        elif isinstance(value, (cst.Attribute, cst.Subscript)):
            value = value.value
        elif isinstance(value, cst.BinaryOperation):
            value = value.right if isinstance(value.left, cst.Name) else value.left
        else:
            return None
    return value


def _is_dotted(function: cst.BaseExpression) -> bool:
    """Whether a function is a dotted name such as `self.proj` or `self.mlp[4]`. It may be looked up later."""
    while isinstance(function, (cst.Attribute, cst.Subscript)):
        function = function.value
    return isinstance(function, cst.Name)


def _variable_for(
    statement: cst.CSTNode, value: cst.BaseExpression, node: cst.BaseExpression, call: TargetCall, rest: str, text: str
) -> str | None:
    """The variable for the result: the target of the statement, unless the rest of the chain reads it."""
    if isinstance(statement, cst.Assign):
        target = statement.targets[0].target
        if len(statement.targets) != 1 or not isinstance(target, cst.Name):
            return None
        if not _contains_name(rest, target.value) and not _reads_outside(value, node, target.value):
            return target.value
    name = "attn_output" if call.function.endswith("attention") else "output"
    return None if _contains_name(text, name) else name


def _reads_outside(value: cst.BaseExpression, node: cst.BaseExpression, name: str) -> bool:
    """Whether the part of `value` outside of `node` contains a name."""
    module, word = cst.Module([]), re.compile(rf"\b{name}\b")
    return len(word.findall(module.code_for_node(value))) > len(word.findall(module.code_for_node(node)))


def _contains_name(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None
