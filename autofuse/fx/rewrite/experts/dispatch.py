"""Finds products with a one-hot tensor that sends tokens to the places of experts, and reads rows by index instead.

`einsum("tec,td->ecd", dispatch, x)` and `einsum("tec,ecd->td", combine, y)` multiply by a tensor of tokens, experts and
places, of which each token sets a few entries. A product with all entries costs tokens times places. An entry counts
only if a mask without a gradient sets it: `combine` is a sum of products with such masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from autofuse.fx.rewrite.experts.labels import einsum_labels, einsum_operands, shape_of
from autofuse.fx.rewrite.experts.reads import check_reads, erase_new
from autofuse.fx.rewrite.experts.row_values import NotByRow
from autofuse.fx.trace.expert_spellings import example_of_call, node_name
from autofuse.fx.trace.operation_names import replace_node
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.ops.chosen_pairs import mask_over, masks_product, masks_sum, sparse_product

_CASTS = frozenset("to type_as float double half bfloat16 bool int long contiguous detach clone".split())
_VIEWS = frozenset("unsqueeze getitem view reshape permute transpose flatten movedim".split())
_MAX_STEPS = 64  # a bound on the steps from a product to its masks


@dataclass(frozen=True)
class OneHotProduct:
    """A product with a sparse tensor.

    Attributes:
        end: The product.
        sparse: The sparse tensor.
        dense: The other operand.
        equation: The product as an einsum of `sparse` and `dense`.
    """

    end: fx.Node
    sparse: fx.Node
    dense: fx.Node
    equation: str


def find_dispatches(graph: fx.Graph) -> list[OneHotProduct]:
    """Every product of a graph with a tensor of tokens, experts and places that a one-hot mask makes sparse."""
    if not any(node_name(n) == "one_hot" for n in graph.nodes):
        return []
    found = [d for node in graph.nodes for d in _products(node)]
    return [d for d in found if _one_hots(d.sparse) and _has_mask(d.sparse) and _dimensions(d.sparse) > 2]


def _dimensions(node: fx.Node) -> int:
    """The largest number of dimensions of a value and those of which it is a view."""
    most = 0
    while True:
        most = max(most, len(shape_of(node)))
        if node_name(node) not in _VIEWS | _CASTS or not isinstance(node.args[0], fx.Node):
            return most
        node = node.args[0]


def _products(node: fx.Node) -> list[OneHotProduct]:
    equation = einsum_labels(node)
    if equation is not None:
        (one, other), result = equation
        a, b = einsum_operands(node)
        if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
            return []
        pairs = [(a, b, f"{one},{other}->{result}"), (b, a, f"{other},{one}->{result}")]
        return [OneHotProduct(node, s, d, text) for s, d, text in pairs if _is_contraction(text)][:2]
    if node_name(node) not in ("matmul", "mm") or len(node.args) != 2:
        return []
    a, b = node.args
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node) or len(shape_of(b)) != 2 or len(shape_of(a)) < 2:
        return []
    lead = "".join(chr(ord("e") + i) for i in range(len(shape_of(a)) - 1))
    return [OneHotProduct(node, a, b, f"{lead}c,cd->{lead}d")]


def _is_contraction(equation: str) -> bool:
    """Whether a dense operand has features of its own, and each letter of the sparse one is summed or kept."""
    operands, result = equation.split("->")
    sparse, dense = operands.split(",")
    own, moved = [c for c in dense if c not in sparse], [c for c in sparse if c not in dense]
    return bool(moved) and len(own) == 1 and own[0] in result and any(c not in result for c in sparse) and all(
        c in result or c in dense for c in sparse) and all(c in sparse or c == own[0] for c in result)  # fmt: skip


# How sparse a tensor is.


def _one_hots(node: Any, steps: int = 0) -> int:
    """The number of one-hot factors of each entry of a tensor."""
    if not isinstance(node, fx.Node) or steps > _MAX_STEPS:
        return 0
    name = node_name(node)
    if name == "one_hot":
        return 1
    if name in _CASTS | _VIEWS or name == "sum":
        return _one_hots(node.args[0], steps + 1)
    if name in ("mul", "and", "logical_and", "and_"):
        return sum(_one_hots(n, steps + 1) for n in node.args[:2])
    if name == "add":
        return min((_one_hots(n, steps + 1) for n in _addends(node)), default=0)
    return 0


def _addends(node: fx.Node) -> list[Any]:
    """The addends that are not the number 0, with which `sum()` and loops begin."""
    return [n for n in node.args[:2] if isinstance(n, fx.Node) or n != 0]


def has_no_gradient(node: fx.Node, steps: int = 0) -> bool:
    """Whether a tensor depends on parameters and arguments by integers and booleans only."""
    value = node.meta.get("v")
    if isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex():
        return True
    if node.op not in ("call_function", "call_method") or steps > _MAX_STEPS or node.meta.get("writes"):
        return not isinstance(value, Tensor) and node.op in ("call_function", "call_method")
    operands = node.all_input_nodes[:1] if node_name(node) in _CASTS else node.all_input_nodes
    return bool(operands) and all(has_no_gradient(n, steps + 1) for n in operands)


def _has_mask(node: Any, steps: int = 0) -> bool:
    """Whether masks without a gradient say which entries count."""
    if not isinstance(node, fx.Node) or steps > _MAX_STEPS or not shape_of(node):
        return False
    if has_no_gradient(node):
        return _one_hots(node) > 0
    name = node_name(node)
    if name in _CASTS | _VIEWS or name == "sum" and _summed_dim(node) is not None:
        return _has_mask(node.args[0], steps + 1)
    if name == "mul":
        return any(_has_mask(n, steps + 1) for n in node.args)
    return name == "add" and len(node.args) == 2 and all(_has_mask(n, steps + 1) for n in _addends(node))


def _summed_dim(node: fx.Node) -> int | None:
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    keeps = node.kwargs.get("keepdim", len(node.args) > 2)
    return dim if type(dim) is int and not keeps else None


# The rewrite.


def rewrite_dispatch(trace: ForwardTrace, found: OneHotProduct) -> bool:
    """Read rows by index in place of the product. Returns False, and changes nothing, if a mask was written to."""
    before = set(trace.graph.nodes)
    with trace.graph.inserting_before(found.end):
        mask = _mask(trace, found.sparse)
        made = trace.graph.call_function(sparse_product, (found.sparse, mask, found.dense, found.equation))
        try:
            check_reads(trace.graph, before, found.end)
        except NotByRow:
            erase_new(trace.graph, before)
            return False
    made.meta = dict(found.end.meta)
    replace_node(found.end, made)
    trace.graph.erase_node(found.end)
    return True


def _mask(trace: ForwardTrace, node: fx.Node) -> fx.Node:
    """A mask of the entries that count, which has the shape of `node`."""
    if has_no_gradient(node):
        return node
    name = node_name(node)
    if name in _CASTS:
        return _mask(trace, node.args[0])  # type: ignore[arg-type]
    if name in _VIEWS:
        inner = _mask(trace, node.args[0])  # type: ignore[arg-type]
        made = trace.graph.node_copy(node, lambda n: inner if n is node.args[0] else n)
    elif name == "sum":
        made = trace.graph.call_function(mask_over, (_mask(trace, node.args[0]), _summed_dim(node)))  # type: ignore[arg-type]
    elif name == "add":
        masks = tuple(_mask(trace, n) for n in _addends(node))
        made = trace.graph.call_function(masks_sum, (masks, node))
    else:
        masks = tuple(_mask(trace, n) for n in node.args if isinstance(n, fx.Node) and _has_mask(n))
        made = trace.graph.call_function(masks_product, (masks, node))
    made.meta = {"v": _example(trace, made), "place": node.meta.get("place")}
    return made


def _example(trace: ForwardTrace, node: fx.Node) -> Any:
    return example_of_call(node, trace.mode)
