"""Finds mixtures in text that compute all experts for all tokens, or send tokens to experts by one-hot tensors.

Text does not show which weights are zero. So they are only reported: in a live model, `autofuse.optimize` knows it
(autofuse/fx/rewrite/experts).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

_CHOOSES = frozenset({"topk", "argmax", "max"})
_SCATTERS = frozenset({"scatter", "scatter_", "one_hot"})
_PRODUCTS = frozenset({"einsum", "bmm", "matmul", "baddbmm"})


def product_of_all_experts(nodes: Sequence[ast.AST]) -> ast.expr | ast.stmt | None:
    """The first product of all experts in a function, or None.

    The function must choose experts, and scatter their weights, or compare the choices with the number of each expert.
    """
    called = {_called(n) for n in nodes if isinstance(n, ast.Call)}
    if not called & _CHOOSES:
        return None
    gathered = [n for n in nodes if isinstance(n, ast.Subscript) and _is_gathered_stack(n)]
    if len(gathered) > 1 and "topk" in called:
        return gathered[0]
    if not called & _SCATTERS and not any(isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Eq) for n in nodes):
        return None
    stacked = [n for n in nodes if isinstance(n, ast.expr) and _multiplies_stack(n)]
    if len(stacked) > 1 and called & _SCATTERS:
        return stacked[0]
    return next((n for n in nodes if isinstance(n, (ast.expr, ast.stmt)) and _runs_each_expert(n)), None)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_of_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _multiplies_stack(node: ast.expr) -> bool:
    """Whether a node multiplies by a tensor of the module: `torch.bmm(x, self.w1)`."""
    if isinstance(node, ast.Call):
        return _called(node) in _PRODUCTS and any(_is_of_self(a) for a in node.args)
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) and _is_of_self(node.right)


def _is_gathered_stack(node: ast.Subscript) -> bool:
    """Whether a node gathers the matrices of chosen experts: `self.w1[chosen]`."""
    return isinstance(node.ctx, ast.Load) and _is_of_self(node.value) and isinstance(node.slice, ast.Name)


def _runs_each_expert(node: ast.AST) -> bool:
    """Whether a loop calls each element of a list of experts on the same tensor."""
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        generator = node.generators[0]
        return _mentions_experts(generator.iter, node.elt) and _calls_element(node.elt, generator.target)
    if not isinstance(node, ast.For) or any(
        isinstance(n, (ast.For, ast.While)) for s in node.body for n in ast.walk(s)
    ):
        return False
    return any(_mentions_experts(node.iter, s) and _adds(s) and _calls_element(s, node.target) for s in node.body)


def _mentions_experts(*nodes: ast.AST) -> bool:
    return any("expert" in getattr(n, "attr", getattr(n, "id", "")) for node in nodes for n in ast.walk(node))


def _adds(node: ast.stmt) -> bool:
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Add)
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add)


def _calls_element(node: ast.AST, target: ast.expr) -> bool:
    """Whether a node calls the element of this turn with one name."""
    names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        function = call.func.slice if isinstance(call.func, ast.Subscript) else call.func
        if isinstance(function, ast.Name) and function.id in names and len(call.args) == 1:
            return isinstance(call.args[0], ast.Name)
    return False
