"""Lets the caller write to a result of attention in place: `y = model(x); y.mul_(2)`.

The backward pass of fused attention needs its result unchanged; the program's own formula does not. So the tensor that
the module returns must not be the saved one.
"""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from autofuse import ops
from autofuse.ops import lowered

_SAVES_ITS_RESULT = frozenset({ops.attention, lowered.attention})
# Operations that return, or may return, the same memory: a write to their result writes to the saved tensor.
_SAME_MEMORY = frozenset(
    """
    transpose permute view reshape squeeze unsqueeze flatten unflatten contiguous getitem swapaxes swapdims movedim
    moveaxis getattr expand expand_as view_as reshape_as to type type_as float double half bfloat16 narrow select split
    chunk unbind alias t dropout rearrange detach
    """.split()
)
_PASSES_ON = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Flatten)


def make_writable(graph: fx.Graph, root: nn.Module) -> None:
    """Replace results of attention that the module returns by tensors that no backward pass needs."""
    output = next(n for n in graph.nodes if n.op == "output")
    todo, seen = list(output.all_input_nodes), set[fx.Node]()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        leaving = getattr(node.target, "leaving", None)
        if leaving is not None and all(user is output or user in seen for user in node.users):
            node.target = leaving()
        elif leaving is not None or node.target in _SAVES_ITS_RESULT:
            with graph.inserting_after(node):
                made = graph.call_function(lowered.writable, (node,))
            made.meta = {k: v for k, v in node.meta.items() if k in ("v", "place")}
            node.replace_all_uses_with(made, lambda user, made=made: user is not made)  # every user reads this tensor
        elif _keeps_memory(node, root):
            todo += node.all_input_nodes[:1]


def _keeps_memory(node: fx.Node, root: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(root.get_submodule(str(node.target)), _PASSES_ON)
    name: Any = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name in _SAME_MEMORY
