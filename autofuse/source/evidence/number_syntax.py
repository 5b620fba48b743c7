"""Numbers and arguments in the syntax of a file, as added_numbers.py reads them."""

from __future__ import annotations

import ast
import math

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.buffer_contents import number_in
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.added_sizes import LARGEST, SCALE
from autofuse.source.evidence.call_arguments import BoundCall


def computes_with_large(function: Function) -> bool:
    numbers = (number_in(n) for n in walk(function) if isinstance(n, ast.expr))
    finfo = any(isinstance(n, ast.Attribute) and n.attr == "finfo" for n in walk(function))
    return finfo or any(n is not None and abs(n) > LARGEST for n in numbers)


def is_filled_with_finite(node: ast.expr) -> bool:
    """Whether a triangle is filled with a large finite number, not with minus infinity."""
    numbers = [number_in(n) for n in walk(node) if isinstance(n, ast.expr)]
    return all(n is None or abs(n) != math.inf for n in numbers)


def large_factor(node: ast.BinOp) -> float | None:
    """The number of a product, if it may make small numbers large."""
    number = number_in(node.right) if number_in(node.left) is None else number_in(node.left)
    return number if number is not None and abs(number) > SCALE else None


def is_small_opposite(node: ast.BinOp, factor: float) -> bool:
    """Whether a product is `(1 - m) * -10000`, which holds no other numbers, since `m` holds zeros and ones."""
    opposite = node.left if number_in(node.left) is None else node.right
    is_opposite = isinstance(opposite, ast.BinOp) and isinstance(opposite.op, ast.Sub) and number_in(opposite.left) == 1
    return -LARGEST <= factor < 0 and (is_opposite or isinstance(opposite, ast.Compare))


def default_of(function: Function, name: str) -> ast.expr | None:
    """The default of an argument; None if it has none."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[::-1], arguments.defaults[::-1], strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((default for a, default in pairs if a.arg == name), None)


def passes_others(call: BoundCall) -> bool:
    """Whether a call passes arguments that its text does not show: `*args`, `**kwargs`."""
    starred = any(isinstance(a, ast.Starred) for a in call.call.args)
    return starred or any(k.arg is None for k in call.call.keywords)


def argument_of(call: ast.Call, position: int, name: str) -> ast.expr | None:
    named = next((k.value for k in call.keywords if k.arg == name), None)
    return call.args[position] if named is None and position < len(call.args) else named
