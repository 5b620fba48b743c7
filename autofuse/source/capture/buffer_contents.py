"""What a registered buffer is proved to hold: a triangle of ones, or zeros below a filled triangle.

Read from the expression that registers it, `torch.tril(torch.ones(n, n)).view(1, 1, n, n)`. Knows syntax only; the
names of the forms are those of facts.Known.
"""

from __future__ import annotations

import ast
import copy

from autofuse.canonical.recognise.masks import SMALLEST_FILL
from autofuse.ir.numbers import is_small
from autofuse.source.capture.scope import ClassScope, FileScope
from autofuse.source.capture.syntax import walk

_SAME = frozenset({"bool", "float", "byte", "int", "long", "half", "to", "type", "contiguous", "clone", "detach"})
_OPPOSITE = {"lower": "upper", "upper": "lower"}


def buffer_form(scope: FileScope, owner: ClassScope | None, name: str) -> str | None:
    """ "lower", "upper" or "bias" where the buffer `self.name` is proved to hold that in its last two dimensions."""
    expression = scope.buffer(owner, name)
    if expression is None or owner is None:
        return None
    return _form(scope, _Inlined(owner).visit(copy.deepcopy(expression)))


class _Inlined(ast.NodeTransformer):
    """Puts in place of each name of `__init__` what it was assigned, where that is one plain assignment."""

    def __init__(self, owner: ClassScope, depth: int = 0) -> None:
        self.init, self.depth = owner.methods.get("__init__"), depth
        self.owner = owner

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._assigned(node.id) if isinstance(node.ctx, ast.Load) and self.depth < 4 else None
        if value is None:
            return node
        found: ast.expr = _Inlined(self.owner, self.depth + 1).visit(copy.deepcopy(value))
        return found

    def _assigned(self, name: str) -> ast.expr | None:
        """The one expression that the local `name` holds from its assignment on, and that is not written in place."""
        if self.init is None:
            return None
        nodes = list(walk(self.init))
        stores = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)]
        values = [
            n.value
            for n in self.init.body
            if isinstance(n, ast.Assign) and len(n.targets) == 1 and n.targets[0] in stores
        ]
        return values[0] if len(values) == len(stores) == 1 and not _written(nodes, name) else None


def _written(nodes: list[ast.AST], name: str) -> bool:
    """Whether `name[...] = ...` or `name.method_()` stands among `nodes`."""
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


def _form(scope: FileScope, node: ast.expr) -> str | None:
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="tril" | "triu" as name)) if (
            scope.name_of(node.func) is None
        ):
            return _triangle(scope, name, inner, node.args, node.keywords)
        case ast.Call(func=function, args=[inner, *rest], keywords=keywords) if _triangular(scope, function):
            return _triangle(scope, _triangular(scope, function), inner, rest, keywords)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _SAME:
            return _form(scope, inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="view" | "reshape"), args=sizes) if _leading_ones(sizes):
            return _form(scope, inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="unsqueeze"), args=[ast.Constant(value=0 | 1)]):
            return _form(scope, inner)
        case ast.Subscript(value=inner, slice=index) if _adds_dimensions(index):
            return _form(scope, inner)
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            return _OPPOSITE.get(_form(scope, inner) or "")
        case ast.BinOp(left=ast.Constant(value=1 | 1.0), op=ast.Sub(), right=inner):
            return _OPPOSITE.get(_form(scope, inner) or "")
        case ast.Compare(left=inner, ops=[ast.Eq()], comparators=[ast.Constant(value=0 | 1 as number)]):
            found = _form(scope, inner)
            return found if number == 1 and found in _OPPOSITE else _OPPOSITE.get(found or "")
    return None


def _triangular(scope: FileScope, function: ast.expr) -> str:
    name = scope.name_of(function) or ""
    return name.removeprefix("torch.") if name in ("torch.tril", "torch.triu") else ""


def _triangle(
    scope: FileScope, kind: str, inner: ast.expr, rest: list[ast.expr], keywords: list[ast.keyword]
) -> str | None:
    given = [*rest, *(k.value for k in keywords if k.arg == "diagonal")]
    diagonal = given[0].value if given and isinstance(given[0], ast.Constant) else 0 if not given else None
    if kind == "tril" and diagonal == 0 and _filled_with(scope, inner) == 1:
        return "lower"
    if kind == "triu" and diagonal == 1 and (fill := _filled_with(scope, inner)) is not None:
        return "upper" if fill == 1 else "bias" if fill <= SMALLEST_FILL else None
    return None


def _filled_with(scope: FileScope, node: ast.expr) -> float | None:
    """The number that a new tensor is filled with."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _SAME and not scope.name_of(node.func):
            return _filled_with(scope, inner)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            maker = scope.name_of(function)
            if maker == "torch.ones":
                return 1.0
            fills = [*arguments[1:2], *(k.value for k in keywords if k.arg == "fill_value")]
            return _number(fills[0]) if maker == "torch.full" and fills else None
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for ones, factor in ((left, right), (right, left)):
                if _filled_with(scope, ones) == 1 and (number := _number(factor)) is not None:
                    return number
    return None


def _number(node: ast.expr) -> float | None:
    """A literal, `float("-inf")`, or `-math.inf`."""
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return float(value) if is_small(value) else None
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            number = _number(inner)
            return None if number is None else -number
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value="-inf" | "inf" as text)]):
            return float(text)
        case ast.Attribute(attr="inf"):
            return float("inf")
    return None


def _leading_ones(sizes: list[ast.expr]) -> bool:
    """view(1, 1, n, n)"""
    if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple):
        sizes = sizes[0].elts
    return len(sizes) >= 2 and all(isinstance(s, ast.Constant) and s.value == 1 for s in sizes[:-2])


def _adds_dimensions(index: ast.expr) -> bool:
    """[None, None], [None, None, :, :]"""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    whole = [isinstance(p, ast.Slice) and p.lower is p.upper is p.step is None for p in parts]
    none = [isinstance(p, ast.Constant) and p.value is None for p in parts]
    return all(w or n for w, n in zip(whole, none, strict=True)) and none == sorted(none, reverse=True)
