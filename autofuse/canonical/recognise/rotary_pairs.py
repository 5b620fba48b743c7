"""The two halves of a last dimension, and its neighbouring pairs, however they are taken.

`x.chunk(2, -1)`, slices up to and from the middle, every second entry, and views that give the pairs a dimension of
their own. Knows which entries of which value a part holds; knows no arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autofuse.canonical.shapes import elements, from_end
from autofuse.canonical.sizes import Sizes, dimensions, is_half, is_size, lengths, same
from autofuse.canonical.view import CAST, View
from autofuse.ir.graph import CONST, ITEM, SLICE, TUPLE, Value, is_const

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
    """`of`, if it has `rank` dimensions, with the last made two: (2, d / 2) for halves, (d / 2, 2) for pairs."""

    of: Value
    layout: str
    rank: int | None = None

    @property
    def dim(self) -> int:
        """The dimension of size 2."""
        return -2 if self.layout == HALVES else -1


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
        return Part(found.of, found.layout, which % 2, found.rank) if found and found.dim == dim else None
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
    return Part(found.of, found.layout, int(str(index.data)) % 2, found.rank)


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
    return Part(found.of, found.layout, int(str(which.data)) % 2, found.rank)


# Views with a dimension for the two of a pair.


def split_in_two(view: View, v: Value) -> Split | None:
    """What `v` is, with the last dimension made two of which one has size 2."""
    if v.op == CAST:
        inner = split_in_two(view, v.inputs[0])
        return replace(inner, of=view.make(CAST, inner.of)) if inner else None
    if v.op == "view":
        return _viewed(view, v.inputs[0], dimensions(view, v.inputs[1]))
    if v.op == "unflatten":
        return _unflattened(view, *v.inputs)
    return _rearranged(v) if v.op == "rearrange" else None


def _unflattened(view: View, x: Value, dim: Value, sizes: Value) -> Split | None:
    layout, place = _layout_of(elements(sizes)), from_end(view, x, dim)
    if place == -1 and layout:
        return Split(x, layout)
    unknown = place is None and type(dim.data) is int and dim.data > 0
    return Split(x, layout, int(str(dim.data)) + 1) if layout and unknown else None


def _viewed(view: View, x: Value, shape: list[Value | Sizes] | None) -> Split | None:
    if shape is None or len(shape) < 3 or not _leading(view, x, shape[:-2]):
        return None
    layout = _layout_of([s for s in shape[-2:] if isinstance(s, Value)])
    return Split(x, layout) if layout else None


def _layout_of(last: Sequence[Value]) -> str | None:
    if len(last) != 2:
        return None
    return PAIRS if is_const(last[1], 2) else HALVES if is_const(last[0], 2) else None


def _leading(view: View, x: Value, shape: Sequence[Value | Sizes]) -> bool:
    """Whether `shape` is that of `x` without its last dimension."""
    if len(shape) == 1 and isinstance(shape[0], Sizes):
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
    wanted = dimensions(view, only)
    if wanted is None:
        return False
    if len(wanted) == 1 and isinstance(wanted[0], Sizes):
        return wanted[0].less == 0 and same(view, wanted[0].of, x)
    *leading, last = wanted
    if not isinstance(last, Value) or not (
        _leading(view, x, leading) or _leading_of(view, stacked, len(leading), leading)
    ):
        return False
    return is_const(last, -1) or is_size(view, last, x, -1) or _product_of_last_two(view, stacked, last)


def _leading_of(view: View, stacked: Value, count: int, shape: Sequence[Value | Sizes]) -> bool:
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
