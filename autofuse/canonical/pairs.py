"""The two halves of a last dimension, and its neighbouring pairs, however they are taken.

`x.chunk(2, -1)`, slices up to and from the middle, every second entry, and views that give the pairs a dimension of
their own. Knows which entries of which value a part holds; knows no arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autofuse.canonical.shapes import elements, from_end
from autofuse.canonical.view import CAST, LEAF, PERMUTE, View, bare, order_of
from autofuse.graph import ATTRIBUTE, CONST, ITEM, SLICE, SYNTAX, TUPLE, Value, is_const

HALVES = "halves"  # a pair is entry i of either half
PAIRS = "pairs"  # a pair is entries 2i and 2i + 1


@dataclass(frozen=True)
class Part:
    """The first (`which` is 0) or second entries of all pairs of `of`, if that has `rank` dimensions (any: None)."""

    of: Value
    layout: str
    which: int
    rank: int | None = None

    def belongs_to(self, other: Part) -> bool:
        return self.of is other.of and self.layout == other.layout


@dataclass(frozen=True)
class Split:
    """`of` with its last dimension made two: (2, d / 2) for halves, (d / 2, 2) for pairs."""

    of: Value
    layout: str

    @property
    def dim(self) -> int:
        """The dimension of size 2."""
        return -2 if self.layout == HALVES else -1


@dataclass(frozen=True)
class _Sizes:
    """The sizes of `of` but for the last `less`: `*x.shape[:-1]`."""

    of: Value
    less: int


def part_of(view: View, v: Value) -> Part | None:
    """What `v` holds of what; a change of dtype afterwards is one before."""
    if v.op == CAST:
        inner = part_of(view, v.inputs[0])
        return replace(inner, of=view.make(CAST, inner.of)) if inner else None
    if v.op == "select":
        return _selected(view, *v.inputs)
    if v.op != ITEM:
        return None
    container, index = v.inputs
    if container.op in ("chunk", "split", "unbind"):
        return _element(view, container, index)
    return _indexed(view, container, index.inputs if index.op == TUPLE else (index,))


def _element(view: View, parts: Value, index: Value) -> Part | None:
    which = index.data
    x, dim = parts.inputs[0], from_end(view, parts.inputs[0], parts.inputs[-1])
    if type(which) is not int or which not in (0, 1, -1, -2):
        return None
    if parts.op == "unbind":
        found = split_in_two(view, x)
        return Part(found.of, found.layout, which % 2) if found and found.dim == dim else None
    if dim != -1 or not _in_halves(view, parts):
        return None
    return Part(x, HALVES, which % 2)


def _in_halves(view: View, parts: Value) -> bool:
    """Whether chunk or split gives two parts of one size."""
    x, how = parts.inputs[:2]
    if parts.op == "chunk":
        return is_const(how, 2)
    if how.op == TUPLE:
        return len(how.inputs) == 2 and (how.inputs[0] is how.inputs[1] or all(is_half(view, n, x) for n in how.inputs))
    return is_half(view, how, x)


def _selected(view: View, x: Value, dim: Value, index: Value) -> Part | None:
    found = split_in_two(view, x)
    if found is None or from_end(view, x, dim) != found.dim or index.data not in (0, 1, -1, -2):
        return None
    return Part(found.of, found.layout, int(str(index.data)) % 2)


def _indexed(view: View, x: Value, index: Sequence[Value]) -> Part | None:
    """x[..., :half], x[..., ::2], or [..., 0] of what is split in two."""
    last = index[-1]
    if not _only_last(view, x, index):
        return _of_split(view, x, index)
    if last.op != SLICE:
        return _of_split(view, x, index)
    start, stop, step = last.inputs
    rank = None if is_const(index[0], ...) or view.rank(x) else len(index)
    if is_const(step, 2) and is_const(stop, None):
        which = 0 if is_const(start, 0, None) else 1 if is_const(start, 1) else None
        return None if which is None else Part(x, PAIRS, which, rank)
    if not is_const(step, None, 1):
        return None
    if is_const(start, 0, None) and is_half(view, stop, x):
        return Part(x, HALVES, 0, rank)
    whole = is_const(stop, None) or is_size(view, stop, x, -1)
    return Part(x, HALVES, 1, rank) if whole and is_half(view, start, x) else None


def _only_last(view: View, x: Value, index: Sequence[Value]) -> bool:
    """Whether an index leaves all dimensions but the last as they are, as far as is known of their number."""
    if len(index) == 2 and is_const(index[0], ...):
        return True
    return len(index) > 1 and all(map(_everything, index[:-1])) and view.rank(x) in (len(index), None)


def _everything(index: Value) -> bool:
    return index.op == SLICE and all(is_const(i, None) for i in index.inputs)


def _of_split(view: View, x: Value, index: Sequence[Value]) -> Part | None:
    found = split_in_two(view, x)
    if found is None or len(index) < 2:
        return None
    kept = -1 - found.dim  # dimensions after the one of size 2
    which, before, after = index[len(index) - 1 - kept], index[: len(index) - 1 - kept], index[len(index) - kept :]
    rank = view.rank(x)
    whole = len(before) == 1 and is_const(before[0], ...)
    whole = whole or all(map(_everything, before)) and rank == len(index)
    if not whole or not all(map(_everything, after)) or which.op != CONST or which.data not in (0, 1, -1, -2):
        return None
    return Part(found.of, found.layout, int(str(which.data)) % 2)


# Views with a dimension for the two of a pair.


def split_in_two(view: View, v: Value) -> Split | None:
    """What `v` is, with the last dimension made two of which one has size 2."""
    if v.op == CAST:
        inner = split_in_two(view, v.inputs[0])
        return Split(view.make(CAST, inner.of), inner.layout) if inner else None
    if v.op == "view":
        return _viewed(view, v.inputs[0], _dimensions(view, v.inputs[1]))
    if v.op == "unflatten" and from_end(view, v.inputs[0], v.inputs[1]) == -1:
        layout = _layout_of(elements(v.inputs[2]))
        return Split(v.inputs[0], layout) if layout else None
    return _rearranged(v) if v.op == "rearrange" else None


def _viewed(view: View, x: Value, shape: list[Value | _Sizes] | None) -> Split | None:
    if shape is None or len(shape) < 3 or not _leading(view, x, shape[:-2]):
        return None
    layout = _layout_of([s for s in shape[-2:] if isinstance(s, Value)])
    return Split(x, layout) if layout else None


def _layout_of(last: Sequence[Value]) -> str | None:
    if len(last) != 2:
        return None
    return PAIRS if is_const(last[1], 2) else HALVES if is_const(last[0], 2) else None


def _leading(view: View, x: Value, shape: Sequence[Value | _Sizes]) -> bool:
    """Whether `shape` is that of `x` without its last dimension."""
    if len(shape) == 1 and isinstance(shape[0], _Sizes):
        return shape[0].less == 1 and same(view, shape[0].of, x)
    sizes = [s for s in shape if isinstance(s, Value)]
    if len(sizes) != len(shape) or view.rank(x) != len(shape) + 1:
        return False
    unknown = [i for i, s in enumerate(sizes) if not is_size(view, s, x, i - len(shape) - 1)]
    return not unknown


def merges_last_two(view: View, stacked: Value, x: Value, shape: Sequence[Value]) -> bool:
    """Whether view, view_as or rearrange with arguments `shape` gives `stacked`, all pairs of `x`, the shape of `x`."""
    if len(shape) == 2:
        return _merging(str(shape[0].data))
    (only,) = shape
    if only.op != TUPLE:
        return same(view, only, x) or _equally_long(view, only, x)  # view_as(x)
    wanted = _dimensions(view, only)
    if wanted is None:
        return False
    if len(wanted) == 1 and isinstance(wanted[0], _Sizes):
        return wanted[0].less == 0 and same(view, wanted[0].of, x)
    *leading, last = wanted
    if not isinstance(last, Value) or not (
        _leading(view, x, leading) or _leading_of(view, stacked, len(leading), leading)
    ):
        return False
    return is_const(last, -1) or is_size(view, last, x, -1) or _product_of_last_two(view, stacked, last)


def _leading_of(view: View, stacked: Value, count: int, shape: Sequence[Value | _Sizes]) -> bool:
    """Whether `shape` is that of `stacked` without its last two dimensions."""
    if view.rank(stacked) != count + 2:
        return False
    return all(isinstance(s, Value) and is_size(view, s, stacked, i - count - 2) for i, s in enumerate(shape))


def _product_of_last_two(view: View, stacked: Value, v: Value) -> bool:
    if v.op != "mul" or len(v.inputs) != 2:
        return False
    return any(is_size(view, a, stacked, -2) and is_size(view, b, stacked, -1) for a, b in (v.inputs, v.inputs[::-1]))


def _equally_long(view: View, a: Value, b: Value) -> bool:
    one, other = lengths(view, a), lengths(view, b)
    return one is not None and one == other and None not in one


def _dimensions(view: View, shape: Value) -> list[Value | _Sizes] | None:
    """The arguments of view, one by one: `(*x.shape[:-1], -1, 2)`, `x.shape[:-1] + (-1, 2)`, or as they are."""
    found: list[Value | _Sizes] = []
    for argument in shape.inputs:
        if argument.op == LEAF and isinstance(argument.data, Value) and argument.data.op == SYNTAX:
            starred = argument.data.data == "*"
            part = _several(view, view.of(argument.data.inputs[0])) if starred else None
        elif argument.op == TUPLE or len(shape.inputs) == 1:
            part = _several(view, argument)
        else:
            part = [argument]
        if part is None:
            return None
        found += part
    return found


def _several(view: View, v: Value) -> list[Value | _Sizes] | None:
    """The sizes in a tuple, a shape or a part of one, or in two of these joined."""
    if v.op == TUPLE:
        return _dimensions(view, v)
    if v.op == ATTRIBUTE and v.data == "shape" or v.op == "size" and is_const(v.inputs[1], None):
        return [_Sizes(v.inputs[0], 0)]
    if v.op == ITEM and v.inputs[1].op == SLICE:
        owner, (start, stop, step) = _several(view, v.inputs[0]), v.inputs[1].inputs
        whole = owner is not None and len(owner) == 1 and isinstance(owner[0], _Sizes) and owner[0].less == 0
        if not whole or not is_const(start, None, 0) or not is_const(step, None) or type(stop.data) is not int:
            return None
        assert owner is not None and isinstance(owner[0], _Sizes)
        return [_Sizes(owner[0].of, -stop.data)] if stop.data < 0 else None
    for original in view.originals(v) if v.op == "add" else ():  # a sum of tuples has an order
        sides = [_several(view, view.of(i)) for i in original.inputs[:2]]
        return [*sides[0], *sides[1]] if sides[0] is not None and sides[1] is not None else None
    return [v] if v.op != LEAF else None


def _rearranged(v: Value) -> Split | None:
    """einops: `... (d two) -> ... d two` with one of them given as 2."""
    x, pattern, axes = v.inputs
    words = _words(str(pattern.data))
    if words is None:
        return None
    (*front, group), (*kept, first, second) = words[0], words[1] if len(words[1]) > 1 else ("", "")
    if len(group.split()) != 2 or group.split() != [first, second] or front != kept or any(" " in w for w in front):
        return None
    names = axes.data if isinstance(axes.data, tuple) else ()
    two = [n for n, size in zip(names, axes.inputs, strict=True) if is_const(size, 2)]
    if second in two:
        return Split(x, PAIRS)
    return Split(x, HALVES) if first in two else None


def _merging(pattern: str) -> bool:
    words = _words(pattern)
    if words is None or len(words[0]) < 2:
        return False
    *kept, first, second = words[0]
    return words[1] == [*kept, f"{first} {second}"] and not any(" " in w for w in words[0])


def _words(pattern: str) -> tuple[list[str], list[str]] | None:
    """The axes of both sides; those in brackets are one, with a space between its parts."""
    sides = pattern.split("->")
    if len(sides) != 2:
        return None
    left, right = map(_axes, sides)
    return (left, right) if left and right else None


def _axes(side: str) -> list[str]:
    found: list[str] = []
    for i, piece in enumerate(side.replace(")", "(").split("(")):
        found += [" ".join(piece.split())] if i % 2 else piece.split()
    return found


# Sizes.


def same(view: View, a: Value, b: Value) -> bool:
    """Whether two values have one shape: equal but for casts."""
    return _uncast(view, a) is _uncast(view, b)


def _uncast(view: View, v: Value) -> Value:
    if v.op == PERMUTE:
        return view.permuted(bare(v.inputs[0]), order_of(v))
    return bare(v)


def is_half(view: View, v: Value, x: Value) -> bool:
    """Whether `v` is half of the last size of `x`."""
    if v.op == "floordiv" and is_const(v.inputs[1], 2):
        return is_size(view, v.inputs[0], x, -1)
    number, known = v.data if v.op == CONST else None, lengths(view, x)
    return type(number) is int and known is not None and type(known[-1]) is int and known[-1] == 2 * number


def is_size(view: View, v: Value, x: Value, dim: int) -> bool:
    """Whether `v` is the size of dimension `dim` (from the end) of `x`."""
    mine = lengths(view, x)
    wanted = mine[dim] if mine is not None and -dim <= len(mine) else None
    if v.op == CONST:
        return type(v.data) is int and v.data == wanted
    counts = [view.facts.known[o].size for o in view.originals(v) if o in view.facts.known]
    if wanted is not None and wanted in counts:
        return True
    if v.op == "size":
        owner, index = v.inputs
    elif v.op == ITEM and _is_shape(v.inputs[0]):
        owner, index = v.inputs[0].inputs[0], v.inputs[1]
    else:
        return False
    place = from_end(view, owner, index)
    if place is None:
        return False
    theirs = lengths(view, owner)
    return (
        place == dim and same(view, owner, x) or theirs is not None and wanted is not None and theirs[place] == wanted
    )


def _is_shape(v: Value) -> bool:
    return v.op == ATTRIBUTE and v.data == "shape" or v.op == "size" and is_const(v.inputs[1], None)


def lengths(view: View, v: Value) -> tuple[object, ...] | None:
    """The sizes of `v` as far as the front end knows them; equal ones are equally long."""
    for o in view.originals(v):
        known = view.facts.known.get(o)
        if known is not None and known.lengths is not None:
            return known.lengths
    if v.op == CAST:
        return lengths(view, v.inputs[0])
    if v.op == PERMUTE and (inner := lengths(view, v.inputs[0])) is not None:
        order = order_of(v)
        return (*inner[: len(inner) - len(order)], *(inner[d] for d in order))
    return None
