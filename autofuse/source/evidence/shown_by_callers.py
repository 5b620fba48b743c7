"""Does a caller show which operation made a result? `y = model(x); print(y)` shows `grad_fn=<MulBackward0>`.

Looks at the calls of a function as place/layout_callers.py does, for prints in the place of layouts. Knows syntax.
"""

from __future__ import annotations

import ast

from autofuse.source.capture.syntax import parts
from autofuse.source.place.layout_callers import LayoutIndex, Reads, starts

_SHOWS = frozenset("print pprint str repr format debug info warning error critical log write".split())
_MAKES_GRADIENTS = frozenset("requires_grad requires_grad_ Parameter backward grad Linear Embedding parameters".split())
_SHOWING = frozenset({ast.Call, ast.FormattedValue, ast.Attribute, ast.BinOp})


class ShownIndex(LayoutIndex):
    """What a file prints whole, or asks for its `grad_fn`."""

    def read(self, tree: ast.Module) -> None:
        """Fills what is asked, and what is returned."""
        todo: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, ())]
        while todo:
            node, scopes = todo.pop()
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
                scopes = (*scopes, node)
            elif isinstance(node, ast.Return) and scopes:
                starts(node.value, self.returned[scopes[-1]])
            elif node.__class__ in _SHOWING:
                for shown in _shown(node):
                    for scope in scopes:
                        _whole(shown, self.asked[scope, True])
            todo += [(child, scopes) for child in parts(node)]


def gradients_are_made(tree: ast.Module) -> bool:
    """Whether a file speaks of gradients, or of layers with parameters."""
    return any(
        getattr(n, "attr", getattr(n, "id", getattr(n, "arg", ""))) in _MAKES_GRADIENTS
        for n in ast.walk(tree)
        if isinstance(n, (ast.Attribute, ast.Name, ast.keyword))
    )


def _shown(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if name in _SHOWS:
            return args
        case ast.FormattedValue(value=value) | ast.Attribute(value=value, attr="grad_fn"):
            return [value]
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(str()), right=right):
            return [right]
    return []


def _whole(node: ast.expr, reads: Reads) -> None:
    """Adds what is shown whole: a name, a call, and those in a display."""
    if isinstance(node, ast.Name):
        reads.names.add(node.id)
    elif isinstance(node, ast.Call):
        reads.calls.add(node)
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        for part in node.elts:
            _whole(part, reads)
    elif isinstance(node, ast.Dict):
        for part in node.values:
            _whole(part, reads)
