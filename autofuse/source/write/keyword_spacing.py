"""The spaces around `=` in keyword arguments: new code has them if the file has them, as in `softmax(x, dim = -1)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

_SPACES = cst.AssignEqual(cst.SimpleWhitespace(" "), cst.SimpleWhitespace(" "))
_NO_SPACES = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def is_spaced(text: str) -> bool:
    """Whether most keyword arguments and defaults in a text have spaces around `=`."""
    lines = text.encode().splitlines()
    signs = [lines[line - 1][column:] for line, column in _positions_of_signs(ast.parse(text))]
    spaced = sum(sign.startswith(b" =") for sign in signs)
    return spaced > len(signs) - spaced


def _positions_of_signs(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yields the line and the column after the name of each keyword argument, and of each default without a type."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg is not None:
            yield node.lineno, node.col_offset + len(node.arg.encode())
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            with_default = positional[len(positional) - len(node.defaults) :]
            with_default += [a for a, d in zip(node.kwonlyargs, node.kw_defaults, strict=True) if d is not None]
            yield from ((a.end_lineno or 0, a.end_col_offset or 0) for a in with_default if a.annotation is None)


def equal_sign(call: cst.Call, spaced: bool) -> cst.AssignEqual:
    """The `=` for another keyword argument of `call`: like the last one that the call has, else like the file's."""
    own = next((a.equal for a in reversed(call.args) if isinstance(a.equal, cst.AssignEqual)), None)
    return own or (_SPACES if spaced else _NO_SPACES)


def with_spaces(expression: cst.BaseExpression) -> cst.BaseExpression:
    """Returns a new call with spaces around `=`: the call itself, or the one whose result the expression reads."""
    if isinstance(expression, cst.Call):
        args = [a.with_changes(equal=_SPACES) if a.keyword is not None else a for a in expression.args]
        return expression.with_changes(func=with_spaces(expression.func), args=args)
    if isinstance(expression, (cst.Attribute, cst.Subscript)):
        return expression.with_changes(value=with_spaces(expression.value))
    return expression
