"""Brings operations on the rows of experts into the forms that fold_experts.py knows.

| as written | recorded as |
| --- | --- |
| `x.index_select(0, rows)` | `x[rows]` |
| `out.index_put_((rows,), y, accumulate=True)` | `out.index_add_(0, rows, y)` |
| `out.scatter_add_(0, rows[:, None].expand_as(y), y)` | `out.index_add_(0, rows, y)` |
| `out.scatter_reduce_(0, rows[:, None].expand_as(y), y, "sum")` | `out.index_add_(0, rows, y)` |
| `index == expert`, where `expert` is a number in a tensor | `index == 2` |
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

Call = tuple[Callable[..., Any], str, tuple[Any, ...], dict[str, Any]]
_SPREADS = frozenset({"expand", "expand_as", "repeat"})
_COLUMNS = frozenset({"unsqueeze", "view", "reshape", "getitem"})
_CHOICES = frozenset({"topk", "max", "sort"})  # operations whose second result is an index of the last dimension


def known_form(
    call: Call, rows: int, numbers: dict[int, tuple[Tensor, int]], base: Callable[[Tensor], Tensor | None]
) -> Call:
    """The call in the form that is known, or as it is.

    Args:
        call: the function, its name, and its arguments.
        rows: the number of rows of an expert in the trace.
        numbers: id of an expert's index tensor -> it, and the index.
        base: the index of rows that a matrix repeats in each column, if there is one.
    """
    function, name, args, kwargs = call
    if name in ("__eq__", "eq") and len(args) == 2 and isinstance(args[1], Tensor) and id(args[1]) in numbers:
        return function, name, (args[0], numbers[id(args[1])][1]), kwargs
    if name == "index_select" and len(args) == 3 and args[1] == 0 and not kwargs and _is_index(args[2], rows):
        return torch.Tensor.__getitem__, "__getitem__", (args[0], args[2]), {}
    if name == "index_put_" and len(args) in (3, 4) and len(args[1]) == 1:
        accumulates = kwargs.get("accumulate", args[3] if len(args) == 4 else False)
        index, y = args[1][0], args[2]
        if accumulates is True and _is_index(index, rows) and _are_rows_of(y, args[0], rows):
            return torch.Tensor.index_add_, "index_add_", (args[0], 0, index, y), {}
    if name == "scatter_reduce_" and {**dict(zip(("reduce",), args[4:], strict=False)), **kwargs} == {"reduce": "sum"}:
        name, args, kwargs = "scatter_add_", args[:4], {}
    if name == "scatter_add_" and len(args) == 4 and args[1] == 0 and not kwargs:
        fits = _are_rows_of(args[3], args[0], rows) and args[3].dim() == 2 and args[2].shape == args[3].shape
        if fits and (index := base(args[2])) is not None:
            return torch.Tensor.index_add_, "index_add_", (args[0], 0, index, args[3]), {}
    return call


def _is_index(x: Any, rows: int) -> bool:
    return isinstance(x, Tensor) and x.dtype is torch.int64 and tuple(x.shape) == (rows,)


def _are_rows_of(y: Any, out: Any, rows: int) -> bool:
    """Whether `y` holds one row of `out` for each row of an expert."""
    return isinstance(y, Tensor) and isinstance(out, Tensor) and tuple(y.shape) == (rows, *out.shape[1:])


def repeated_index(node: fx.Node) -> fx.Node | None:
    """The index (R,) that a matrix repeats in each column: `rows[:, None].expand(-1, width)`; None if it does not."""
    if node_name(node) not in _SPREADS or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    column = node.args[0]
    value, base = column.meta.get("v"), column.args[0] if column.args else None
    is_column = isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == 1
    return base if is_column and isinstance(base, fx.Node) and node_name(column) in _COLUMNS else None


def choices(index: fx.Node) -> int | None:
    """The number of values that an index from torch.topk, max, sort or argmax along the last dimension may have."""
    scores: Any = None
    if node_name(index) == "getitem" and index.args[1] == 1 and isinstance(index.args[0], fx.Node):
        chosen = index.args[0]
        scores = chosen.args[0] if node_name(chosen) in _CHOICES and chosen.args else None
        place = 2 if node_name(chosen) == "topk" else 1
    elif node_name(index) == "argmax":
        chosen, scores, place = index, index.args[0], 1
    value = scores.meta.get("v") if isinstance(scores, fx.Node) else None
    if not isinstance(value, Tensor) or not value.dim():
        return None
    default = -1 if node_name(chosen) in ("topk", "sort") else None
    dim = chosen.kwargs.get("dim", chosen.args[place] if len(chosen.args) > place else default)
    return int(value.shape[-1]) if dim in (-1, value.dim() - 1) else None


def expert_number(mask: fx.Node) -> int | None:
    """The number e in `index == e`, `mask[e]`, `mask[:, e]` and their views; None if there is none."""
    node = mask
    for _ in range(12):  # a bound on the length of the chain
        last = node.args[1] if len(node.args) > 1 else None
        last = last[-1] if isinstance(last, tuple) and last else last
        if node_name(node) in ("eq", "getitem") and type(last) is int:
            return last
        if node_name(node) == "getitem" and isinstance(last, slice) and type(last.start) is int:
            return last.start
        if not node.args or not isinstance(node.args[0], fx.Node):
            return None
        node = node.args[0]
    return None


def index_under(mask: fx.Node) -> fx.Node:
    """The index of experts from which `one_hot` makes a mask, in any order of dimensions; otherwise `mask` itself."""
    node = mask
    while node_name(node) in ("permute", "bool", "long", "int", "to") and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.args[0] if node_name(node) == "one_hot" and isinstance(node.args[0], fx.Node) else mask


def flat_base(node: fx.Node) -> fx.Node:
    """The value of which `node` is a flat view: `mask.view(-1)`."""
    while node.op == "call_method" and (
        node.target in ("view", "reshape") and node.args[1:] in ((-1,), ((-1,),))
        or node.target == "flatten" and len(node.args) == 1 and not node.kwargs
    ) and isinstance(node.args[0], fx.Node):  # fmt: skip
        node = node.args[0]
    return node


def example_of_call(node: fx.Node, mode: Any) -> Any:
    """The example of a call of a function or method, from those of its operands."""
    args: Any = fx.node.map_arg(node.args, lambda n: n.meta["v"])
    kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: n.meta["v"])
    with mode, torch.enable_grad():
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def node_name(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "").strip("_")
