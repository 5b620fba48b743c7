"""Recognises the two halves of a last dimension, and its neighbouring pairs.

The spellings are `x.chunk(2, -1)`, slices to and from the middle, every second entry, and views with a dimension of
size 2 for the pairs. This file knows which entries of which value a part contains. It knows no arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autofuse.canonical.shapes import elements, from_end
from autofuse.canonical.sizes import Sizes, dimensions, is_half, is_size, lengths, same_shape
from autofuse.canonical.view import CAST, View
from autofuse.ir.graph import CONST, ITEM, SLICE, TUPLE, Value, is_const

HALVES = "halves"  # a pair is entry i of each half
PAIRS = "pairs"  # a pair is entries 2i and 2i + 1


@dataclass(frozen=True)
class Part:
    """The first or second entries of all pairs of a value.

    Attributes:
        of: the value.
        layout: HALVES or PAIRS.
        which: 0 for the first entries, 1 for the second.
        rank: the number of dimensions that `of` must have; None: any.
    """

    of: Value
    layout: str
    which: int
    rank: int | None = None

    def belongs_to(self, other: Part) -> bool:
        """Whether both are parts of the same value, in the same layout."""
        return self.of is other.of and self.layout == other.layout


@dataclass(frozen=True)
class Split:
    """A value whose last dimension of size d is split into (2, d / 2) for halves or (d / 2, 2) for pairs.

    Attributes:
        of: the value before the split.
        layout: HALVES or PAIRS.
        rank: the number of dimensions that `of` must have; None: any.
    """

    of: Value
    layout: str
    rank: int | None = None

    @property
    def dim(self) -> int:
        """The dimension of size 2."""
        return -2 if self.layout == HALVES else -1


def part_of(view: View, v: Value) -> Part | None:
    """`v` as a part of a value; None if it is none. A cast of a part becomes a part of a cast."""
    if v.op == CAST:
        inner = part_of(view, v.inputs[0])
        return replace(inner, of=view.make(CAST, inner.of)) if inner else None
    if v.op == "select":
        return _selected_part(view, *v.inputs)
    if v.op != ITEM:
        return None
    container, index = v.inputs
    if container.op in ("chunk", "split", "unbind"):
        return _element_part(view, container, index)
    return _indexed_part(view, container, index.inputs if index.op == TUPLE else (index,))


def _element_part(view: View, parts: Value, index: Value) -> Part | None:
    """An element of the result of chunk, split or unbind."""
    which = index.data
    x, dim = parts.inputs[0], from_end(view, parts.inputs[0], parts.inputs[-1])
    if type(which) is not int or which not in (0, 1, -1, -2):
        return None
    if parts.op == "unbind":
        found = split_in_two(view, x)
        return Part(found.of, found.layout, which % 2, found.rank) if found and found.dim == dim else None
    if dim != -1 or not _has_two_halves(view, parts):
        return None
    return Part(x, HALVES, which % 2)


def _has_two_halves(view: View, parts: Value) -> bool:
    """Whether chunk or split returns two parts of the same size."""
    x, how = parts.inputs[:2]
    if parts.op == "chunk":
        return is_const(how, 2)
    if how.op == TUPLE:
        return len(how.inputs) == 2 and (how.inputs[0] is how.inputs[1] or all(is_half(view, n, x) for n in how.inputs))
    return is_half(view, how, x)


def _selected_part(view: View, x: Value, dim: Value, index: Value) -> Part | None:
    found = split_in_two(view, x)
    if found is None or from_end(view, x, dim) != found.dim or index.data not in (0, 1, -1, -2):
        return None
    return Part(found.of, found.layout, int(str(index.data)) % 2, found.rank)


def _indexed_part(view: View, x: Value, index: Sequence[Value]) -> Part | None:
    """The part that an index selects: x[..., :half], x[..., ::2], or [..., 0] of a split value."""
    last = index[-1]
    if not _indexes_only_last(view, x, index):
        return _entry_of_split(view, x, index)
    if last.op != SLICE:
        return _entry_of_split(view, x, index)
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


def _indexes_only_last(view: View, x: Value, index: Sequence[Value]) -> bool:
    """Whether an index selects only in the last dimension, as far as the rank is known."""
    if len(index) == 2 and is_const(index[0], ...):
        return True
    return len(index) > 1 and all(map(_is_full, index[:-1])) and view.rank(x) in (len(index), None)


def _is_full(index: Value) -> bool:
    return index.op == SLICE and all(is_const(i, None) for i in index.inputs)


def _entry_of_split(view: View, x: Value, index: Sequence[Value]) -> Part | None:
    found = split_in_two(view, x)
    if found is None or len(index) < 2:
        return None
    kept = -1 - found.dim  # the number of dimensions after the dimension of size 2
    which, before, after = index[len(index) - 1 - kept], index[: len(index) - 1 - kept], index[len(index) - kept :]
    rank = view.rank(x)
    whole = len(before) == 1 and is_const(before[0], ...)
    whole = whole or all(map(_is_full, before)) and rank == len(index)
    if not whole or not all(map(_is_full, after)) or which.op != CONST or which.data not in (0, 1, -1, -2):
        return None
    return Part(found.of, found.layout, int(str(which.data)) % 2, found.rank)


# Views with a dimension of size 2 for the entries of a pair.


def split_in_two(view: View, v: Value) -> Split | None:
    """The value whose last dimension `v` splits into two, one of size 2; None if it does not."""
    if v.op == CAST:
        inner = split_in_two(view, v.inputs[0])
        return replace(inner, of=view.make(CAST, inner.of)) if inner else None
    if v.op == "view":
        return _split_by_view(view, v.inputs[0], dimensions(view, v.inputs[1]))
    if v.op == "unflatten":
        return _split_by_unflatten(view, *v.inputs)
    return _split_by_rearrange(v) if v.op == "rearrange" else None


def _split_by_unflatten(view: View, x: Value, dim: Value, sizes: Value) -> Split | None:
    layout, place = _layout_of(elements(sizes)), from_end(view, x, dim)
    if place == -1 and layout:
        return Split(x, layout)
    unknown = place is None and type(dim.data) is int and dim.data > 0
    return Split(x, layout, int(str(dim.data)) + 1) if layout and unknown else None


def _split_by_view(view: View, x: Value, shape: list[Value | Sizes] | None) -> Split | None:
    if shape is None or len(shape) < 3 or not _is_leading(view, x, shape[:-2]):
        return None
    layout = _layout_of([s for s in shape[-2:] if isinstance(s, Value)])
    return Split(x, layout) if layout else None


def _layout_of(last: Sequence[Value]) -> str | None:
    if len(last) != 2:
        return None
    return PAIRS if is_const(last[1], 2) else HALVES if is_const(last[0], 2) else None


def _is_leading(view: View, x: Value, shape: Sequence[Value | Sizes]) -> bool:
    """Whether `shape` is the shape of `x` without the last dimension."""
    if len(shape) == 1 and isinstance(shape[0], Sizes):
        return shape[0].less == 1 and same_shape(view, shape[0].of, x)
    sizes = [s for s in shape if isinstance(s, Value)]
    if len(sizes) != len(shape) or view.rank(x) != len(shape) + 1:
        return False
    unknown = [i for i, s in enumerate(sizes) if not is_size(view, s, x, i - len(shape) - 1)]
    return not unknown


def merges_last_two(view: View, stacked: Value, x: Value, shape: Sequence[Value]) -> bool:
    """Whether view, view_as or rearrange with arguments `shape` gives the stacked pairs of `x` the shape of `x`."""
    if len(shape) == 2:
        return _is_merging(str(shape[0].data))
    (only,) = shape
    if only.op != TUPLE:
        return same_shape(view, only, x) or _has_equal_sizes(view, only, x)  # view_as(x)
    sizes = dimensions(view, only)
    if sizes is None:
        return False
    if len(sizes) == 1 and isinstance(sizes[0], Sizes):
        return sizes[0].less == 0 and same_shape(view, sizes[0].of, x)
    *leading, last = sizes
    if not isinstance(last, Value) or not (
        _is_leading(view, x, leading) or _is_leading_of_stacked(view, stacked, len(leading), leading)
    ):
        return False
    return is_const(last, -1) or is_size(view, last, x, -1) or _is_product_of_last_two(view, stacked, last)


def _is_leading_of_stacked(view: View, stacked: Value, count: int, shape: Sequence[Value | Sizes]) -> bool:
    """Whether `shape` is the shape of `stacked` without the last two dimensions."""
    if view.rank(stacked) != count + 2:
        return False
    return all(isinstance(s, Value) and is_size(view, s, stacked, i - count - 2) for i, s in enumerate(shape))


def _is_product_of_last_two(view: View, stacked: Value, v: Value) -> bool:
    if v.op != "mul" or len(v.inputs) != 2:
        return False
    return any(is_size(view, a, stacked, -2) and is_size(view, b, stacked, -1) for a, b in (v.inputs, v.inputs[::-1]))


def _has_equal_sizes(view: View, a: Value, b: Value) -> bool:
    one, other = lengths(view, a), lengths(view, b)
    return one is not None and one == other and None not in one


def _split_by_rearrange(v: Value) -> Split | None:
    """einops.rearrange with the pattern `... (d two) -> ... d two`, in which one of the sizes is 2."""
    x, pattern, axes = v.inputs
    words = _split_pattern(str(pattern.data))
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


def _is_merging(pattern: str) -> bool:
    words = _split_pattern(pattern)
    if words is None or len(words[0]) < 2:
        return False
    *kept, first, second = words[0]
    return words[1] == [*kept, f"{first} {second}"] and not any(" " in w for w in words[0])


def _split_pattern(pattern: str) -> tuple[list[str], list[str]] | None:
    """The axes of both sides of a pattern. A group in parentheses is one axis, with a space between its parts."""
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
