"""Finds loops over the experts of a mixture in text.

Such a loop is no dataflow, and what its experts are is often not in the same file. So it is only reported: in a live
model, `autofuse.optimize` knows the experts and computes one turn for all of them (autofuse/fx/trace/fold_experts.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autofuse.match.pattern import LoadedRule
from autofuse.reasons import writing
from autofuse.reasons.reason import Reason, because
from autofuse.results.findings import Finding
from autofuse.source.capture.scope import DefinedFunction
from autofuse.source.capture.syntax import walk
from autofuse.source.find.all_experts import product_of_all_experts
from autofuse.source.find.proposal import Proposal

CODE = "AF701"
_JOINING = frozenset({"cat", "concat", "concatenate"})
_SIZES = frozenset({"split", "chunk"})
_COUNTING = frozenset("bincount histc argsort sort nonzero unique".split())
_SELECTING = frozenset({"where", "nonzero", "argwhere"})
_ADDING = frozenset("index_add_ index_add scatter_add_ scatter_add index_put_ index_copy_".split())
_PRODUCTS = frozenset({"linear", "matmul", "mm"})


def may_contain_loops(source: bytes) -> bool:
    """Whether a file has the words of such a loop."""
    return b"xpert" in source and any(word in source for word in (b"for ", b"topk", b"one_hot"))


def expert_loops(
    functions: Sequence[DefinedFunction], rules: Sequence[LoadedRule], path: str
) -> Iterator[tuple[DefinedFunction, Proposal]]:
    """Yield each function with a loop over experts, and the report about the loop."""
    rule = next((r for r in rules if r.rule.code == CODE), None)
    for defined in functions if rule is not None else ():
        nodes = list(walk(defined.function))
        context = _context_of(nodes)
        loops: list[ast.stmt | ast.expr] = [n for n in nodes if isinstance(n, ast.For) and _is_over_experts(n, context)]
        if context.sorts:
            loops += [n for n in nodes if isinstance(n, (ast.ListComp, ast.GeneratorExp)) and _maps_experts(n)]
        whole = None if loops else product_of_all_experts(nodes)
        for node in loops if whole is None else [whole]:
            reason = because(writing.LOOP_OVER_EXPERTS if loops else writing.ALL_EXPERTS)
            if rule is not None:
                yield defined, Proposal(_finding(node, reason, rule, defined.symbol, path), None)


def _finding(loop: ast.stmt | ast.expr, reason: Reason, rule: LoadedRule, symbol: str, path: str) -> Finding:
    title = (rule.rule.__doc__ or "").splitlines()[0].rstrip(".")
    return Finding(
        CODE, rule.rule.__name__, path, loop.lineno, loop.end_lineno or loop.lineno, loop.col_offset + 1, symbol,
        "report", f"{title}, not rewritten: {reason}", str(reason), reason.advice(), reason_code=reason.code.name,
    )  # fmt: skip


@dataclass(frozen=True)
class _Function:
    """The operations of a function outside of its loops.

    Attributes:
        sorts: whether it sorts or counts rows.
        joins: whether it joins lists of tensors.
        parts: the names of the parts of split tensors.
    """

    sorts: bool
    joins: bool
    parts: set[str]


def _context_of(nodes: Sequence[ast.AST]) -> _Function:
    called = {_called_name(n) for n in nodes if isinstance(n, ast.Call)}
    split = [n.targets[0] for n in nodes if isinstance(n, ast.Assign) and _splits(n.value)]
    parts = {t.id for t in split if isinstance(t, ast.Name)}
    return _Function(bool(called & _COUNTING), bool(called & _JOINING), parts)


def _maps_experts(comprehension: ast.ListComp | ast.GeneratorExp) -> bool:
    """Whether a comprehension calls each expert on rows of its own: `[self.experts[i](x[rows[i]]) for i in ...]`."""
    names = {n.id for g in comprehension.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
    call = comprehension.elt
    if not isinstance(call, ast.Call) or not _uses_expert(call, names):
        return False
    return any(
        isinstance(n, ast.Subscript) and bool(_names_in(n.slice) & names) for a in call.args for n in ast.walk(a)
    )


def _is_over_experts(loop: ast.For, context: _Function) -> bool:
    """Whether each turn selects rows, computes on them with one expert, and adds them to a result.

    If the function sorts rows, a turn may also take a segment of them. If it joins a list, a turn may append to it.
    """
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    nodes = [n for statement in loop.body for n in ast.walk(statement)]
    if any(isinstance(n, (ast.For, ast.While)) for n in nodes):
        return False  # the inner loop is the one over experts
    # In `expert = self.experts[i]`, the new name stands for the expert.
    entries = [n for n in nodes if isinstance(n, ast.Assign) and _is_entry(n.value, names)]
    names |= {t.id for n in entries for t in n.targets if isinstance(t, ast.Name)}
    takes_part = context.sorts and (_is_over_parts(loop, context.parts) or any(_is_segment(n) for n in nodes))
    return (
        (takes_part or any(_selects_rows(n, names) for n in nodes))
        and any(_uses_expert(n, names) for n in nodes)
        and any(_adds_rows(n) or context.joins and _appends(n) for n in nodes)
    )


def _is_over_parts(loop: ast.For, parts: set[str]) -> bool:
    """Whether a loop runs over the parts of a tensor: `for e, rows in enumerate(x.split(counts))`."""
    return bool(_names_in(loop.iter) & parts) or any(_splits(n) for n in ast.walk(loop.iter))


def _splits(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called_name(node) in _SIZES


def _is_segment(node: ast.AST) -> bool:
    """Whether a node takes the rows between two names: `rows[start:end]`."""
    part = node.slice if isinstance(node, ast.Subscript) else None
    return isinstance(part, ast.Slice) and part.step is None and bool(_names_in(part))


def _appends(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called_name(node) == "append"


def _selects_rows(node: ast.AST, names: set[str]) -> bool:
    """Whether a node compares with the number of the expert, or asks where a mask of its rows is set."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        return bool(_names_in(node) & names) and not isinstance(node.comparators[0], ast.Constant)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and isinstance(node.ctx, ast.Load):
        return isinstance(node.slice.elts[-1], ast.Name) and node.slice.elts[-1].id in names  # mask[:, e]
    return isinstance(node, ast.Call) and _called_name(node) in _SELECTING and bool(_names_in(node) & names)


def _uses_expert(node: ast.AST, names: set[str]) -> bool:
    """Whether a node calls the expert of this turn, or multiplies by its matrix."""
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name):
            return function.id in names
        if isinstance(function, ast.Subscript):
            return bool(_names_in(function.slice) & names)
        return _called_name(node) in _PRODUCTS and any(_is_entry(a, names) for a in node.args)
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) and _is_entry(node.right, names)


def _is_entry(node: ast.expr, names: set[str]) -> bool:
    """Whether a node is one expert's entry of an attribute: `self.w[e]`, `self.w[e].T`, `self.w[e].t()`."""
    while isinstance(node, (ast.Call, ast.Attribute)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Subscript) and bool(_names_in(node.slice) & names)


def _adds_rows(node: ast.AST) -> bool:
    """Whether a node adds to entries of a tensor or assigns them."""
    if isinstance(node, ast.Call):
        return _called_name(node) in _ADDING
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Add) and isinstance(node.target, ast.Subscript)
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)


def _called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
