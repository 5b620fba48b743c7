"""Recognises which numbers of the program are sizes of tensors, and which shape the arguments of a view describe.

This file does not know what is computed with the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from autofuse.canonical.shapes import from_end
from autofuse.canonical.view import CAST, LEAF, PERMUTE, View, order_of, strip_casts
from autofuse.ir.graph import ATTRIBUTE, CONST, ITEM, SLICE, SYNTAX, TUPLE, Value, is_const


@dataclass(frozen=True)
class Sizes:
    """The sizes of the tensor `of` without the last `less`: `*x.shape[:-1]`."""

    of: Value
    less: int


def dimensions(view: View, shape: Value) -> list[Value | Sizes] | None:
    """List the sizes in the arguments of view: `(*x.shape[:-1], -1, 2)`, `x.shape[:-1] + (-1, 2)`, or separate sizes.

    Returns:
        The sizes, and parts of shapes; None if an argument is unknown.
    """
    found: list[Value | Sizes] = []
    for argument in shape.inputs:
        if argument.op == LEAF and isinstance(argument.data, Value) and argument.data.op == SYNTAX:
            starred = argument.data.data == "*"
            part = _sizes_in(view, view.of(argument.data.inputs[0])) if starred else None
        elif argument.op == TUPLE or len(shape.inputs) == 1:
            part = _sizes_in(view, argument)
        else:
            part = [argument]
        if part is None:
            return None
        found += part
    return found


def _sizes_in(view: View, v: Value) -> list[Value | Sizes] | None:
    """The sizes in a tuple, a shape, a slice of a shape, or a concatenation of these; None if unknown."""
    if v.op == TUPLE:
        return dimensions(view, v)
    if v.op == ATTRIBUTE and v.data == "shape" or v.op == "size" and is_const(v.inputs[1], None):
        return [Sizes(v.inputs[0], 0)]
    if v.op == ITEM and v.inputs[1].op == SLICE:
        owner, (start, stop, step) = _sizes_in(view, v.inputs[0]), v.inputs[1].inputs
        whole = owner is not None and len(owner) == 1 and isinstance(owner[0], Sizes) and owner[0].less == 0
        if not whole or not is_const(start, None, 0) or not is_const(step, None) or type(stop.data) is not int:
            return None
        assert owner is not None and isinstance(owner[0], Sizes)
        return [Sizes(owner[0].of, -stop.data)] if stop.data < 0 else None
    for original in view.originals(v) if v.op == "add" else ():  # the canonical sum has lost the order of the tuples
        sides = [_sizes_in(view, view.of(i)) for i in original.inputs[:2]]
        return [*sides[0], *sides[1]] if sides[0] is not None and sides[1] is not None else None
    return [v] if v.op != LEAF else None


def same_shape(view: View, a: Value, b: Value) -> bool:
    """Whether two values have the same shape, because they differ only in casts."""
    return _strip_cast(view, a) is _strip_cast(view, b)


def _strip_cast(view: View, v: Value) -> Value:
    if v.op == PERMUTE:
        return view.permuted(strip_casts(v.inputs[0]), order_of(v))
    return strip_casts(v)


def is_half(view: View, v: Value, x: Value) -> bool:
    """Whether `v` is half of the last size of `x`."""
    if v.op == "floordiv" and is_const(v.inputs[1], 2):
        return is_size(view, v.inputs[0], x, -1)
    number, known = v.data if v.op == CONST else None, lengths(view, x)
    return type(number) is int and known is not None and type(known[-1]) is int and known[-1] == 2 * number


def is_size(view: View, v: Value, x: Value, dim: int) -> bool:
    """Whether `v` is the size of dimension `dim` (from the end) of `x`."""
    own = lengths(view, x)
    expected = own[dim] if own is not None and -dim <= len(own) else None
    if v.op == CONST:
        return type(v.data) is int and v.data == expected
    counts = [view.facts.known[o].size for o in view.originals(v) if o in view.facts.known]
    if expected is not None and expected in counts:
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
    owner_sizes = lengths(view, owner)
    return (
        place == dim
        and same_shape(view, owner, x)
        or owner_sizes is not None
        and expected is not None
        and owner_sizes[place] == expected
    )


def ensures_size(view: View, v: Value, dim: int, number: int) -> bool:
    """Whether the front end ensures that dimension `dim` (from the end) of `v` has size `number`.

    It may add a guard to ensure it. Call this only if the size is not known otherwise.
    """
    return any(view.facts.ensures(o, dim, number) for o in view.originals(v))


def number_of_size(view: View, v: Value) -> int | None:
    """The value of `v`, if it is a size that the front end knows, such as the size of a parameter; else None."""
    found = size_query(v)
    place = from_end(view, found[0], view.const(found[1])) if found is not None and found[1] is not None else None
    known = lengths(view, found[0]) if found is not None and place is not None else None
    size = known[place] if known is not None and place is not None and -place <= len(known) else None
    return size if type(size) is int else None


def size_query(v: Value) -> tuple[Value, int | None] | None:
    """The tensor and the dimension whose size `v` is: (x, 0) for x.size(0), and (x, None) for x.shape; else None."""
    if _is_shape(v):
        return v.inputs[0], None
    owner, index = v.inputs if v.op == "size" else (v, v)
    if v.op == ITEM and _is_shape(v.inputs[0]):
        owner, index = v.inputs[0].inputs[0], v.inputs[1]
    return (owner, index.data) if owner is not v and index.op == CONST and type(index.data) is int else None


def whole_shape(view: View, sizes: tuple[Value, ...]) -> Value | None:
    """The tensor that has exactly the shape `sizes`, such as `N, C, H, W` or `x.shape`; None if there is none."""
    found = [size_query(s) for s in sizes]
    if not found or any(f is None for f in found):
        return None
    owners, places = {f[0] for f in found if f}, [f[1] for f in found if f]
    if len(owners) != 1:
        return None
    (owner,) = owners
    every = places == [None] or places == list(range(len(places))) and view.rank(owner) == len(places)
    return owner if every else None


def _is_shape(v: Value) -> bool:
    return v.op == ATTRIBUTE and v.data == "shape" or v.op == "size" and is_const(v.inputs[1], None)


def lengths(view: View, v: Value) -> tuple[object, ...] | None:
    """The sizes of `v` that the front end knows; None if it knows none. Equal entries are equal sizes."""
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
