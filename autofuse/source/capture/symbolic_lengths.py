"""Symbolic sizes: which dimensions of which tensors are provably as long as which others.

A size is a key: a number, or the tensor and dimension it was read from, followed back through views, transposes, parts
and linear layers to where the tensor came from. Two dimensions with equal keys are equally long. Works on a captured
graph and on its canonical view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autofuse.canonical import PERMUTE, View
from autofuse.ir.facts import Facts, Known
from autofuse.ir.graph import ATTRIBUTE, CONST, ITEM, SYNTAX, TUPLE, Graph, Value
from autofuse.ir.vocabulary import SAME_SIZES
from autofuse.source.capture.captured import CapturedFunction

Key = object  # a number, or ("size", value, dimension from the end)
Lengths = tuple[Key | None, ...]

_SAME = SAME_SIZES | {"identity"}
_PARTS = ("chunk", "split")


@dataclass
class GraphSizes:
    """The sizes of the values of one graph; `ranks` may be extended as shapes become known."""

    facts: Facts
    _lengths: dict[Value, Lengths | None] = field(default_factory=dict)

    def of(self, v: Value) -> Lengths | None:
        """One key for each dimension of `v`, None where its rank is unknown."""
        if v not in self._lengths:
            self._lengths[v] = None  # a value is not computed from itself; a guard for odd graphs
            self._lengths[v] = self._of(v)
        return self._lengths[v]

    def _of(self, v: Value) -> Lengths | None:
        if (known := self.facts.known.get(v)) is not None and known.lengths is not None:
            return known.lengths
        handler = _HANDLERS.get(v.op)
        found = handler(self, v) if handler else self.of(v.inputs[0]) if v.op in _SAME else None
        if found is not None:
            return found
        rank = self.facts.rank(v)
        return tuple(self.root(v, d - rank) for d in range(rank)) if rank else None

    def root(self, v: Value, dim: int) -> Key:
        """Where dimension `dim` (from the end) of `v` was first made."""
        while True:
            if v.op in _SAME or v.op == "linear" and dim != -1:
                v = v.inputs[0]
            elif v.op == ITEM and v.inputs[0].op in _PARTS and _along(v.inputs[0], self.facts) not in (dim, None):
                v = v.inputs[0].inputs[0]
            else:
                return ("size", v, dim)

    def key(self, v: Value) -> Key | None:
        """The key of a number that is a size: `x.size(1)`, `x.shape[1]`."""
        if v.op == CONST:
            return v.data if isinstance(v.data, int) else None
        if (fact := self.facts.known.get(v)) is not None and fact.size is not None:
            return fact.size
        owner, dim = _size_read(v)
        if owner is None or dim is None:
            return ("number", v)
        known = self.of(owner)
        if known is not None:
            return known[dim] if -len(known) <= dim < len(known) else None
        return self.root(owner, dim) if dim < 0 else ("number", v)


def _size_read(v: Value) -> tuple[Value | None, int | None]:
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


def _along(parts: Value, facts: Facts) -> int | None:
    """The dimension, from the end, that chunk or split divides."""
    dim = parts.inputs[2].data
    if type(dim) is not int:
        return None
    rank = facts.rank(parts.inputs[0])
    return dim if dim < 0 else dim - rank if rank else None


def _flat(arguments: Value) -> tuple[Value, ...]:
    return (
        arguments.inputs[0].inputs
        if len(arguments.inputs) == 1 and arguments.inputs[0].op == TUPLE
        else arguments.inputs
    )


def _view(sizes: GraphSizes, v: Value) -> Lengths | None:
    shape = _flat(v.inputs[1])
    if len(shape) == 1 and shape[0].op != CONST or any(s.op == SYNTAX for s in shape):
        return None  # x.view(shape), x.view(*shape)
    return tuple(None if s.op == CONST and s.data == -1 else sizes.key(s) for s in shape)


def _transpose(sizes: GraphSizes, v: Value) -> Lengths | None:
    inner, dims = sizes.of(v.inputs[0]), [v.inputs[1].data, v.inputs[2].data]
    if inner is None or not all(type(d) is int and -len(inner) <= d < len(inner) for d in dims):
        return None
    order = list(inner)
    a, b = (int(str(d)) for d in dims)
    order[a], order[b] = order[b], order[a]
    return tuple(order)


def _m_t(sizes: GraphSizes, v: Value) -> Lengths | None:
    inner = sizes.of(v.inputs[0])
    return None if inner is None else (*inner[:-2], inner[-1], inner[-2])


def _permute(sizes: GraphSizes, v: Value) -> Lengths | None:
    inner, dims = sizes.of(v.inputs[0]), [d.data for d in _flat(v.inputs[1])]
    if inner is None or len(dims) != len(inner):
        return None
    return tuple(inner[d] for d in dims if type(d) is int) if all(type(d) is int for d in dims) else None


def _linear(sizes: GraphSizes, v: Value) -> Lengths | None:
    inner = sizes.of(v.inputs[0])
    return None if inner is None else (*inner[:-1], ("size", v, -1))


def _item(sizes: GraphSizes, v: Value) -> Lengths | None:
    parts = v.inputs[0]
    if parts.op == "unbind" and type(parts.inputs[1].data) is int:
        inner, dim = sizes.of(parts.inputs[0]), parts.inputs[1].data
        return None if inner is None else tuple(x for i, x in enumerate(inner) if i != dim % len(inner))
    along = _along(parts, sizes.facts) if parts.op in _PARTS else None
    inner = sizes.of(parts.inputs[0]) if along is not None else None
    if inner is None or along is None:
        return None
    return tuple(("size", v, along) if i == along + len(inner) else x for i, x in enumerate(inner))


def _product(sizes: GraphSizes, v: Value) -> Lengths | None:
    """`q * scale` is as long as q."""
    sides = [i for i in v.inputs if sizes.facts.number(i) is not True]
    return sizes.of(sides[0]) if len(sides) == 1 else None


def _rearrange(sizes: GraphSizes, v: Value) -> Lengths | None:
    """einops: a letter that stands alone on both sides keeps its dimension."""
    pattern = v.inputs[1].data
    if not isinstance(pattern, str) or "." in pattern:
        return None
    left, right = (_axes(side) for side in pattern.split("->")) if pattern.count("->") == 1 else ([], [])
    inner = sizes.of(v.inputs[0])
    found: list[Key | None] = []
    for axis in right:
        if len(axis) != 1 or axis not in left:
            found.append(None)
            continue
        at = left.index(axis) - len(left)
        found.append(inner[at] if inner is not None and len(inner) == len(left) else sizes.root(v.inputs[0], at))
    return tuple(found) or None


def _axes(side: str) -> list[tuple[str, ...]]:
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
    "view": _view, "transpose": _transpose, "mT": _m_t, "permute": _permute, "linear": _linear, ITEM: _item,
    "mul": _product, "div": _product, "rearrange": _rearrange,
}  # fmt: skip


def lengths_of(view: View, v: Value) -> Lengths | None:
    """The lengths of a canonical value, as recorded for the program's values."""
    for o in view.originals(v):
        known = view.facts.known.get(o)
        if known is not None and known.lengths is not None:
            return known.lengths
    if v.op == PERMUTE and isinstance(v.data, tuple) and (inner := lengths_of(view, v.inputs[0])) is not None:
        return (*inner[: len(inner) - len(v.data)], *(inner[d] for d in v.data))
    return None


def record_lengths(captured: CapturedFunction) -> GraphSizes:
    """Add to what is known of each value the sizes that the text proves."""
    sizes = GraphSizes(Facts(captured.known))
    graph: Graph = captured.graph
    for v in graph.values:
        if sizes.facts.number(v) and v.op != CONST:
            captured.known[v] = replace(captured.known.get(v, Known()), size=sizes.key(v))
        if (found := sizes.of(v)) is not None:
            captured.known[v] = replace(captured.known.get(v, Known()), lengths=found)
    return sizes
