"""Decides how a whole shape is written if its tensor is removed: as a tuple, or as a torch.Size."""

from __future__ import annotations

import ast

_ACCEPT_TUPLES = frozenset(
    """
    len tuple list view reshape expand zeros ones empty rand randn full new_zeros new_ones new_empty new_full randint
    broadcast_to repeat prod unflatten max min sum sorted
    """.split()
)


def is_tuple(text: str) -> bool:
    """Whether the text of a shape is a tuple display, such as `(b, n, d)`."""
    try:
        return isinstance(ast.parse(text, mode="eval").body, ast.Tuple)
    except SyntaxError:
        return False


def accepts_tuple(node: ast.expr, statement: ast.stmt) -> bool:
    """Whether a read of a shape in `statement` works with a plain tuple instead of a torch.Size."""
    for parent in ast.walk(statement):
        match parent:
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value) if value is node:  # b, n, d = x.shape
                return True
            case ast.Starred(value=value) if value is node:  # x.view(*x.shape, 1)
                return True
            case ast.Subscript(value=value, slice=index) if value is node:
                return not isinstance(index, ast.Slice)  # a slice of a torch.Size is a torch.Size
            case ast.Call(func=function, args=arguments) if any(a is node for a in arguments):
                return _called_name(function) in _ACCEPT_TUPLES
            case ast.Compare(left=left, comparators=others) if left is node or any(o is node for o in others):
                return True
    return False


def _called_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
