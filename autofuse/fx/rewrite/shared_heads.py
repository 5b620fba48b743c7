"""Removes the repetition of key and value heads before fused attention.

Grouped-query attention is usually written with a copy of each key and value head for each query head that shares it.
Fused attention takes the parameter `repeats` instead, and checks at each call whether it applies.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from autofuse import ops
from autofuse.fx.trace.tracer import ForwardTrace

_HEADS = -3
TraceChild = Callable[[nn.Module, fx.Node], ForwardTrace | None]
_TAKE_REPEATS = (ops.attention, ops.soft_capped_attention, ops.sink_attention)
# Steps between the repetition and attention. They move entries, and neither mix nor drop any.
_PASSED = frozenset({"transpose", "permute", "swapaxes", "to", "float", "half", "bfloat16", "contiguous"})


class _Repetition(NamedTuple):
    """Each entry of a dimension is repeated.

    Attributes:
        source: The tensor before the repetition.
        dim: The repeated dimension, non-negative.
        times: The number of copies, which are adjacent.
        steps: Reorderings and casts of the repeated tensor, in order.
    """

    source: fx.Node
    dim: int
    times: int
    steps: tuple[fx.Node, ...] = ()


def share_heads(trace: ForwardTrace, trace_child: TraceChild) -> None:
    """Pass keys and values to fused attention before their heads are repeated.

    Args:
        trace: The rewritten trace.
        trace_child: Traces a child that a node calls. A child that only repeats is then not called.
    """
    for node in list(trace.graph.nodes):
        if node.op != "call_function" or node.target not in _TAKE_REPEATS or len(node.args) < 3:
            continue
        key, value = (_find_repetition(trace, operand, trace_child) for operand in node.args[1:3])
        if key is None or value is None or key.times != value.times or "repeats" in node.kwargs:
            continue
        if (
            _has_write_after(trace, min(key.source, value.source))
            or not _is_head_dimension(key)
            or not _is_head_dimension(value)
        ):
            continue
        repeated = node.args[1:3]
        with trace.graph.inserting_before(node):
            unrepeated = [_apply_steps(trace, r) for r in (key, value)]
        node.args = (node.args[0], *unrepeated, *node.args[3:])
        node.kwargs = {**node.kwargs, "repeats": key.times}
        for old, new in zip(repeated, unrepeated, strict=True):
            _redirect_size_reads(old, new)


def _is_head_dimension(found: _Repetition) -> bool:
    """Whether the repeated dimension is the head dimension after all steps."""
    shape = [0] * found.source.meta["v"].ndim
    shape[found.dim] = 1
    # The repeated dimension has size 3 and the others have size 2, so it can be followed through the steps.
    marked = torch.empty([2 + s for s in shape], device="meta")
    for node in found.steps:
        marked = _apply(node, marked)
    return list(marked.shape) == [3 if i == marked.ndim + _HEADS else 2 for i in range(marked.ndim)]


def _has_write_after(trace: ForwardTrace, first: fx.Node) -> bool:
    """Whether a node after `first` writes in place. Then a copy and its source may differ."""
    nodes = list(trace.graph.nodes)
    return any(n.meta.get("writes") for n in nodes[nodes.index(first) + 1 :])


def _apply_steps(trace: ForwardTrace, found: _Repetition) -> fx.Node:
    result = found.source
    for node in found.steps:
        # Attention accepts any strides, so a copy is not needed.
        if _torch_name(node) == "contiguous":
            continue
        args, kwargs = fx.node.map_arg((node.args[1:], node.kwargs), lambda n: n)
        value = result.meta["v"]
        result = trace.graph.create_node(node.op, node.target, (result, *args), kwargs)
        with trace.mode, torch.no_grad():
            result.meta["v"] = _apply(node, value)
    return result


def _apply(node: fx.Node, value: Tensor) -> Tensor:
    args, kwargs = fx.node.map_arg((node.args[1:], node.kwargs), lambda n: n.meta["v"])
    if node.op == "call_method":
        result: Tensor = getattr(value, str(node.target))(*args, **kwargs)
    else:
        result = node.target(value, *args, **kwargs)  # type: ignore[operator]
    return result


def _redirect_size_reads(old: Any, new: fx.Node) -> None:
    """Read sizes other than the number of heads from the tensor before the repetition."""
    heads = old.meta["v"].ndim + _HEADS
    for user in list(old.users):
        if user.op == "call_method" and user.target == "size" and len(user.args) == 2:
            dim = user.args[1]
            if isinstance(dim, int) and dim % old.meta["v"].ndim != heads and _is_before(new, user):
                user.args = (new, dim)


def _is_before(first: fx.Node, second: fx.Node) -> bool:
    return first < second


def _find_repetition(trace: ForwardTrace, node: Any, trace_child: TraceChild) -> _Repetition | None:
    """The repetition that computes `node`, with later reorderings and casts; None if none is recognized."""
    steps: list[fx.Node] = []
    while _is_tensor(node):
        if node.op == "call_module":
            found = _repetition_in_child(trace, node, trace_child)
        else:
            found = _parse_repetition(trace, node)
        if found is not None:
            return found._replace(steps=tuple(reversed(steps)))
        if (
            _torch_name(node) not in _PASSED
            or not node.args
            or any(isinstance(a, fx.Node) for a in _node_arguments(node))
        ):
            return None
        steps.append(node)
        node = node.args[0]
    return None


def _repetition_in_child(trace: ForwardTrace, node: fx.Node, trace_child: TraceChild) -> _Repetition | None:
    """The repetition that a child computes, if it has one argument and does nothing else."""
    if len(node.args) != 1 or node.kwargs or not _is_tensor(node.args[0]):
        return None
    read = trace_child(trace.module.get_submodule(str(node.target)), node)
    output = next((n for n in read.graph.nodes if n.op == "output"), None) if read is not None else None
    if read is None or output is None or any(n.meta.get("writes") for n in read.graph.nodes):
        return None
    found = _parse_repetition(read, output.args[0]) if _is_tensor(output.args[0]) else None
    if found is None or found.source.op != "placeholder" or sum(n.op == "placeholder" for n in read.graph.nodes) != 1:
        return None
    return found._replace(source=node.args[0])  # type: ignore[arg-type]


def _parse_repetition(trace: ForwardTrace, node: fx.Node) -> _Repetition | None:
    match _torch_name(node):
        case "repeat_interleave":
            return _parse_repeat_interleave(node)
        case "reshape" | "view" | "flatten":
            return _parse_reshape(trace, node)
    return None


def _parse_repeat_interleave(node: fx.Node) -> _Repetition | None:
    arguments = dict(zip(("x", "repeats", "dim"), node.args, strict=False)) | dict(node.kwargs)
    source, times, dim = (arguments.get(k) for k in ("x" if "x" in arguments else "input", "repeats", "dim"))
    if not _is_tensor(source) or type(times) is not int or type(dim) is not int or times < 2:
        return None
    return _Repetition(source, dim % source.meta["v"].ndim, times)  # type: ignore[union-attr, arg-type]


def _parse_reshape(trace: ForwardTrace, node: fx.Node) -> _Repetition | None:
    """A new dimension of copies that is merged into the dimension before it."""
    copies = node.args[0] if node.args else None
    while _is_tensor(copies) and _torch_name(copies) in ("contiguous", "clone") and len(copies.args) == 1:  # type: ignore[union-attr, arg-type]
        copies = copies.args[0]  # type: ignore[union-attr]
    found = _parse_expand(trace, copies) if _is_tensor(copies) else None  # type: ignore[arg-type]
    if found is None:
        return None
    source, dim, times = found[:3]
    if _torch_name(node) == "flatten":
        ndim = source.meta["v"].ndim + 1
        arguments = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | dict(node.kwargs)
        ends = [arguments.get("start_dim", 0), arguments.get("end_dim", -1)]
        return found if all(type(e) is int for e in ends) and [e % ndim for e in ends] == [dim, dim + 1] else None
    sizes = _sizes(node)
    if sizes is None or len(sizes) != source.meta["v"].ndim:
        return None
    same = [i == dim or _is_size(trace, s, source, i) for i, s in enumerate(sizes)]
    if all(same):
        return found
    heads = sizes[dim]
    product = (
        isinstance(heads, fx.Node) and heads.target is operator.mul and _is_product(trace, heads, source, dim, times)
    )
    # If every other size is known, -1 stands for the source's own size.
    return found if product and same.count(False) == 1 and sizes[same.index(False)] == -1 else None


def _is_product(trace: ForwardTrace, node: fx.Node, source: fx.Node, dim: int, times: int) -> bool:
    first, second = node.args
    return any(b == times and _is_size(trace, a, source, dim) for a, b in ((first, second), (second, first)))


def _parse_expand(trace: ForwardTrace, node: fx.Node) -> _Repetition | None:
    """`node` has an additional dimension of copies after dimension `dim` of `source`."""
    if _torch_name(node) == "stack":
        arguments = dict(zip(("tensors", "dim"), node.args, strict=False)) | dict(node.kwargs)
        tensors, dim = arguments.get("tensors"), arguments.get("dim", 0)
        if not isinstance(tensors, (list, tuple)) or len(tensors) < 2 or type(dim) is not int:
            return None
        source = tensors[0]
        if not _is_tensor(source) or any(t is not source for t in tensors):
            return None
        place = dim % (source.meta["v"].ndim + 1)
        return _Repetition(source, place - 1, len(tensors)) if place else None
    if _torch_name(node) not in ("expand", "repeat", "broadcast_to") or not _is_tensor(node.args[0]):
        return None
    inserted = _parse_unsqueeze(node.args[0])  # type: ignore[arg-type]
    sizes = _sizes(node)
    if inserted is None or sizes is None:
        return None
    source, place = inserted
    if not place or len(sizes) != source.meta["v"].ndim + 1 or type(sizes[place]) is not int or sizes[place] < 2:
        return None
    others = [s for i, s in enumerate(sizes) if i != place]
    if _torch_name(node) == "repeat":
        copies_only = all(s == 1 for s in others)
    else:
        copies_only = all(_is_size(trace, s, source, i) or s == -1 for i, s in enumerate(others))
    return _Repetition(source, place - 1, sizes[place]) if copies_only else None


def _parse_unsqueeze(node: fx.Node) -> tuple[fx.Node, int] | None:
    """The operand and the new dimension of `x[:, :, None]` or `x.unsqueeze(2)`."""
    source = node.args[0] if node.args else None
    if not _is_tensor(source):
        return None
    if _torch_name(node) == "unsqueeze":
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        return (source, dim % (source.meta["v"].ndim + 1)) if type(dim) is int else None  # type: ignore[union-attr, return-value]
    if node.target is not operator.getitem:
        return None
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if any(i is not None and i != slice(None) and i is not Ellipsis for i in index) or index.count(None) != 1:
        return None
    place = index.index(None)
    # After an ellipsis, positions count from the end.
    if Ellipsis in index and index.index(Ellipsis) < place:
        place = source.meta["v"].ndim + 1 - (len(index) - place)  # type: ignore[union-attr]
    return source, place  # type: ignore[return-value]


def _is_size(trace: ForwardTrace, size: Any, source: fx.Node, dim: int) -> bool:
    """Whether `size` is the size of dimension `dim` of `source` in every call."""
    known = trace.sizes.get(source)
    if isinstance(size, int):
        return known is not None and known[dim] == size and isinstance(known[dim], int)
    if not isinstance(size, fx.Node) or size.op != "call_method" or size.target != "size" or len(size.args) != 2:
        return False
    tensor, place = size.args
    if not _is_tensor(tensor) or type(place) is not int:
        return False
    place %= tensor.meta["v"].ndim  # type: ignore[union-attr]
    if tensor is source and place == dim:
        return True
    other = trace.sizes.get(tensor)  # type: ignore[arg-type]
    return known is not None and other is not None and known[dim] is not None and known[dim] == other[place]


def _sizes(node: fx.Node) -> tuple[Any, ...] | None:
    """The sizes passed to a method or function, separately or in a tuple."""
    if node.kwargs:
        return None
    arguments = node.args[1:]
    if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)):
        arguments = tuple(arguments[0])
    return arguments


def _node_arguments(node: fx.Node) -> list[Any]:
    found: list[Any] = []
    fx.node.map_arg((node.args[1:], node.kwargs), found.append)
    return found


def _is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("v"), Tensor)


def _torch_name(node: fx.Node) -> str:
    """The name of a torch function or method that a node calls, otherwise ""."""
    if node.meta.get("foreign"):
        return ""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    name = getattr(node.target, "__name__", "")
    with suppress(AttributeError):
        return name if getattr(torch, name) is node.target else ""
    return ""
