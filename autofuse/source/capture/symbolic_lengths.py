"""Finds dimensions of tensors that provably have the same size.

Each dimension has a key. The key is a number, or a tensor and a dimension of it. To find this tensor, the analysis goes
back through views, transposes, chunks and linear layers. Two dimensions with equal keys have the same size.

The analysis works on a captured graph and on its canonical view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from autofuse.canonical import PERMUTE, View
from autofuse.ir.facts import Facts, Known
from autofuse.ir.graph import ATTRIBUTE, CONST, ITEM, SYNTAX, TUPLE, Graph, Value
from autofuse.ir.vocabulary import SAME_SIZES
from autofuse.source.capture.captured import CapturedFunction

Key = object  # a number, or ("size", value, dim), where dim is negative and counts from the end
Lengths = tuple[Key | None, ...]

_KEEP_SIZES = SAME_SIZES | {"identity"}
_PARTS = ("chunk", "split")


@dataclass
class GraphSizes:
    """The sizes of the values of one graph.

    Attributes:
        facts: what is known about the values.
        unpacked: the number of targets that each unpacked value has.
    """

    facts: Facts
    unpacked: Mapping[Value, int] = field(default_factory=dict)
    _lengths: dict[Value, Lengths | None] = field(default_factory=dict)

    def lengths(self, v: Value) -> Lengths | None:
        """Return the key of each dimension of `v`, or None if its rank is not known."""
        if v not in self._lengths:
            self._lengths[v] = None  # ends the recursion if a malformed graph has a cycle
            self._lengths[v] = self._compute_lengths(v)
        return self._lengths[v]

    def _compute_lengths(self, v: Value) -> Lengths | None:
        if (known := self.facts.known.get(v)) is not None and known.lengths is not None:
            return known.lengths
        handler = _HANDLERS.get(v.op)
        lengths = handler(self, v) if handler else self.lengths(v.inputs[0]) if v.op in _KEEP_SIZES else None
        if lengths is not None:
            return lengths
        rank = self.facts.rank(v)
        return tuple(self.trace_dimension(v, d - rank) for d in range(rank)) if rank else None

    def trace_dimension(self, v: Value, dim: int) -> Key:
        """Return the key of dimension `dim` of `v`, which counts from the end: the first tensor with this dimension."""
        while True:
            if v.op in _KEEP_SIZES or v.op == "linear" and dim != -1:
                v = v.inputs[0]
            elif (
                v.op == ITEM
                and v.inputs[0].op in _PARTS
                and _split_dimension(v.inputs[0], self.facts) not in (dim, None)
            ):
                v = v.inputs[0].inputs[0]
            else:
                return ("size", v, dim)

    def size_key(self, v: Value) -> Key | None:
        """Return the key of a number, which may be a size such as `x.size(1)` or `x.shape[1]`."""
        if v.op == CONST:
            return v.data if isinstance(v.data, int) else None
        if (fact := self.facts.known.get(v)) is not None and fact.size is not None:
            return fact.size
        owner, dim = _size_source(v)
        if owner is None or dim is None:
            return ("number", v)
        known = self.lengths(owner)
        if known is not None:
            return known[dim] if -len(known) <= dim < len(known) else None
        return self.trace_dimension(owner, dim) if dim < 0 else ("number", v)


def _size_source(v: Value) -> tuple[Value | None, int | None]:
    if v.op == "size" and type(v.inputs[1].data) is int:
        return v.inputs[0], v.inputs[1].data
    if v.op == ITEM and v.inputs[0].op == ATTRIBUTE and v.inputs[0].data == "shape" and type(v.inputs[1].data) is int:
        return v.inputs[0].inputs[0], v.inputs[1].data
    if (
        v.op == ITEM
        and v.inputs[0].op == "size"
        and v.inputs[0].inputs[1].data is None
        and type(v.inputs[1].data) is int
    ):
        return v.inputs[0].inputs[0], v.inputs[1].data
    return None, None


def _split_dimension(parts: Value, facts: Facts) -> int | None:
    """Return the dimension that chunk or split divides, counted from the end, or None."""
    dim = parts.inputs[2].data
    if type(dim) is not int:
        return None
    rank = facts.rank(parts.inputs[0])
    return dim if dim < 0 else dim - rank if rank else None


def _flat_arguments(arguments: Value) -> tuple[Value, ...]:
    """Return the sizes of `view(a, b)` and of `view((a, b))`."""
    return (
        arguments.inputs[0].inputs
        if len(arguments.inputs) == 1 and arguments.inputs[0].op == TUPLE
        else arguments.inputs
    )


# The functions below return the lengths of the result of one operation.


def _view(sizes: GraphSizes, v: Value) -> Lengths | None:
    shape = _flat_arguments(v.inputs[1])
    if len(shape) == 1 and shape[0].op != CONST or any(s.op == SYNTAX for s in shape):
        return None  # in x.view(shape) and x.view(*shape) the number of sizes is not known
    return tuple(None if s.op == CONST and s.data == -1 else sizes.size_key(s) for s in shape)


def _transpose(sizes: GraphSizes, v: Value) -> Lengths | None:
    lengths, dims = sizes.lengths(v.inputs[0]), [v.inputs[1].data, v.inputs[2].data]
    if lengths is None or not all(type(d) is int and -len(lengths) <= d < len(lengths) for d in dims):
        return None
    order = list(lengths)
    a, b = (int(str(d)) for d in dims)
    order[a], order[b] = order[b], order[a]
    return tuple(order)


def _matrix_transpose(sizes: GraphSizes, v: Value) -> Lengths | None:
    lengths = sizes.lengths(v.inputs[0])
    return None if lengths is None else (*lengths[:-2], lengths[-1], lengths[-2])


def _permute(sizes: GraphSizes, v: Value) -> Lengths | None:
    lengths, dims = sizes.lengths(v.inputs[0]), [d.data for d in _flat_arguments(v.inputs[1])]
    if lengths is None or len(dims) != len(lengths):
        return None
    return tuple(lengths[d] for d in dims if type(d) is int) if all(type(d) is int for d in dims) else None


def _linear(sizes: GraphSizes, v: Value) -> Lengths | None:
    lengths = sizes.lengths(v.inputs[0])
    return None if lengths is None else (*lengths[:-1], ("size", v, -1))  # the last dimension is new


def _item(sizes: GraphSizes, v: Value) -> Lengths | None:
    """Return the lengths of a part: unbind removes its dimension, and chunk and split change the size of theirs."""
    parts = v.inputs[0]
    if parts.op == "unbind" and type(parts.inputs[1].data) is int:
        lengths, dim = sizes.lengths(parts.inputs[0]), parts.inputs[1].data
        return None if lengths is None else tuple(x for i, x in enumerate(lengths) if i != dim % len(lengths))
    split_dim = _split_dimension(parts, sizes.facts) if parts.op in _PARTS else None
    lengths = sizes.lengths(parts.inputs[0]) if split_dim is not None else None
    if lengths is None or split_dim is None:
        return None
    key = _part_size(sizes, v) or ("size", v, split_dim)
    return tuple(key if i == split_dim + len(lengths) else x for i, x in enumerate(lengths))


def _part_size(sizes: GraphSizes, v: Value) -> Key | None:
    """Return the key of the size of a part that `split` makes; the last part may be smaller."""
    parts, index = v.inputs[0], v.inputs[1].data
    is_full = type(index) is int and 0 <= index < sizes.unpacked.get(parts, 0) - 1
    return sizes.size_key(parts.inputs[1]) if parts.op == "split" and is_full else None


def _product(sizes: GraphSizes, v: Value) -> Lengths | None:
    """Return the lengths of a product with a number, such as `q * scale`."""
    sides = [i for i in v.inputs if sizes.facts.number(i) is not True]
    return sizes.lengths(sides[0]) if len(sides) == 1 else None


def _rearrange(sizes: GraphSizes, v: Value) -> Lengths | None:
    """Return the lengths after einops.rearrange. An axis that is not in a group on either side keeps its size."""
    pattern = v.inputs[1].data
    if not isinstance(pattern, str) or "." in pattern:
        return None
    left, right = (_axes(side) for side in pattern.split("->")) if pattern.count("->") == 1 else ([], [])
    lengths = sizes.lengths(v.inputs[0])
    keys: list[Key | None] = []
    for axis in right:
        if len(axis) != 1 or axis not in left:
            keys.append(None)
            continue
        at = left.index(axis) - len(left)
        keys.append(
            lengths[at] if lengths is not None and len(lengths) == len(left) else sizes.trace_dimension(v.inputs[0], at)
        )
    return tuple(keys) or None


def _axes(side: str) -> list[tuple[str, ...]]:
    """Return the axes on one side of an einops pattern. A group in parentheses is one axis with several names."""
    axes: list[tuple[str, ...]] = []
    group: list[str] | None = None
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            group = []
        elif word == ")":
            axes.append(tuple(group or ()))
            group = None
        elif group is not None:
            group.append(word)
        else:
            axes.append((word,))
    return axes


_HANDLERS: dict[str, Callable[[GraphSizes, Value], Lengths | None]] = {
    "view": _view, "transpose": _transpose, "mT": _matrix_transpose, "permute": _permute, "linear": _linear,
    ITEM: _item, "mul": _product, "div": _product, "rearrange": _rearrange,
}  # fmt: skip


def recorded_lengths(view: View, v: Value) -> Lengths | None:
    """Return the lengths of a canonical value, from the facts that `record_lengths` adds, or None."""
    for o in view.originals(v):
        known = view.facts.known.get(o)
        if known is not None and known.lengths is not None:
            return known.lengths
    if v.op == PERMUTE and isinstance(v.data, tuple) and (lengths := recorded_lengths(view, v.inputs[0])) is not None:
        return (*lengths[: len(lengths) - len(v.data)], *(lengths[d] for d in v.data))
    return None


def record_lengths(captured: CapturedFunction) -> GraphSizes:
    """Add the sizes that the program proves to the facts of each value, and return all sizes."""
    sizes = GraphSizes(Facts(captured.known), captured.unpacked)
    graph: Graph = captured.graph
    for v in graph.values:
        if sizes.facts.number(v) and v.op != CONST:
            captured.known[v] = replace(captured.known.get(v, Known()), size=sizes.size_key(v))
        if (lengths := sizes.lengths(v)) is not None:
            captured.known[v] = replace(captured.known.get(v, Known()), lengths=lengths)
    return sizes
