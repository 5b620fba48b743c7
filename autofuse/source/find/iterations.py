"""Is what a call makes iterated once, and then thrown away? Knows one file's syntax."""

from __future__ import annotations

import ast

from autofuse.source.capture.bindings import Scope
from autofuse.source.capture.syntax import walk
from autofuse.source.find.training_loops import Nesting

_WRAPPERS = frozenset({"enumerate", "tqdm", "iter", "zip", "trange"})


def is_iterated_once(call: ast.Call, nesting: Nesting) -> bool:
    """Whether one `for` goes over what `call` makes, once: by itself, or by a name that nothing else reads.

    Such a `for` may stand in a loop: what it goes over is then made anew in each turn.
    """
    if _is_gone_over(call, nesting):
        return True
    statement = nesting.parents.get(call)
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            scope = next((p for _, p in nesting.around(call) if isinstance(p, (*_FUNCTIONS, ast.ClassDef))), None)
        case _:
            return False
    if not isinstance(scope, _FUNCTIONS) or any(isinstance(n, (ast.Global, ast.Nonlocal)) for n in walk(scope)):
        return False
    named = [n for n in walk(scope) if isinstance(n, ast.Name) and n.id == name]
    reads = [n for n in named if isinstance(n.ctx, ast.Load)]
    if len(reads) != 1 or len(named) != 2 or not _is_gone_over(reads[0], nesting):
        return False
    return _loops(reads[0], nesting) == _loops(call, nesting)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _is_gone_over(node: ast.expr, nesting: Nesting) -> bool:
    """Whether a `for` goes over `node`, perhaps by way of enumerate or a progress bar."""
    for child, parent in nesting.around(node):
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension)):
            return child is parent.iter
        name = parent.func if isinstance(parent, ast.Call) else None
        wrapped = getattr(name, "attr", getattr(name, "id", "")) in _WRAPPERS
        if not isinstance(parent, ast.Call) or not wrapped or child is parent.func:
            return False
    return False


def _loops(node: ast.AST, nesting: Nesting) -> list[ast.AST]:
    """The loops around a node in its function; a loop that goes over the node is not around it."""
    found: list[ast.AST] = []
    for child, parent in nesting.around(node):
        if isinstance(parent, Scope):
            break
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)) and child is not getattr(parent, "iter", None):
            found.append(parent)
    return found
