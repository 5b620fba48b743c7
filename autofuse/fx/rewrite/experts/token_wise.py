"""Decides whether a child computes each token by itself: from the features of a token in the last dimension only."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx, nn

from autofuse.fx.rewrite.experts.labels import shape_of
from autofuse.fx.trace.expert_spellings import node_name
from autofuse.fx.trace.plain_children import is_watched
from autofuse.fx.trace.row_operations import ELEMENTWISE
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.fx.trace.twin import plain_class

TraceChild = Callable[[nn.Module, fx.Node], ForwardTrace | None]
_LEAVES = (nn.Linear, nn.Dropout, nn.Identity, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ReLU6, nn.Mish)
_ALONG_LAST = frozenset({"softmax", "chunk", "split", "glu", "mean", "sum"})
_SHARED = frozenset({"linear", "dropout", "matmul"})


def is_token_wise(module: nn.Module, node: fx.Node, trace_child: TraceChild, depth: int = 0) -> bool:
    """Whether the call `node` of a child computes each token by itself, whatever the number of tokens.

    Args:
        module: The child.
        node: Its call.
        trace_child: The trace of a call of a child, or None.
        depth: How many modules contain the child.
    """
    kind = plain_class(type(module))
    if is_watched(module) or len(node.args) != 1 or node.kwargs or depth > _DEPTH:
        return False
    if kind in _LEAVES:
        return True
    if kind in (nn.LayerNorm, nn.RMSNorm):
        return len(module.normalized_shape) == 1  # type: ignore[arg-type]
    trace = trace_child(module, node)
    return trace is not None and all(_keeps_tokens(n, trace, trace_child, depth) for n in trace.graph.nodes)


_DEPTH = 4


def _keeps_tokens(node: fx.Node, trace: ForwardTrace, trace_child: TraceChild, depth: int) -> bool:
    if node.op in ("placeholder", "get_attr"):
        return True
    if node.op == "output":
        return isinstance(node.args[0], fx.Node) and _is_of_tokens(node.args[0])
    if node.op == "call_module":
        return is_token_wise(trace.module.get_submodule(str(node.target)), node, trace_child, depth + 1)
    if node.meta.get("writes"):
        return False
    name = node_name(node)
    if name in ELEMENTWISE:
        return all(_is_of_tokens(n) or len(shape_of(n)) < 2 for n in node.all_input_nodes)
    if name in _SHARED:
        return node.args[0] in node.all_input_nodes and all(n.op == "get_attr" for n in node.all_input_nodes[1:])
    if name == "getitem":
        return _takes_features(node)
    dim: Any = node.kwargs.get("dim", node.args[-1] if node.args else None)
    keeps = name not in ("mean", "sum") or node.kwargs.get("keepdim") is True
    return name in _ALONG_LAST and dim == -1 and keeps


def _takes_features(node: fx.Node) -> bool:
    """Whether an index takes a part of a tuple, or of the last dimension."""
    source: Any
    index: Any
    source, index = node.args
    if node.target is not operator.getitem or not isinstance(source, fx.Node):
        return False
    if not isinstance(source.meta.get("v"), Tensor):
        return type(index) is int
    return isinstance(index, tuple) and len(index) == 2 and index[0] is ... and isinstance(index[1], slice)


def _is_of_tokens(node: fx.Node) -> bool:
    """Whether a value has dimensions of tokens, and is none of the child's own tensors."""
    return node.op != "get_attr" and len(shape_of(node)) > 1
