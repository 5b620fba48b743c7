"""The spaces around `=` in keyword arguments: new code has them if the file has them, as in `softmax(x, dim = -1)`."""

from __future__ import annotations

import re

import libcst as cst

_SPACED = re.compile(r"[(,]\s*\w+ = (?!=)")
_TIGHT = re.compile(r"[(,]\s*\w+=(?!=)")
_SPACES = cst.AssignEqual(cst.SimpleWhitespace(" "), cst.SimpleWhitespace(" "))
_NO_SPACES = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def is_spaced(text: str) -> bool:
    """Whether most keyword arguments in a text have spaces around `=`."""
    return len(_SPACED.findall(text)) > len(_TIGHT.findall(text))


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
