"""Keys and values that are repeated for each head of the query, before a fused call that takes them as they are.

Grouped-query attention is mostly written with every head of keys and values copied for the heads of the query that
share it. Fused attention takes `repeats` instead, and looks at each call whether that fits. Knows how a repetition is
spelled in an fx graph; must not know which rule put the call there.
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
Inside = Callable[[nn.Module, fx.Node], ForwardTrace | None]
_TAKE_REPEATS = (ops.attention, ops.soft_capped_attention, ops.sink_attention)
_PASSED = frozenset({"transpose", "permute", "swapaxes", "to", "float", "half", "bfloat16", "contiguous"})


class _Repetition(NamedTuple):
    """`of` with each entry of dimension `dim`, counted from the front, repeated `times` times one after the other."""

    of: fx.Node
    dim: int
    times: int
    after: tuple[fx.Node, ...] = ()  # what turns or casts the repeated tensor, the first first


def share_heads(trace: ForwardTrace, inside: Inside) -> None:
    """Let fused attention read keys and values that are repeated for its heads where they are not repeated yet.

    inside: what is known of a child that a node calls, so that one which repeats only is not called.
    """
    for node in list(trace.graph.nodes):
        if node.op != "call_function" or node.target not in _TAKE_REPEATS or len(node.args) < 3:
            continue
        key, value = (_repeated(trace, operand, inside) for operand in node.args[1:3])
        if key is None or value is None or key.times != value.times or "repeats" in node.kwargs:
            continue
        if _written_since(trace, min(key.of, value.of)) or not _is_of_heads(key) or not _is_of_heads(value):
            continue
        repeated = node.args[1:3]
        with trace.graph.inserting_before(node):
            given = [_turned(trace, r) for r in (key, value)]
        node.args = (node.args[0], *given, *node.args[3:])
        node.kwargs = {**node.kwargs, "repeats": key.times}
        for old, new in zip(repeated, given, strict=True):
            _ask_for_sizes(old, new)


def _is_of_heads(found: _Repetition) -> bool:
    """Whether the dimension that is repeated is, in the end, that of heads."""
    shape = [0] * found.of.meta["v"].ndim
    shape[found.dim] = 1
    marked = torch.empty([2 + s for s in shape], device="meta")
    for node in found.after:
        marked = _applied(node, marked)
    return list(marked.shape) == [3 if i == marked.ndim + _HEADS else 2 for i in range(marked.ndim)]


def _written_since(trace: ForwardTrace, first: fx.Node) -> bool:
    """Whether anything is written to after `first`, in place of which a copy was read."""
    nodes = list(trace.graph.nodes)
    return any(n.meta.get("writes") for n in nodes[nodes.index(first) + 1 :])


def _turned(trace: ForwardTrace, found: _Repetition) -> fx.Node:
    made = found.of
    for node in found.after:
        if _name(node) == "contiguous":
            continue
        args, kwargs = fx.node.map_arg((node.args[1:], node.kwargs), lambda n: n)
        value = made.meta["v"]
        made = trace.graph.create_node(node.op, node.target, (made, *args), kwargs)
        with trace.mode, torch.no_grad():
            made.meta["v"] = _applied(node, value)
    return made


def _applied(node: fx.Node, value: Tensor) -> Tensor:
    args, kwargs = fx.node.map_arg((node.args[1:], node.kwargs), lambda n: n.meta["v"])
    if node.op == "call_method":
        result: Tensor = getattr(value, str(node.target))(*args, **kwargs)
    else:
        result = node.target(value, *args, **kwargs)  # type: ignore[operator]
    return result


def _ask_for_sizes(old: Any, new: fx.Node) -> None:
    """Let who asked the repeated tensor for another size than its heads ask the other one."""
    heads = old.meta["v"].ndim + _HEADS
    for user in list(old.users):
        if user.op == "call_method" and user.target == "size" and len(user.args) == 2:
            dim = user.args[1]
            if isinstance(dim, int) and dim % old.meta["v"].ndim != heads and _stands_before(new, user):
                user.args = (new, dim)


def _stands_before(first: fx.Node, second: fx.Node) -> bool:
    return first < second


def _repeated(trace: ForwardTrace, node: Any, inside: Inside) -> _Repetition | None:
    """The repetition that `node` is, perhaps turned or cast since; None where it is none that is understood."""
    after: list[fx.Node] = []
    while _is_tensor(node):
        if node.op == "call_module":
            found = _by_child(trace, node, inside)
        else:
            found = _repetition(trace, node)
        if found is not None:
            return found._replace(after=tuple(reversed(after)))
        if _name(node) not in _PASSED or not node.args or any(isinstance(a, fx.Node) for a in _numbers(node)):
            return None
        after.append(node)
        node = node.args[0]
    return None


def _by_child(trace: ForwardTrace, node: fx.Node, inside: Inside) -> _Repetition | None:
    """What a child that is called with one tensor makes of it, where that is a repetition alone."""
    if len(node.args) != 1 or node.kwargs or not _is_tensor(node.args[0]):
        return None
    read = inside(trace.module.get_submodule(str(node.target)), node)
    output = next((n for n in read.graph.nodes if n.op == "output"), None) if read is not None else None
    if read is None or output is None or any(n.meta.get("writes") for n in read.graph.nodes):
        return None
    found = _repetition(read, output.args[0]) if _is_tensor(output.args[0]) else None
    if found is None or found.of.op != "placeholder" or sum(n.op == "placeholder" for n in read.graph.nodes) != 1:
        return None
    return found._replace(of=node.args[0])  # type: ignore[arg-type]


def _repetition(trace: ForwardTrace, node: fx.Node) -> _Repetition | None:
    match _name(node):
        case "repeat_interleave":
            return _interleaved(node)
        case "reshape" | "view" | "flatten":
            return _joined(trace, node)
    return None


def _interleaved(node: fx.Node) -> _Repetition | None:
    given = dict(zip(("x", "repeats", "dim"), node.args, strict=False)) | dict(node.kwargs)
    of, times, dim = (given.get(k) for k in ("x" if "x" in given else "input", "repeats", "dim"))
    if not _is_tensor(of) or type(times) is not int or type(dim) is not int or times < 2:
        return None
    return _Repetition(of, dim % of.meta["v"].ndim, times)  # type: ignore[union-attr, arg-type]


def _joined(trace: ForwardTrace, node: fx.Node) -> _Repetition | None:
    """A new dimension of copies, joined to the one before it."""
    source = node.args[0] if node.args else None
    while _is_tensor(source) and _name(source) in ("contiguous", "clone") and len(source.args) == 1:  # type: ignore[union-attr, arg-type]
        source = source.args[0]  # type: ignore[union-attr]
    found = _spread(trace, source) if _is_tensor(source) else None  # type: ignore[arg-type]
    if found is None:
        return None
    of, dim, times = found[:3]
    if _name(node) == "flatten":
        ndim = of.meta["v"].ndim + 1
        given = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | dict(node.kwargs)
        ends = [given.get("start_dim", 0), given.get("end_dim", -1)]
        return found if all(type(e) is int for e in ends) and [e % ndim for e in ends] == [dim, dim + 1] else None
    sizes = _sizes(node)
    if sizes is None or len(sizes) != of.meta["v"].ndim:
        return None
    same = [i == dim or _is_size(trace, s, of, i) for i, s in enumerate(sizes)]
    if all(same):
        return found
    heads = sizes[dim]
    product = isinstance(heads, fx.Node) and heads.target is operator.mul and _is_product(trace, heads, of, dim, times)
    return found if product and same.count(False) == 1 and sizes[same.index(False)] == -1 else None


def _is_product(trace: ForwardTrace, node: fx.Node, of: fx.Node, dim: int, times: int) -> bool:
    first, second = node.args
    return any(b == times and _is_size(trace, a, of, dim) for a, b in ((first, second), (second, first)))


def _spread(trace: ForwardTrace, node: fx.Node) -> _Repetition | None:
    """`node` has one dimension more than `of`, in which everything is repeated, behind dimension `dim`."""
    if _name(node) == "stack":
        given = dict(zip(("tensors", "dim"), node.args, strict=False)) | dict(node.kwargs)
        tensors, dim = given.get("tensors"), given.get("dim", 0)
        if not isinstance(tensors, (list, tuple)) or len(tensors) < 2 or type(dim) is not int:
            return None
        of = tensors[0]
        if not _is_tensor(of) or any(t is not of for t in tensors):
            return None
        place = dim % (of.meta["v"].ndim + 1)
        return _Repetition(of, place - 1, len(tensors)) if place else None
    if _name(node) not in ("expand", "repeat", "broadcast_to") or not _is_tensor(node.args[0]):
        return None
    put = _put_in(node.args[0])  # type: ignore[arg-type]
    sizes = _sizes(node)
    if put is None or sizes is None:
        return None
    of, place = put
    if not place or len(sizes) != of.meta["v"].ndim + 1 or type(sizes[place]) is not int or sizes[place] < 2:
        return None
    others = [s for i, s in enumerate(sizes) if i != place]
    if _name(node) == "repeat":
        whole = all(s == 1 for s in others)
    else:
        whole = all(_is_size(trace, s, of, i) or s == -1 for i, s in enumerate(others))
    return _Repetition(of, place - 1, sizes[place]) if whole else None


def _put_in(node: fx.Node) -> tuple[fx.Node, int] | None:
    """The tensor that a dimension of size 1 was put into, and its place: `x[:, :, None]`, `x.unsqueeze(2)`."""
    of = node.args[0] if node.args else None
    if not _is_tensor(of):
        return None
    if _name(node) == "unsqueeze":
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        return (of, dim % (of.meta["v"].ndim + 1)) if type(dim) is int else None  # type: ignore[union-attr, return-value]
    if node.target is not operator.getitem:
        return None
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if any(i is not None and i != slice(None) and i is not Ellipsis for i in index) or index.count(None) != 1:
        return None
    place = index.index(None)
    if Ellipsis in index and index.index(Ellipsis) < place:
        place = of.meta["v"].ndim + 1 - (len(index) - place)  # type: ignore[union-attr]
    return of, place  # type: ignore[return-value]


def _is_size(trace: ForwardTrace, size: Any, of: fx.Node, dim: int) -> bool:
    """Whether `size` is that of dimension `dim` of a tensor, in every call."""
    known = trace.sizes.get(of)
    if isinstance(size, int):
        return known is not None and known[dim] == size and isinstance(known[dim], int)
    if not isinstance(size, fx.Node) or size.op != "call_method" or size.target != "size" or len(size.args) != 2:
        return False
    tensor, place = size.args
    if not _is_tensor(tensor) or type(place) is not int:
        return False
    place %= tensor.meta["v"].ndim  # type: ignore[union-attr]
    if tensor is of and place == dim:
        return True
    asked = trace.sizes.get(tensor)  # type: ignore[arg-type]
    return known is not None and asked is not None and known[dim] is not None and known[dim] == asked[place]


def _sizes(node: fx.Node) -> tuple[Any, ...] | None:
    """The sizes that a method or function is given, one by one or in a tuple."""
    if node.kwargs:
        return None
    given = node.args[1:]
    if len(given) == 1 and isinstance(given[0], (tuple, list)):
        given = tuple(given[0])
    return given


def _numbers(node: fx.Node) -> list[Any]:
    found: list[Any] = []
    fx.node.map_arg((node.args[1:], node.kwargs), found.append)
    return found


def _is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("v"), Tensor)


def _name(node: fx.Node) -> str:
    """How a call of torch's is named, whether a function or a method."""
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
