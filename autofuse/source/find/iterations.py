"""Decides whether the result of a call is iterated once and then dropped. Looks at the syntax of one file."""

from __future__ import annotations

import ast

from autofuse.source.capture.bindings import Scope
from autofuse.source.capture.syntax import walk
from autofuse.source.find.training_loops import Nesting

_WRAPPERS = frozenset({"enumerate", "tqdm", "iter", "zip", "trange"})


def is_iterated_once(call: ast.Call, nesting: Nesting) -> bool:
    """Whether exactly one `for` iterates over the result of `call`, directly or through a name that nothing else reads.

    The `for` may be inside another loop if the call is too: each iteration then makes a new object.
    """
    if _is_loop_iterable(call, nesting):
        return True
    statement = nesting.parents.get(call)
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            scope = next((p for _, p in nesting.around(call) if isinstance(p, (*_FUNCTIONS, ast.ClassDef))), None)
        case _:
            return False
    # With `global` or `nonlocal`, other functions may read the name.
    if not isinstance(scope, _FUNCTIONS) or any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in walk(scope)):
        return False
    uses = [node for node in walk(scope) if isinstance(node, ast.Name) and node.id == name]
    reads = [node for node in uses if isinstance(node.ctx, ast.Load)]
    # One assignment and one read.
    if len(reads) != 1 or len(uses) != 2 or not _is_loop_iterable(reads[0], nesting):
        return False
    return _loops_around(reads[0], nesting) == _loops_around(call, nesting)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _is_loop_iterable(node: ast.expr, nesting: Nesting) -> bool:
    """Whether a `for` iterates over `node`, also through `enumerate` or a progress bar."""
    for child, parent in nesting.around(node):
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension)):
            return child is parent.iter
        function = parent.func if isinstance(parent, ast.Call) else None
        is_wrapper = getattr(function, "attr", getattr(function, "id", "")) in _WRAPPERS
        if not isinstance(parent, ast.Call) or not is_wrapper or child is parent.func:
            return False
    return False


def _loops_around(node: ast.AST, nesting: Nesting) -> list[ast.AST]:
    """The loops around a node in its function. A loop that iterates over the node itself does not count."""
    loops: list[ast.AST] = []
    for child, parent in nesting.around(node):
        if isinstance(parent, Scope):
            break
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)) and child is not getattr(parent, "iter", None):
            loops.append(parent)
    return loops
