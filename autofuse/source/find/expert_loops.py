"""Finds loops over the experts of a mixture in text.

Such a loop is no dataflow, and what its experts are is often not in the same file. So it is only reported: in a live
model, `autofuse.optimize` knows the experts and computes one turn for all of them (autofuse/fx/trace/fold_experts.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from autofuse.match.pattern import LoadedRule
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.results.findings import Finding
from autofuse.source.capture.scope import DefinedFunction
from autofuse.source.capture.syntax import walk
from autofuse.source.find.proposal import Proposal

CODE = "AF701"
_SELECTING = frozenset({"where", "nonzero", "argwhere"})
_ADDING = frozenset("index_add_ index_add scatter_add_ scatter_add index_put_ index_copy_".split())
_PRODUCTS = frozenset({"linear", "matmul", "mm"})


def may_contain_loops(source: bytes) -> bool:
    """Whether a file has the words of such a loop."""
    return b"xpert" in source and b"for " in source


def expert_loops(
    functions: Sequence[DefinedFunction], rules: Sequence[LoadedRule], path: str
) -> Iterator[tuple[DefinedFunction, Proposal]]:
    """Yield each function with a loop over experts, and the report about the loop."""
    rule = next((r for r in rules if r.rule.code == CODE), None)
    for defined in functions if rule is not None else ():
        for node in walk(defined.function):
            if rule is not None and isinstance(node, ast.For) and _is_over_experts(node):
                yield defined, Proposal(_finding(node, rule, defined.symbol, path), None)


def _finding(loop: ast.For, rule: LoadedRule, symbol: str, path: str) -> Finding:
    reason = because(writing.LOOP_OVER_EXPERTS)
    title = (rule.rule.__doc__ or "").splitlines()[0].rstrip(".")
    return Finding(
        CODE, rule.rule.__name__, path, loop.lineno, loop.end_lineno or loop.lineno, loop.col_offset + 1, symbol,
        "report", f"{title}, not rewritten: {reason}", str(reason), reason.advice(), reason_code=reason.code.name,
    )  # fmt: skip


def _is_over_experts(loop: ast.For) -> bool:
    """Whether each turn selects rows, computes on them with one expert, and adds them to a result."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    nodes = [n for statement in loop.body for n in ast.walk(statement)]
    if any(isinstance(n, (ast.For, ast.While)) for n in nodes):
        return False  # the inner loop is the one over experts
    # In `expert = self.experts[i]`, the new name stands for the expert.
    entries = [n for n in nodes if isinstance(n, ast.Assign) and _is_entry(n.value, names)]
    names |= {t.id for n in entries for t in n.targets if isinstance(t, ast.Name)}
    return (
        any(_selects_rows(n, names) for n in nodes)
        and any(_uses_expert(n, names) for n in nodes)
        and any(_adds_rows(n) for n in nodes)
    )


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
