"""Results of attention that the caller may write to in place: `y = model(x); y.mul_(2)`.

The backward of fused attention needs its result as it was. That of the program's own formula does not, so a tensor
that leaves the module must not be the very one that was saved.
"""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from autofuse import ops
from autofuse.ops import lowered

_SAVES_ITS_RESULT = frozenset({ops.attention, lowered.attention})
# What gives the same memory under another shape, or may: a write to that is a write to what was saved.
_SAME_MEMORY = frozenset(
    """
    transpose permute view reshape squeeze unsqueeze flatten unflatten contiguous getitem swapaxes swapdims movedim
    moveaxis getattr expand expand_as view_as reshape_as to type type_as float double half bfloat16 narrow select split
    chunk unbind alias t dropout rearrange detach
    """.split()
)
_PASSES_ON = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Flatten)


def make_writable(graph: fx.Graph, root: nn.Module) -> None:
    """Have results of attention that leave the module be no tensors that a backward pass needs."""
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
            node.replace_all_uses_with(made, lambda user, made=made: user is not made)  # every user gets this tensor
        elif _keeps_memory(node, root):
            todo += node.all_input_nodes[:1]


def _keeps_memory(node: fx.Node, root: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(root.get_submodule(str(node.target)), _PASSES_ON)
    name: Any = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name in _SAME_MEMORY
