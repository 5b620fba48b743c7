"""Recognizes causal masks in registered buffers, such as `torch.tril(torch.ones(n, n)).view(1, 1, n, n)`.

The form of a buffer is one of these names, which `facts.Known` also uses:

- "lower": ones on and below the diagonal, zeros above it.
- "upper": ones above the diagonal, zeros on and below it.
- "bias": a large negative number above the diagonal, zeros on and below it.
"""

from __future__ import annotations

import ast
import copy

from autofuse.canonical.recognise.masks import SMALLEST_FILL
from autofuse.ir.numbers import is_small
from autofuse.source.capture.scope import ClassScope, FileScope
from autofuse.source.capture.syntax import walk

# Methods that keep the form.
_CREATE_TENSORS = frozenset({"torch.empty", "torch.zeros", "torch.ones", "torch.full", "torch.Tensor"})
_KEEP_FORM = frozenset({"bool", "float", "byte", "int", "long", "half", "to", "type", "contiguous", "clone", "detach"})
_OPPOSITE = {"lower": "upper", "upper": "lower"}


def buffer_form(scope: FileScope, owner: ClassScope | None, name: str) -> str | None:
    """Return the form of the last two dimensions of the buffer `self.name`, or None if it is not known."""
    expression = scope.buffer(owner, name)
    if expression is None or owner is None:
        return None
    return triangle_form(scope, _InlineLocals(owner).visit(copy.deepcopy(expression)))


class _InlineLocals(ast.NodeTransformer):
    """Replaces each local name of `__init__` by the expression assigned to it, if there is exactly one assignment."""

    def __init__(self, owner: ClassScope, depth: int = 0) -> None:
        self.init, self.depth = owner.methods.get("__init__"), depth
        self.owner = owner

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._assigned_expression(node.id) if isinstance(node.ctx, ast.Load) and self.depth < 4 else None
        if value is None:
            return node
        inlined: ast.expr = _InlineLocals(self.owner, self.depth + 1).visit(copy.deepcopy(value))
        return inlined

    def _assigned_expression(self, name: str) -> ast.expr | None:
        """Return the only expression that is assigned to `name`; None if the name is also written in place."""
        if self.init is None:
            return None
        nodes = list(walk(self.init))
        stores = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)]
        values = [
            n.value
            for n in self.init.body
            if isinstance(n, ast.Assign) and len(n.targets) == 1 and n.targets[0] in stores
        ]
        return values[0] if len(values) == len(stores) == 1 and not _is_written(nodes, name) else None


def _is_written(nodes: list[ast.AST], name: str) -> bool:
    """Whether `nodes` contain `name[...] = ...` or `name.method_()`."""
    return any(
        isinstance(n, ast.Subscript)
        and not isinstance(n.ctx, ast.Load)
        and _is_name(n.value, name)
        or isinstance(n, ast.Attribute)
        and n.attr.endswith("_")
        and _is_name(n.value, name)
        for n in nodes
    )


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def triangle_form(scope: FileScope, node: ast.expr) -> str | None:
    """Return the form of an expression, or None."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="tril" | "triu" | "tril_" | "triu_" as name)) if (
            scope.name_of(node.func) is None
        ):
            return _triangle(scope, name.rstrip("_"), inner, node.args, node.keywords)
        case ast.Call(func=function, args=[inner, *rest], keywords=keywords) if _triangle_function(scope, function):
            return _triangle(scope, _triangle_function(scope, function), inner, rest, keywords)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _KEEP_FORM:
            return triangle_form(scope, inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="view" | "reshape"), args=sizes) if _has_leading_ones(sizes):
            return triangle_form(scope, inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="unsqueeze"), args=[ast.Constant(value=0 | 1)]):
            return triangle_form(scope, inner)
        case ast.Subscript(value=inner, slice=index) if _adds_dimensions(index):
            return triangle_form(scope, inner)
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            return _OPPOSITE.get(triangle_form(scope, inner) or "")
        case ast.BinOp(left=ast.Constant(value=1 | 1.0), op=ast.Sub(), right=inner):
            return _OPPOSITE.get(triangle_form(scope, inner) or "")
        case ast.Compare(left=inner, ops=[ast.Eq()], comparators=[ast.Constant(value=0 | 1 as number)]):
            form = triangle_form(scope, inner)
            return form if number == 1 and form in _OPPOSITE else _OPPOSITE.get(form or "")
    return None


def _triangle_function(scope: FileScope, function: ast.expr) -> str:
    """Return "tril" or "triu" if `function` is this function of torch, else ""."""
    name = scope.name_of(function) or ""
    return name.removeprefix("torch.") if name in ("torch.tril", "torch.triu") else ""


def _triangle(
    scope: FileScope, kind: str, inner: ast.expr, rest: list[ast.expr], keywords: list[ast.keyword]
) -> str | None:
    """Return the form of `tril` or `triu` of `inner`, with the other arguments `rest` and `keywords`."""
    diagonals = [*rest, *(k.value for k in keywords if k.arg == "diagonal")]
    diagonal = (
        diagonals[0].value if diagonals and isinstance(diagonals[0], ast.Constant) else 0 if not diagonals else None
    )
    if kind == "tril" and diagonal == 0 and _fill_value(scope, inner) == 1:
        return "lower"
    if kind == "triu" and diagonal == 1 and (fill := _fill_value(scope, inner)) is not None:
        return "upper" if fill == 1 else "bias" if fill <= SMALLEST_FILL else None
    return None


def _fill_value(scope: FileScope, node: ast.expr) -> float | None:
    """Return the number that all elements of a new tensor have, or None."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _KEEP_FORM and not scope.name_of(
            node.func
        ):
            return _fill_value(scope, inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="fill_"), args=[filled]) if _is_new_tensor(scope, inner):
            return number_in(filled)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            function_name = scope.name_of(function)
            if function_name == "torch.ones":
                return 1.0
            fills = [*arguments[1:2], *(k.value for k in keywords if k.arg == "fill_value")]
            return number_in(fills[0]) if function_name == "torch.full" and fills else None
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for ones, factor in ((left, right), (right, left)):
                if _fill_value(scope, ones) == 1 and (number := number_in(factor)) is not None:
                    return number
    return None


def _is_new_tensor(scope: FileScope, node: ast.expr) -> bool:
    """Whether an expression is a new tensor, which has no other name."""
    return isinstance(node, ast.Call) and scope.name_of(node.func) in _CREATE_TENSORS


def number_in(node: ast.expr | None) -> float | None:
    """Return the value of a literal, `float("-inf")` or `-math.inf`; None for any other expression."""
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return float(value) if is_small(value) else None
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            number = number_in(inner)
            return None if number is None else -number
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value="-inf" | "inf" as text)]):
            return float(text)
        case ast.Attribute(attr="inf"):
            return float("inf")
    return None


def _has_leading_ones(sizes: list[ast.expr]) -> bool:
    """Whether all sizes but the last two are 1, as in `view(1, 1, n, n)`."""
    if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple):
        sizes = sizes[0].elts
    return len(sizes) >= 2 and all(isinstance(s, ast.Constant) and s.value == 1 for s in sizes[:-2])


def _adds_dimensions(index: ast.expr) -> bool:
    """Whether an index only adds leading dimensions, as `[None, None]` and `[None, None, :, :]` do."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    whole = [isinstance(p, ast.Slice) and p.lower is p.upper is p.step is None for p in parts]
    none = [isinstance(p, ast.Constant) and p.value is None for p in parts]
    return all(w or n for w, n in zip(whole, none, strict=True)) and none == sorted(none, reverse=True)
