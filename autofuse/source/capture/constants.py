"""Numbers that a file gives a name to: `SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)`.

Knows arithmetic on literals; a name counts where the whole file assigns it once, at its top level.
"""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from autofuse.ir.numbers import is_small, power_of, result_of
from autofuse.source.capture.syntax import walk

_OPERATORS: dict[type[ast.operator], Callable[[float, float], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: power_of,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[float], float]] = {"math.sqrt": math.sqrt, "math.exp": math.exp, "math.log": math.log}
_NAMED = {"math.pi": math.pi, "math.e": math.e, "numpy.pi": math.pi, "torch.pi": math.pi}


def constants_of(tree: ast.Module, qualified: Mapping[str, str]) -> dict[str, float]:
    """The names that a file assigns once, at its top level, from literals alone."""
    if not _numbers(tree, qualified, None):  # as in most files, which need not be walked then
        return {}
    stores = Counter(n.id for n in walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    return _numbers(tree, qualified, stores)


def _numbers(tree: ast.Module, qualified: Mapping[str, str], stores: Counter[str] | None) -> dict[str, float]:
    """The names that are assigned numbers; without `stores`, those assigned more than once too."""
    found: dict[str, float] = {}
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        once = isinstance(target, ast.Name) and (stores is None or stores[target.id] == 1)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and once and isinstance(value, ast.expr):
            try:
                number = number_of(value, qualified, found)
            except RecursionError:  # nested too deeply to be a number that somebody gives a name to
                number = None
            if number is not None and isinstance(target, ast.Name):
                found[target.id] = number
    return found


def number_of(node: ast.expr, qualified: Mapping[str, str], known: Mapping[str, float]) -> float | None:
    """The number that an expression of literals and `known` names comes to, None for any other expression."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return known.get(name)
        case ast.Attribute():
            return _NAMED.get(_dotted(node, qualified))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = number_of(operand, qualified, known)
            return None if number is None else -number
        case ast.Call(func=function, args=[argument], keywords=[]):
            apply = _FUNCTIONS.get(_dotted(function, qualified))
            return _combined(lambda x, _: apply(x), number_of(argument, qualified, known), 0) if apply else None
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _combined(_OPERATORS[type(op)], *(number_of(side, qualified, known) for side in (left, right)))
    return None


def _combined(function: Callable[[float, float], Any], x: float | None, y: float | None) -> float | None:
    if x is None or y is None:
        return None
    result = result_of(lambda: function(x, y)) if is_small(x) and is_small(y) else None
    return result if result is not None and math.isfinite(result) else None


def _dotted(node: ast.expr, qualified: Mapping[str, str]) -> str:
    if isinstance(node, ast.Name):
        return qualified.get(node.id, "")
    return f"{_dotted(node.value, qualified)}.{node.attr}" if isinstance(node, ast.Attribute) else ""
