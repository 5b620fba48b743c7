"""Does a caller print a result? `y = model(x); print(y)` prints `grad_fn=<MulBackward0>`, which names the operation.

The calls of a function are found as in place/layout_callers.py, with prints instead of layout reads. This file looks at
syntax.
"""

from __future__ import annotations

import ast

from autofuse.source.capture.node_index import node_index
from autofuse.source.place.layout_callers import LayoutIndex, LayoutReads, collect_sources

_PRINTING_FUNCTIONS = frozenset("print pprint str repr format debug info warning error critical log write".split())
_GRADIENT_NAMES = frozenset("requires_grad requires_grad_ Parameter backward grad Linear Embedding parameters".split())
_PRINTING_NODES: tuple[type[ast.expr], ...] = (ast.Call, ast.FormattedValue, ast.Attribute, ast.BinOp)


class PrintIndex(LayoutIndex):
    """The names and calls that a file prints as a whole, or reads the `grad_fn` of."""

    def collect(self, tree: ast.Module) -> None:
        """Collect the printed and the returned expressions."""
        index = node_index(tree)
        for i, returned in index.placed(ast.Return):
            collect_sources(returned.value, self.returned[index.scopes(i)[-1]])
        for kind in _PRINTING_NODES:
            for i, node in index.placed(kind):
                for printed in _printed_expressions(node):
                    for scope in index.scopes(i):
                        _add_printed(printed, self.reads[scope, True])


def mentions_gradients(tree: ast.Module) -> bool:
    """Whether a file mentions gradients, or layers with parameters."""
    index = node_index(tree)
    return (
        any(n.attr in _GRADIENT_NAMES for n in index.of(ast.Attribute))
        or any(n.id in _GRADIENT_NAMES for n in index.of(ast.Name))
        or any(n.arg in _GRADIENT_NAMES for n in index.of(ast.keyword))
    )


def _printed_expressions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return node.args if name in _PRINTING_FUNCTIONS else []
    if isinstance(node, ast.Attribute) and node.attr != "grad_fn":
        return []
    match node:
        case ast.FormattedValue(value=value) | ast.Attribute(value=value, attr="grad_fn"):
            return [value]
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(str()), right=right):
            return [right]
    return []


def _add_printed(node: ast.expr, reads: LayoutReads) -> None:
    """Add the expressions that are printed as a whole: a name, a call, and the elements of a container."""
    if isinstance(node, ast.Name):
        reads.names.add(node.id)
    elif isinstance(node, ast.Call):
        reads.calls.add(node)
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        for part in node.elts:
            _add_printed(part, reads)
    elif isinstance(node, ast.Dict):
        for part in node.values:
            _add_printed(part, reads)
