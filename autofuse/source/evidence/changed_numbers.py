"""Checks that a name or an attribute keeps its value between its first read and the fused call, which reads it again.

`scores * self.scale` reads `self.scale` before the lines that follow it; the fused call reads it after them. If the
file stores to this attribute outside of `__init__`, or to this global or enclosing variable in another function, a line
in between may change it: by a call, a property, an operator, a loop. The graph does not follow all of these.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.graph import Value
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.hidden_writes import moved_positions

_CONSTRUCTORS = ("__init__", "__post_init__", "__new__")
_SETTERS = ("setattr", "__setattr__", "update", "__setitem__", "setdefault", "delattr")
_METADATA = ("size", "dim", "numel", "shape", "ndim", "dtype", "device")


def reads_are_not_changed(claim: Claim) -> Iterator[Missing]:
    """Reports a line between the matched steps that may change a name or an attribute that they read."""
    moved = claim.site.removed.values | claim.site.steps | {claim.site.root}
    between = list(_statements_between(claim, moved))
    if not between:
        return
    attributes, names = claim.defined.scope.index(_stores)
    for node in _reads(claim, moved):
        if node.attr in attributes if isinstance(node, ast.Attribute) else node.id in names:
            yield Missing(f"assumes that line {between[0].lineno} does not change `{ast.unparse(node)}`")


def _stores(tree: ast.Module) -> tuple[frozenset[str], frozenset[str]]:
    """The attributes to which functions of a file store, constructors aside, and the outer names that they rebind."""
    attributes, names = set[str](), set[str]()
    for node in walk(tree):
        if isinstance(node, ast.Global | ast.Nonlocal):
            names.update(node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            if getattr(node, "name", "") not in _CONSTRUCTORS:
                attributes.update(name for inner in walk(node) for name in _stored_attributes(inner))
    return frozenset(attributes), frozenset(names)


def _stored_attributes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        yield node.attr
    elif (
        isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant)
    ):
        yield str(node.slice.value)
    elif isinstance(node, ast.Call) and _called(node) in _SETTERS:
        yield from (str(a.value) for a in node.args if isinstance(a, ast.Constant))
        yield from (k.arg for k in node.keywords if k.arg)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _reads(claim: Claim, moved: frozenset[Value]) -> Iterator[ast.Attribute | ast.Name]:
    """The names and attributes in the text of the moved values; what is called is not one of them."""
    for place in moved_positions(claim, moved):
        called = {id(n.func) for n in walk(place.node) if isinstance(n, ast.Call)}
        for node in walk(place.node):
            if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in called:
                yield node


def _statements_between(claim: Claim, moved: frozenset[Value]) -> Iterator[ast.stmt]:
    """The statements from the first moved value to the last that run code of their own."""
    places = moved_positions(claim, moved)
    own = {id(p.statement) for p in places}
    lines = [p.statement.lineno for p in places]
    if not lines or min(lines) == max(lines):
        return
    for node in walk(claim.captured.function):
        if isinstance(node, ast.stmt) and id(node) not in own and min(lines) <= node.lineno <= max(lines):
            if _runs_code(node):
                yield node


def _runs_code(statement: ast.stmt) -> bool:
    """Whether a statement, or the head of a compound one, does more than read sizes and literals."""
    if isinstance(statement, ast.For | ast.AsyncFor | ast.With | ast.AsyncWith | ast.Delete | ast.AugAssign):
        return True
    if isinstance(statement, ast.If | ast.While):
        return any(isinstance(n, ast.Call) for n in walk(statement.test))
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Assert | ast.Raise):
        return any(_may_run(n) for n in walk(statement))
    return False


def _may_run(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr not in _METADATA
    if isinstance(node, ast.Call):
        return _called(node) not in (*_METADATA, "isinstance")
    return isinstance(
        node, ast.BinOp | ast.Compare | ast.Subscript | ast.FormattedValue | ast.Starred | ast.comprehension | ast.Await
    )
