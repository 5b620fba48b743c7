"""Decides whether an operation computes each row of its result from the same row of its operands.

The rows are along the first dimension.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

from autofuse.fx.trace.attribute_reads import is_known
from autofuse.fx.trace.expert_rows import ROWS
from autofuse.ops.activations import FUNCTIONS

ELEMENTWISE = frozenset(
    """
    add sub rsub mul div truediv true_divide neg abs pow square sqrt rsqrt exp log sigmoid tanh relu relu6 gelu silu
    mish elu selu leaky_relu hardsigmoid hardtanh softsign logsigmoid sin cos erf reciprocal
    clamp clamp_min clamp_max minimum maximum to type_as float half bfloat16 double contiguous clone add_ mul_ relu_
    clamp_ silu_ sigmoid_ tanh_
""".split()
).union(FUNCTIONS)
_ALONG_LAST = frozenset({"softmax", "chunk", "split", "sum", "mean", "glu", "layer_norm", "rms_norm"})
_ACTIVATIONS = "activations"  # the last part of `transformers.activations`


def is_row_wise(node: fx.Node, with_rows: set[fx.Node], root: nn.Module) -> bool:
    """Returns whether row r of a node's results depends only on row r of its operands `with_rows`.

    Args:
        node: The node to check.
        with_rows: The nodes whose values have rows.
        root: The module that holds the modules that the graph calls.
    """
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if node.op == "call_module":
        return _is_activation(root.get_submodule(str(node.target))) and len(node.args) == 1 and not node.kwargs
    if name == "getitem":
        return _reads_rows(node, with_rows)
    if name in ("view", "reshape", "squeeze") and _drops_leading_one(node, with_rows):
        return True
    if not all(_is_row_operand(a, with_rows) for a in node.all_input_nodes):
        return False
    if name in ELEMENTWISE:
        return True
    if name in _ALONG_LAST:
        return _is_along_last(node, name)
    result = node.meta.get("v")
    if name in ("unsqueeze", "squeeze"):
        return isinstance(result, Tensor) and result.shape[0] == ROWS and node.args[1:] in ((-1,), (1,), (2,))
    if name in ("view", "reshape", "flatten", "expand"):
        return isinstance(result, Tensor) and result.shape[0] == ROWS and _keeps_rows(node)
    return False


def _is_row_operand(node: fx.Node, with_rows: set[fx.Node]) -> bool:
    """Returns whether an operand has rows in front, or, if it has no rows, is a scalar."""
    value = node.meta.get("v")
    if node in with_rows:
        return not isinstance(value, Tensor) or value.dim() > 0 and value.shape[0] == ROWS
    return not isinstance(value, Tensor) or value.dim() == 0


def _reads_rows(node: fx.Node, with_rows: set[fx.Node]) -> bool:
    """Returns whether an index keeps or selects rows.

    Examples are `x[rows]`, `w[rows, choice, None]`, `parts[0]`, `x[..., ::2]`, `x[:, :n]` and `x[:, None]`.
    """
    source, index = node.args
    value = node.meta.get("v")
    parts = index if isinstance(index, tuple) else (index,)
    if not isinstance(source, fx.Node) or not isinstance(value, Tensor) or not value.dim():
        return False
    if parts[0] is None and source not in with_rows and value.shape[:2] == (1, ROWS):
        parts, value = parts[1:], value[0]
    if value.shape[0] != ROWS:
        return False
    if source not in with_rows:  # the index selects rows of a tensor without rows: it must begin with the row indices
        chosen = [p for p in parts if isinstance(p, fx.Node)]
        lead = parts[: len(chosen)]
        return bool(chosen) and all(p in with_rows for p in chosen) and list(lead) == chosen and all(
            p is None or p is ... or type(p) is int or _is_constant_slice(p) for p in parts[len(chosen) :])  # fmt: skip
    if not isinstance(source.meta.get("v"), Tensor):
        return type(index) is int  # one item of a tuple
    if any(isinstance(p, fx.Node) for p in parts):
        return False
    return parts[0] is ... and source.meta["v"].dim() > 1 and len(parts) == 2 or parts[0] == slice(None)


def _is_constant_slice(part: Any) -> bool:
    return isinstance(part, slice) and all(n is None or type(n) is int for n in (part.start, part.stop, part.step))


def _drops_leading_one(node: fx.Node, with_rows: set[fx.Node]) -> bool:
    """Returns whether a view removes a leading dimension of size 1: `x[None, rows].reshape(-1, width)`."""
    source, result = node.args[0], node.meta.get("v")
    if not isinstance(source, fx.Node) or source not in with_rows or not isinstance(result, Tensor):
        return False
    shape = source.meta["v"].shape
    dims = tuple(node.args[1:]) if node.target == "squeeze" else (0,)
    return len(shape) > 1 and shape[:2] == (1, ROWS) and tuple(result.shape) == tuple(shape[1:]) and dims == (0,)


def _is_along_last(node: fx.Node, name: str) -> bool:
    """Returns whether an operation along one dimension uses the last one."""
    rank = next(a for a in node.all_input_nodes).meta["v"].dim()
    if name in ("layer_norm", "rms_norm"):
        shape: Any = node.args[1] if len(node.args) > 1 else None
        return rank > 1 and isinstance(shape, (tuple, list)) and len(shape) == 1
    place = 2 if name in ("chunk", "split") else 1
    dim = node.kwargs.get("dim", node.args[place] if len(node.args) > place else None)
    return rank > 1 and type(dim) is int and dim in (-1, rank - 1)


def _keeps_rows(node: fx.Node) -> bool:
    """Returns whether the operand of a view has its rows in front."""
    source = next(iter(node.all_input_nodes)).meta.get("v")
    return isinstance(source, Tensor) and source.dim() > 0 and source.shape[0] == ROWS


def _is_activation(module: nn.Module) -> bool:
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        return False
    kind = type(module)
    name = kind.__module__.rpartition(".")[2]
    return is_known(kind) and kind.__module__.endswith("." + "activation") or name == _ACTIVATIONS
