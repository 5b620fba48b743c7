"""Writes to the tensor of a variable that the capture does not follow: `m.data[0] = 1`, `torch.add(x, y, out=m)`."""

from __future__ import annotations

import ast

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk

KEEPING_WRITES = frozenset("triu_ tril_ zero_ unsqueeze_ squeeze_ requires_grad_ transpose_ t_ clamp_max_ ".split())
_CAPTURED_WRITES = frozenset("masked_fill_ fill_ add_ sub_ mul_ div_ requires_grad_".split())


def writes_unseen(n: ast.AST, name: str, scope: FileScope) -> bool:
    """Whether a node may write to the tensor of a variable through a view, an argument or a rare method."""
    match n:
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
            return not _is_name(n.value, name) and _mentions(n.value, name)
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr.endswith("_") and not attr.endswith("__"):
            return _mentions(value, name) and not (_is_name(value, name) and attr in _CAPTURED_WRITES | KEEPING_WRITES)
        case ast.keyword(arg="out", value=value):
            return _mentions(value, name)
        case ast.For(iter=value):
            return _mentions(value, name)
        case ast.Call(func=ast.Name(id=called)) if called in scope.functions and _may_write(scope.functions[called]):
            return any(_mentions(a, name) for a in (*n.args, *(k.value for k in n.keywords)))
        case ast.Expr(value=ast.Call(args=arguments, keywords=keywords)):
            return any(_mentions(a, name) for a in (*arguments, *(k.value for k in keywords)))
    return False


def _may_write(function: Function) -> bool:
    """Whether a function writes to any tensor in place."""
    for n in walk(function):
        if isinstance(n, ast.Subscript) and not isinstance(n.ctx, ast.Load) or isinstance(n, ast.AugAssign):
            return True
        if isinstance(n, ast.Attribute) and n.attr.endswith("_") or isinstance(n, ast.keyword) and n.arg == "out":
            return True
    return False


def _mentions(node: ast.AST, name: str) -> bool:
    return any(_is_name(n, name) for n in walk(node))


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
