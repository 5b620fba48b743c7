"""Evaluates the named numbers of a file, such as `SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)`.

Only arithmetic on literals is evaluated. A name counts only if the file assigns it once, at module level.
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


def named_constants(tree: ast.Module, qualified: Mapping[str, str]) -> dict[str, float]:
    """Return the numbers that a file assigns to names.

    Args:
        tree: The syntax tree of the file.
        qualified: The imported names of the file and their full names.
    """
    if not _numbers(tree, qualified, None):  # most files have none, and need no walk
        return {}
    stores = Counter(n.id for n in walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    return _numbers(tree, qualified, stores)


def _numbers(tree: ast.Module, qualified: Mapping[str, str], stores: Counter[str] | None) -> dict[str, float]:
    """Return the numbers that module-level statements assign to names.

    Args:
        tree: The syntax tree of the file.
        qualified: The imported names of the file and their full names.
        stores: How often the file assigns each name. If it is None, names with several assignments are included.
    """
    numbers: dict[str, float] = {}
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        once = isinstance(target, ast.Name) and (stores is None or stores[target.id] == 1)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and once and isinstance(value, ast.expr):
            try:
                number = evaluate_number(value, qualified, numbers)
            except RecursionError:  # an expression with deep nesting is not a constant that a person wrote
                number = None
            if number is not None and isinstance(target, ast.Name):
                numbers[target.id] = number
    return numbers


def evaluate_number(node: ast.expr, qualified: Mapping[str, str], known: Mapping[str, float]) -> float | None:
    """Return the value of an expression of literals and `known` names; None for any other expression.

    Args:
        node: The expression.
        qualified: The imported names of the file and their full names.
        known: Numbers by name.
    """
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return known.get(name)
        case ast.Attribute():
            return _NAMED.get(_dotted_name(node, qualified))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = evaluate_number(operand, qualified, known)
            return None if number is None else -number
        case ast.Call(func=function, args=[argument], keywords=[]):
            apply = _FUNCTIONS.get(_dotted_name(function, qualified))
            return _combine(lambda x, _: apply(x), evaluate_number(argument, qualified, known), 0) if apply else None
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _combine(_OPERATORS[type(op)], *(evaluate_number(side, qualified, known) for side in (left, right)))
    return None


def _combine(function: Callable[[float, float], Any], x: float | None, y: float | None) -> float | None:
    if x is None or y is None:
        return None
    result = result_of(lambda: function(x, y)) if is_small(x) and is_small(y) else None
    return result if result is not None and math.isfinite(result) else None


def _dotted_name(node: ast.expr, qualified: Mapping[str, str]) -> str:
    if isinstance(node, ast.Name):
        return qualified.get(node.id, "")
    return f"{_dotted_name(node.value, qualified)}.{node.attr}" if isinstance(node, ast.Attribute) else ""
