"""Treats lambdas and the elements of comprehensions as functions.

`map(lambda t: t * cos + rotate(t) * sin, (q, k))` evaluates one expression for several values. An edit of this
expression must be correct for every `t`. So the expression is captured as a function of `t`, like any other function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import DefinedFunction
from autofuse.source.capture.syntax import parts, walk

_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp)
_EXPRESSIONS = frozenset({ast.Lambda, *_COMPREHENSIONS})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def expression_functions(defined: DefinedFunction) -> Iterator[DefinedFunction]:
    """Yield each lambda and comprehension in a function that contains an operator, in the order of the text."""
    has_expressions = any(n.__class__ in _EXPRESSIONS for n in walk(defined.function))
    nodes = [n for s in defined.function.body for n in _find_expressions(s)] if has_expressions else []
    inner = defined.scope.nested_scope(defined.function) if nodes else defined.scope
    for node in nodes:
        yield DefinedFunction(f"{defined.symbol}.<lambda>", node, None, inner)


def _find_expressions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, _DEFINITIONS):
            continue
        function = _to_function(node)
        if function is not None:
            yield function  # expressions nested inside it are left out: their names come from two functions
        else:
            todo += reversed(parts(node))


def _to_function(node: ast.AST) -> ast.FunctionDef | None:
    if isinstance(node, ast.Lambda):
        return _make_function(node.args, node.body)
    if not isinstance(node, _COMPREHENSIONS) or len(node.generators) != 1:
        return None
    target = node.generators[0].target
    if any(isinstance(n, ast.NamedExpr) for n in walk(node)):
        return None
    names = [ast.arg(n.id) for n in ast.walk(target) if isinstance(n, ast.Name)]
    return _make_function(ast.arguments([], names, None, [], [], None, []), node.elt)


def _make_function(arguments: ast.arguments, body: ast.expr) -> ast.FunctionDef | None:
    """Return a function that returns `body`; None if it has no operator, and so contains no hand-written layer."""
    if not any(isinstance(n, ast.BinOp) for n in walk(body)):
        return None
    returned = ast.copy_location(ast.Return(body), body)
    function = ast.FunctionDef("<lambda>", arguments, [returned], [], None, None)
    return ast.copy_location(function, body)


def is_expression_function(function: Function) -> bool:
    """Whether a function comes from a lambda or a comprehension. Such a function cannot contain statements."""
    return function.name == "<lambda>"
