"""Finds writes between the matched steps that reach a tensor through a container, a loop or another library.

The graph follows names. It does not follow `for t in (q, k): t.zero_()`, `{0: q}[0].zero_()`, `np.copyto(...)` or
`k.data = ...`, which may write to any tensor of the function, also to one that it computed itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.graph import Value
from autofuse.match.legality import written_in_place
from autofuse.source.capture.captured import ValuePosition
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

_DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_COLLECTIONS = frozenset("dict list tuple set zip enumerate reversed sorted iter map filter".split())
_WRITING_CALLS = frozenset(
    """
    operator.iadd operator.isub operator.imul operator.itruediv operator.ifloordiv operator.imod operator.ipow
    operator.imatmul operator.setitem operator.delitem numpy.copyto numpy.put numpy.place numpy.putmask
    numpy.put_along_axis numpy.fill_diagonal numpy.random.shuffle numpy.add.at numpy.subtract.at numpy.multiply.at
    """.split()
)


def no_hidden_write(claim: Claim, moved: frozenset[Value]) -> Iterator[Missing]:
    """Reports each write in the lines of the `moved` values whose target the graph does not follow."""
    function = claim.captured.function
    lines = [p.statement.lineno for p in moved_positions(claim, moved)]
    if not lines:
        return
    first, last = min(lines), max(lines)
    nodes = [n for n in walk(function) if first <= getattr(n, "lineno", 0) <= last]
    held: frozenset[str] | None = None
    for node in nodes:
        target = _written(claim, node)
        if target is None:
            continue
        held = _names_of_parts(function) if held is None else held
        if isinstance(node, ast.Call) and target is node or _is_part(target, held):
            line = getattr(node, "lineno", first)
            yield Missing(f"assumes that `{_short(node)}` in line {line} does not write to an operand")


def moved_positions(claim: Claim, moved: frozenset[Value]) -> list[ValuePosition]:
    """The positions of the `moved` values in the text of the function itself, not in that of its helpers."""
    function = claim.captured.function
    last = function.end_lineno or max(s.end_lineno or s.lineno for s in walk(function) if isinstance(s, ast.stmt))
    own = range(function.lineno, last + 1)
    return [p for v in moved for p in claim.captured.positions.get(v, ()) if p.statement.lineno in own]


def _written(claim: Claim, node: ast.AST) -> ast.expr | None:
    """The expression that `node` writes to; a call of `operator.imul` or `numpy.copyto` stands for its arguments."""
    if isinstance(node, ast.AugAssign):
        return node.target
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return node.value
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node if node.attr == "data" else None
    return _written_by_call(claim, node) if isinstance(node, ast.Call) else None


def _written_by_call(claim: Claim, call: ast.Call) -> ast.expr | None:
    out = next((k.value for k in call.keywords if k.arg == "out"), None)
    if out is not None:
        return out
    name = claim.defined.scope.name_of(call.func) or ""
    if name.startswith("torch.") and written_in_place(name):
        return call.args[0] if call.args else None
    if name in _WRITING_CALLS:
        return call if call.args else None
    if not isinstance(call.func, ast.Attribute) or not _writes_to_receiver(call.func.attr):
        return None
    return call.func.value


def _writes_to_receiver(method: str) -> bool:
    return written_in_place(method) or method in ("__imul__", "__iadd__", "__isub__", "__itruediv__", "__setitem__")


def _is_part(target: ast.expr, held: frozenset[str]) -> bool:
    """Whether a write to `target` may be one to a part of a container."""
    while isinstance(target, ast.Attribute | ast.Subscript | ast.Call | ast.Starred | ast.NamedExpr):
        if isinstance(target, ast.Attribute) and target.attr == "data" and isinstance(target.ctx, ast.Store):
            return True
        target = target.func if isinstance(target, ast.Call) else target.value
    return isinstance(target, (*_DISPLAYS, ast.IfExp, ast.BoolOp)) or isinstance(target, ast.Name) and target.id in held


def _names_of_parts(function: ast.AST) -> frozenset[str]:
    """The names that hold a container made in the function, or a part of one."""
    names = set[str]()
    for node in walk(function):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            names.update(_stored(node.target))
        elif isinstance(node, ast.Assign) and _is_container(node.value):
            names.update(n for t in node.targets if isinstance(t, ast.Name) for n in _stored(t))
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None and _is_container(node.value):
            names.update(_stored(node.target))
    return frozenset(names)


def _is_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in _COLLECTIONS
    return isinstance(value, (*_DISPLAYS, ast.IfExp, ast.BoolOp))


def _stored(target: ast.expr) -> Iterator[str]:
    return (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
