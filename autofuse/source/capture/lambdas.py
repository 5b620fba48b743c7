"""Expressions that run for each of several values, as functions: lambdas, and what a comprehension computes.

`map(lambda t: t * cos + rotate(t) * sin, (q, k))` computes two values in one place, so only what holds for any `t` may
be written there. Read as functions of `t`, lambdas and comprehensions are found like any other. Knows syntax only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import Defined
from autofuse.source.capture.syntax import parts, walk

_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp)
_EXPRESSIONS = frozenset({ast.Lambda, *_COMPREHENSIONS})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def expression_functions(d: Defined) -> Iterator[Defined]:
    """Every lambda and comprehension inside a function, in the order of the text, if it computes anything by hand."""
    any_there = any(n.__class__ in _EXPRESSIONS for n in walk(d.function))
    found = [n for s in d.function.body for n in _inside(s)] if any_there else []
    inner = d.scope.within(d.function) if found else d.scope
    for node in found:
        yield Defined(f"{d.symbol}.<lambda>", node, None, inner)


def _inside(node: ast.AST) -> Iterator[ast.FunctionDef]:
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, _DEFINITIONS):
            continue
        made = _as_function(node)
        if made is not None:
            yield made  # what is nested deeper takes names from two places
        else:
            todo += reversed(parts(node))


def _as_function(node: ast.AST) -> ast.FunctionDef | None:
    if isinstance(node, ast.Lambda):
        return _function(node.args, node.body)
    if not isinstance(node, _COMPREHENSIONS) or len(node.generators) != 1:
        return None
    target = node.generators[0].target
    if any(isinstance(n, ast.NamedExpr) for n in walk(node)):
        return None
    names = [ast.arg(n.id) for n in ast.walk(target) if isinstance(n, ast.Name)]
    return _function(ast.arguments([], names, None, [], [], None, []), node.elt)


def _function(arguments: ast.arguments, body: ast.expr) -> ast.FunctionDef | None:
    """A function that returns `body`; None where that has no operator, and so nothing that is spelled out."""
    if not any(isinstance(n, ast.BinOp) for n in walk(body)):
        return None
    returned = ast.copy_location(ast.Return(body), body)
    made = ast.FunctionDef("<lambda>", arguments, [returned], [], None, None)
    return ast.copy_location(made, body)


def is_expression(function: Function) -> bool:
    """Whether `function` is one of these: no statement can be put beside what it returns."""
    return function.name == "<lambda>"
