"""Passes copies of operands that the caller may write to before the backward pass.

The same is done for a sum that a fused call returns and keeps (`SUM`). autofuse/fx/rewrite/unsaved_operands.py finds
these operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from autofuse import ops
from autofuse.ops import lowered

UNSAVED = "unsaved"  # key in the meta of a fused call's node: the names of such operands
SUM = frozenset({"sum"})  # marks the sum that `dropout_add_norm` returns together with the norm

# The operands that fused calls keep for the backward pass: position and name.
KEPT: dict[Callable[..., Any], tuple[tuple[int, str], ...]] = {
    ops.layer_norm: ((0, "x"), (2, "bias")),
    ops.dropout_add_norm: ((3, "bias"),),
    ops.gelu: ((0, "x"),),
    ops.attention: ((0, "query"),),
}


def copy_shared_operands(graph: fx.Graph) -> None:
    """Insert copy-on-write copies of operands that are written while a backward pass needs them."""
    for node in list(graph.nodes):
        names = node.meta.get(UNSAVED, frozenset())
        if names == SUM:
            with graph.inserting_after(node):
                made = graph.call_function(lowered.writable, (node,))
            made.meta = {k: v for k, v in node.meta.items() if k in ("v", "place")}
            node.replace_all_uses_with(made, lambda user, made=made: user is not made)
            continue
        if names and node.target is ops.layer_norm:
            node.target = lowered.LAYER_NORMS_APART[names]
            continue
        for at, name in KEPT.get(node.target, ()) if names else ():
            x = argument(node, at, name)
            if name in names and isinstance(x, fx.Node):
                with graph.inserting_before(node):
                    made = graph.call_function(lowered.unshared, (x,))
                made.meta = {k: v for k, v in x.meta.items() if k in ("v", "place")}
                node.replace_input_with(x, made)


def argument(node: fx.Node, at: int, name: str) -> Any:
    """The argument of a call for one parameter; None if the call omits it."""
    return node.args[at] if len(node.args) > at else node.kwargs.get(name)
