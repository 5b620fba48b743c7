"""Weights of experts of which all but a few for each token are zero, whatever the numbers are.

| as written | why it is sparse |
| --- | --- |
| `zeros.scatter(-1, index, weights)` | the other entries are constants |
| `softmax(full(-inf).scatter(-1, index, logits), -1)`, `sigmoid(...)` | the others are zero, and have no gradient |
| `(one_hot(index, E) * weights.unsqueeze(-1)).sum(-2)` | the mask has no gradient |
| `probabilities * mask` | so has a product with one of these, or with a mask of zeros and ones |

A gradient of an entry that is not chosen reaches no parameter. So such an entry needs not be computed at all.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, fx

from autofuse.fx.rewrite.experts.labels import shape_of
from autofuse.fx.trace.expert_spellings import node_name

_KEEPS = frozenset("to float double half bfloat16 type_as contiguous clone detach".split())
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
_FULL = frozenset({"full", "full_like", "new_full"})
_SCATTERS = frozenset({"scatter", "scatter_", "scatter_add", "scatter_add_"})
_ONES = frozenset({"ones_like"})


def chosen_index(node: Any) -> fx.Node | None:
    """The index of experts (T, K), or (T), outside of which `node`, of shape (T, E), is zero; None if there is none.

    T stands for any number of dimensions.
    """
    if not isinstance(node, fx.Node) or not node.args or not isinstance(node.meta.get("v"), Tensor):
        return None
    name, first = node_name(node), node.args[0]
    if name in _KEEPS:
        return chosen_index(first)
    if name in _SCATTERS:
        return _scattered(node, 0.0)
    if name in ("softmax", "sigmoid") and isinstance(first, fx.Node):
        while node_name(first) in _KEEPS and isinstance(first.args[0], fx.Node):
            first = first.args[0]
        fits = name == "sigmoid" or _dim(node, 1) in (-1, len(shape_of(node)) - 1)
        return _scattered(first, -math.inf) if fits else None
    if name in ("mul", "mul_", "div", "truediv", "div_", "true_divide"):
        operands = node.args[:2] if name.startswith("mul") else node.args[:1]
        same = [n for n in operands if isinstance(n, fx.Node) and shape_of(n) == shape_of(node)]
        return next((i for n in same if (i := chosen_index(n)) is not None), None)
    if name == "one_hot":
        return first if isinstance(first, fx.Node) else None
    if name == "sum" and _dim(node, 1) in (-2, len(shape_of(node)) - 1) and not _keeps_dim(node):
        return _index_of_sum(first)
    return None


def _scattered(node: fx.Node, fill: float) -> fx.Node | None:
    """The index in `full(fill).scatter(-1, index, ...)`."""
    if node_name(node) not in _SCATTERS or len(node.args) + len(node.kwargs) != 4:
        return None
    base, dim = node.args[0], node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    index = node.args[2] if len(node.args) > 2 else node.kwargs.get("index")
    shape = shape_of(node)
    if dim not in (-1, len(shape) - 1) or not isinstance(index, fx.Node) or not isinstance(base, fx.Node):
        return None
    return index if shape_of(index)[:-1] == shape[:-1] and _fill(base) == fill else None


def _fill(node: fx.Node) -> float | None:
    name = node_name(node)
    if name in _ZEROS and not node.meta.get("writes"):
        return 0.0
    if name in _FULL:
        given = node.args[1] if len(node.args) > 1 else node.kwargs.get("fill_value")
        return float(given) if isinstance(given, (int, float)) else None
    if name in ("mul", "truediv", "div") and len(node.args) == 2 and isinstance(node.args[0], fx.Node):
        factor = node.args[1]  # torch.ones_like(x) * float("-inf")
        return float(factor) if node_name(node.args[0]) in _ONES and isinstance(factor, (int, float)) else None
    return None


def _index_of_sum(node: Any) -> fx.Node | None:
    """The index in `one_hot(index, E) * weights.unsqueeze(-1)`, whose sum over the choices is taken."""
    if not isinstance(node, fx.Node):
        return None
    name = node_name(node)
    if name in _KEEPS:
        return _index_of_sum(node.args[0])
    if name == "one_hot":
        return node.args[0] if isinstance(node.args[0], fx.Node) else None
    if name != "mul":
        return None
    same = [n for n in node.args if isinstance(n, fx.Node) and shape_of(n) == shape_of(node)]
    return next((i for n in same if (i := _index_of_sum(n)) is not None), None)


def _dim(node: fx.Node, place: int) -> int | None:
    dim = node.kwargs.get("dim", node.args[place] if len(node.args) > place else None)
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    return dim if type(dim) is int else None


def _keeps_dim(node: fx.Node) -> bool:
    return bool(node.kwargs.get("keepdim", node.args[2] if len(node.args) > 2 else False))
