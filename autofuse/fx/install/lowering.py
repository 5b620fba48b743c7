"""Replaces operations by cheaper ones if the trace and its guards have already decided what they check at each call.

An operation of `autofuse.ops` checks its operands at each call: rank, width, autocast. If the guards imply the answers,
an operation without these checks (autofuse/ops/lowered.py) replaces it. The result is the same. If the traced example
was not typical, only speed is lost.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from autofuse import ops
from autofuse.fx.install.unshared_operands import copy_shared_operands
from autofuse.fx.install.writable_results import make_writable
from autofuse.fx.trace.ambient_state import AmbientState
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.kernels.operation import OPERATIONS
from autofuse.ops import lowered as plain
from autofuse.ops.activations import FUNCTIONS
from autofuse.torch_private import functional as F

_FOUR = 4  # batch, heads, length, width


@dataclass(frozen=True)
class Settled:
    """The condition under which the `quiet` forms of the operations may run (autofuse/ops/lowered.py).

    texts: the arguments that the operations depend on. All must be tensors that do not require grad.
    below: each must have fewer elements than this, unless it is 0.
    """

    texts: frozenset[str] = frozenset()
    below: int = 0


def lower(trace: ForwardTrace) -> Settled:
    """Replace operations of a rewritten trace by cheaper ones. Returns when their quiet forms may run."""
    copy_shared_operands(trace.graph)
    arguments = [n for n in trace.graph.nodes if n.op == "placeholder"]
    for node in list(trace.graph.nodes):
        if node.target is ops.attention and _is_plain(node, trace.around):
            _make_plain(trace, node)
        elif node.target is ops.gelu and len(node.args) == 1 and node.kwargs == {"approximate": "tanh"}:
            node.target, node.kwargs = _plain_activation("gelu_tanh", node), {}
        elif node.target is ops.gelu:
            if (
                len(node.args) == 1 and node.kwargs.get("approximate", "none") == "none"
            ):  # the exact GELU has only torch's kernel
                node.target = F.gelu
        elif (name := _activation(node)) and not OPERATIONS[name].has_choice:
            node.target = OPERATIONS[name].torch.run
        elif name and len(node.args) == 1 and not node.kwargs:
            node.target = _plain_activation(name, node)
        elif node.target in _LAYER_NORMS and _source(node.all_input_nodes[0]).op == "placeholder":
            node.target = plain.settled_layer_norm(node.target)
    make_writable(trace.graph, trace.twin)
    _ask_sizes_at_once(trace.graph)
    settled = [n for n in trace.graph.nodes if hasattr(n.target, "quiet")]
    sources = {_source(operand) for node in settled for operand in node.all_input_nodes[:3]}
    texts = frozenset(trace.inputs[at] for at, n in enumerate(arguments) if n in sources)
    return Settled(texts, min((b for n in settled if (b := getattr(n.target, "below", 0))), default=0))


_LAYER_NORMS = frozenset({ops.layer_norm, *plain.LAYER_NORMS_APART.values()})


def _plain_activation(name: str, node: fx.Node) -> Any:
    of_argument = _source(node.all_input_nodes[0]).op == "placeholder"
    return plain.settled_activation(name) if of_argument else plain.activation(name)


def _activation(node: fx.Node) -> str:
    """The name of the activation of `autofuse.ops` that a node calls; "" for other nodes."""
    name = getattr(node.target, "__name__", "")
    return name if FUNCTIONS.get(name) is node.target and name in OPERATIONS else ""


def _is_plain(node: fx.Node, around: AmbientState) -> bool:
    """Whether the kernel can take the operands as they are: four dimensions, one width, one dtype."""
    operands = [t for a in node.args if isinstance(a, fx.Node) and isinstance(t := a.meta.get("v"), Tensor)]
    if len(operands) != len(node.args) or any(state.enabled for state in around.autocast):
        return False
    if not isinstance(node.kwargs.get("scale", 1.0), (int, float)) or not _is_plain_mask(node):
        return False
    alike = {(t.dtype, t.shape[:-2], t.shape[-1]) for t in operands}
    return len(alike) == 1 and all(t.ndim == _FOUR and t.stride(-1) == 1 for t in operands)


def _is_plain_mask(node: fx.Node) -> bool:
    mask = node.kwargs.get("mask")
    if node.kwargs.get("fill") is not None:
        return False
    if mask is None:
        return True
    found = mask.meta.get("v") if isinstance(mask, fx.Node) else None
    described = any(node.kwargs.get(name) for name in ("is_causal", "mask_is_causal"))
    boolean = isinstance(found, Tensor) and found.dtype is torch.bool and found.ndim in (2, _FOUR)
    return boolean and not described


def _make_plain(trace: ForwardTrace, node: fx.Node) -> None:
    given = node.kwargs
    p, training = given.get("dropout_p", 0.0), given.get("training", False)
    drops = not (p == 0.0 or training is False)
    operands: tuple[Any, ...] = (
        *node.args, given.get("mask"), _scale(trace, node), bool(given.get("is_causal")),
    )  # fmt: skip
    sources = {_source(n) for n in node.all_input_nodes[:3]}
    guarded = {n for n in trace.graph.nodes if n.op == "placeholder"}
    query = node.args[0].meta["v"]  # type: ignore[union-attr]
    whole = sources <= guarded and query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)
    known = len(sources) == 1 or sources <= guarded, whole, _have_one_length(trace, node)
    node.target, node.kwargs = plain.attention, {}
    node.args = (*operands, *known, p, training) if drops else (*operands, *known)
    if all(known) and not drops:
        *_, mask, scale, is_causal = operands
        node.target = plain.settled_attention(scale, is_causal, mask is not None, False)
        node.args = operands[:3] if mask is None else operands[:4]


def _have_one_length(trace: ForwardTrace, node: fx.Node) -> bool:
    """Whether there are as many values as keys. Adds a guard if that depends on sizes."""
    _, keys, values = (trace.sizes.get(n, ()) for n in node.args if isinstance(n, fx.Node))
    if len(keys) < 2 or len(values) < 2 or keys[-2] is None or values[-2] is None:
        return False
    if keys[-2] != values[-2]:
        trace.guards.add(f"{keys[-2]} == {values[-2]}")
    return True


def _scale(trace: ForwardTrace, node: fx.Node) -> float | None:
    """The scale of the scores; None if it is the kernel's default, which is faster."""
    scale, query = float(node.kwargs.get("scale", 1.0)), node.all_input_nodes[0]  # type: ignore[arg-type]
    width, sizes = query.meta["v"].shape[-1], trace.sizes.get(query, ())
    fixed = bool(sizes) and f"{sizes[-1]} == {width}" in trace.guards.tests
    return None if fixed and math.isclose(scale, width**-0.5, rel_tol=1e-12) else scale


_SAME_DTYPE = frozenset("view reshape transpose permute contiguous split chunk unbind unflatten flatten".split())


def _source(node: fx.Node) -> fx.Node:
    """The node that `node` is a view or rearrangement of. Both always have the same dtype."""
    owner = node.all_input_nodes[0] if node.target is operator.getitem or node.target in _SAME_DTYPE else None
    if owner is None or node.target is operator.getitem and owner.target not in _SAME_DTYPE:
        return node
    return _source(owner)


def _ask_sizes_at_once(graph: fx.Graph) -> None:
    """Replace `x.size(0)` and `x.size(1)` by one call of `size` and two indices."""
    asked: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "call_method" and node.target == "size" and len(node.args) == 2 and not node.kwargs:
            asked[node.all_input_nodes[0]].append(node)
    written = {n for node in graph.nodes for n in node.meta.get("writes", ())}
    for tensor, nodes in asked.items():
        if len(nodes) < 2 or tensor in written:
            continue
        with graph.inserting_before(nodes[0]):
            whole = graph.call_method("size", (tensor,))
        for node in nodes:
            node.op, node.target, node.args = "call_function", operator.getitem, (whole, node.args[1])
