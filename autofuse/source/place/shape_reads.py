"""How a whole shape is written where the tensor that had it goes: as a tuple, or as the torch.Size that it was.

Knows syntax. Knows nothing of graphs.
"""

from __future__ import annotations

import ast

_TAKE_TUPLES = frozenset(
    """
    len tuple list view reshape expand zeros ones empty rand randn full new_zeros new_ones new_empty new_full randint
    broadcast_to repeat prod unflatten max min sum sorted
    """.split()
)


def is_tuple(text: str) -> bool:
    """Whether the text of a shape is a tuple that is written out."""
    try:
        return isinstance(ast.parse(text, mode="eval").body, ast.Tuple)
    except SyntaxError:
        return False


def any_tuple_will_do(node: ast.expr, statement: ast.stmt) -> bool:
    """Whether a read of a shape, somewhere in `statement`, asks for nothing that a tuple has not."""
    for around in ast.walk(statement):
        match around:
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value) if value is node:
                return True
            case ast.Starred(value=value) if value is node:
                return True
            case ast.Subscript(value=value, slice=index) if value is node:
                return not isinstance(index, ast.Slice)
            case ast.Call(func=function, args=arguments) if any(a is node for a in arguments):
                return _name(function) in _TAKE_TUPLES
            case ast.Compare(left=left, comparators=others) if left is node or any(o is node for o in others):
                return True
    return False


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
