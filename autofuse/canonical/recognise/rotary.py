"""Recognises rotary position embeddings as one operation: rotation(x, cos, sin).

A pair (a, b) of entries of `x` becomes (a * cos - b * sin, b * cos + a * sin). The pairs are entry i of each half of
the last dimension, or entries 2i and 2i + 1. Authors write it with the rotated vector (-b, a), elementwise, or as a
product of complex numbers. Source: Su et al., arXiv:2104.09864. rotary_pairs.py recognises the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.canonical.arithmetic import SUM_RECOGNISERS, factors_of, product, terms_of, without
from autofuse.canonical.recognise.rotary_pairs import HALVES, PAIRS, Part, merges_last_two, part_of, split_in_two
from autofuse.canonical.shapes import elements, from_end
from autofuse.canonical.view import CAST, View, rewrites
from autofuse.ir.graph import ATTRIBUTE, TUPLE, Value, is_const

ROTATED = "rotated"  # (-b, a) for each pair; inputs: x; data: the layout
ROTATION = "rotation"  # inputs: x, cos, sin; data: the layout
_STACKED = "stacked"  # inputs: the first and second entries of all pairs, stacked in a new last dimension
_COMPLEX = "complex_pairs"  # a + bi for each pair; inputs: x; data: the layout


@rewrites("fused_rotary")
def _fused_rotary(view: View, x: Value, cos: Value, sin: Value, interleaved: Value) -> Value | None:
    if not is_const(interleaved, True, False):
        return None
    return view.plain(ROTATION, x, cos, sin, data=PAIRS if interleaved.data is True else HALVES)


@rewrites("cat")
def _cat(view: View, tensors: Value, dim: Value) -> Value | None:
    """The concatenation of two halves."""
    parts = elements(tensors) if tensors.op == TUPLE else ()
    if len(parts) != 2:
        return None
    x = _whole_or_first_part(view, parts)
    place = -1 if _is_last(view, dim, x) else from_end(view, x, dim)
    if place is None and type(dim.data) is int and dim.data > 0:
        return _assume_rank(view, _join_entries(view, parts[0], parts[1], HALVES), dim.data + 1)
    return _join_entries(view, parts[0], parts[1], HALVES) if place == -1 else None


def _is_last(view: View, dim: Value, x: Value) -> bool:
    """Whether `dim` is `part.dim() - 1` for a part of `x`."""
    if dim.op != "add" or len(dim.inputs) != 2 or not is_const(dim.inputs[1], -1):
        return False
    count = dim.inputs[0]
    read = count.op == "dim" or count.op == ATTRIBUTE and count.data == "ndim"
    part = part_of(view, count.inputs[0]) if read else None
    return part is not None and part.of is x


def _assume_rank(view: View, v: Value | None, rank: int | None) -> Value | None:
    """`v` with the assumption that it has `rank` dimensions."""
    if v is None or rank is None:
        return v
    return _add_assumption(view, v, f"assumes that the rotated tensor has {rank} dimensions")


def _add_assumption(view: View, v: Value, why: str) -> Value:
    """`v` with one more assumption."""
    known = view.assumption(v)
    return v if why in known else view.with_assumption(v, f"{known}; {why}" if known else why)


@rewrites("stack")
def _stack(view: View, tensors: Value, dim: Value) -> Value | None:
    """The two entries of each pair, stacked in a new last dimension. A later view makes them neighbours."""
    parts = elements(tensors) if tensors.op == TUPLE else ()
    if len(parts) != 2:
        return None
    rank = view.rank(_whole_or_first_part(view, parts))
    last = is_const(dim, -1) or rank is not None and dim.data == rank
    return view.plain(_STACKED, *parts) if last else None


def _whole_or_first_part(view: View, parts: Sequence[Value]) -> Value:
    """A value with the rank of `parts`: the value that they are parts of, if it is known; else the first part."""
    for term in (t for p in parts for t in terms_of(p)):
        for factor in factors_of(term):
            if (part := part_of(view, factor)) is not None:
                return part.of
    return parts[0]


@rewrites("view_as_complex")
def _view_as_complex(view: View, x: Value) -> Value | None:
    found = split_in_two(view, x)
    if found is None or found.layout != PAIRS:
        return None
    return _assume_rank(view, view.plain(_COMPLEX, found.of, data=PAIRS), found.rank)


@rewrites("complex")
def _complex(view: View, real: Value, imag: Value) -> Value | None:
    a, b = part_of(view, real), part_of(view, imag)
    if a is None or b is None or (a.of, a.layout) != (b.of, b.layout) or (a.which, b.which) != (0, 1):
        return None
    return _assume_rank(view, view.plain(_COMPLEX, a.of, data=a.layout), a.rank)


@rewrites("view_as_real")
def _view_as_real(view: View, x: Value) -> Value | None:
    """Pairs that are rotated by a complex product."""
    found = _complex_rotation(view, x)
    return view.plain(_STACKED, found) if found is not None and found.data == PAIRS else None


def _complex_rotation(view: View, x: Value) -> Value | None:
    """rotation(y, f.real, f.imag), if `x` is the product of f and the pairs of y as complex numbers; else None."""
    numbers = [f for f in factors_of(x) if f.op == _COMPLEX]
    rest = without(factors_of(x), numbers[:1]) if len(numbers) == 1 else None
    if not rest:
        return None
    factor = product(view, rest)
    known = {view.facts.known[o].dtype for o in view.originals(factor) if o in view.facts.known} - {None}
    if any(not str(dtype).startswith("torch.complex") for dtype in known):
        return None
    real, imag = view.plain("real", factor), view.plain("imag", factor)
    made = view.plain(ROTATION, numbers[0].inputs[0], real, imag, data=numbers[0].data)
    made = view.with_assumption(made, view.assumption(numbers[0]))
    return made if known else _add_assumption(view, made, "assumes that the factor is complex")


# Both entries of each pair.


@rewrites("flatten")
def _flatten(view: View, x: Value, start: Value, end: Value) -> Value | None:
    two = type(start.data) is int and start.data >= 0 and is_const(end, start.data + 1)
    if x.op != _STACKED or not two and not is_const(end, -1):
        return None
    merged = _merge_last_two(view, x)
    if is_const(start, -2) or merged is None:
        return merged
    rank = view.rank(merged.inputs[0])
    if rank is not None:
        return merged if is_const(start, rank - 1) else None
    if type(start.data) is not int or start.data < 0:
        return None
    return _assume_rank(view, merged, start.data + 1)


@rewrites("view", "view_as", "rearrange")
def _merge_stacked_pairs(view: View, x: Value, *shape: Value) -> Value | None:
    if x.op != _STACKED:
        return None
    merged = _merge_last_two(view, x)
    return merged if merged is not None and merges_last_two(view, x, merged.inputs[0], shape) else None


def _merge_last_two(view: View, stacked: Value) -> Value | None:
    """The value after the last two dimensions of `stacked` are merged; None if that is no rotation."""
    if len(stacked.inputs) == 1:
        return stacked.inputs[0]
    first, second = stacked.inputs
    return _join_entries(view, first, second, PAIRS)


def _join_entries(view: View, first: Value, second: Value, layout: str) -> Value | None:
    """The rotated vector, or the rotation, with these first and second entries of all pairs; None if it is neither."""
    return _rotated_vector(view, first, second, layout) or _rotation_of_parts(view, first, second, layout)


def _rotated_vector(view: View, first: Value, second: Value, layout: str) -> Value | None:
    """Recognise (-b, a) and its negative (b, -a)."""
    for negated, plain, which, sign in ((first, second, 0, 1), (second, first, 1, -1)):
        other = part_of(view, product(view, (negated, view.const(-1))))
        own = part_of(view, plain)
        if own is None or other is None or not own.belongs_to(other) or own.layout != layout:
            continue
        if own.which == which and other.which == 1 - which:
            made = _assume_rank(view, view.plain(ROTATED, own.of, data=layout), own.rank)
            assert made is not None
            return made if sign == 1 else product(view, (made, view.const(-1)))
    return None


def _rotation_of_parts(view: View, first: Value, second: Value, layout: str) -> Value | None:
    """Recognise (a * cos - b * sin, b * cos + a * sin)."""
    if not first.op == second.op == "add" or not len(first.inputs) == len(second.inputs) == 2:
        return None
    for a_cos, b_sin in (first.inputs, first.inputs[::-1]):
        for b_cos, a_sin in (second.inputs, second.inputs[::-1]):
            found = _factors_of_parts(view, (a_cos, b_sin, b_cos, a_sin), layout)
            if found is None:
                continue
            part, (cos, minus_sin, other_cos, sin) = found
            if cos is other_cos and minus_sin is product(view, (sin, view.const(-1))):
                return _assume_rank(view, view.plain(ROTATION, part.of, cos, sin, data=layout), part.rank)
    return None


def _factors_of_parts(view: View, terms: Sequence[Value], layout: str) -> tuple[Part, list[Value]] | None:
    """The first entries, and the factors in `terms` of the first, second, second and first entries; None if none."""
    first: Part | None = None
    others: list[Value] = []
    for term, which in zip(terms, (0, 1, 1, 0), strict=True):
        found = _part_and_rest(view, term, which, layout, first)
        if found is None:
            return None
        first = first or found[0]
        others.append(found[1])
    assert first is not None
    return first, others


def _part_and_rest(view: View, term: Value, which: int, layout: str, first: Part | None) -> tuple[Part, Value] | None:
    factors = factors_of(term)
    for factor in factors:
        part = part_of(view, factor)
        if part is None or (part.which, part.layout) != (which, layout) or first and not part.belongs_to(first):
            continue
        rest = without(factors, (factor,))
        if rest:
            return part, product(view, rest)
    return None


# The whole vector and the rotated one.


def _rotation(view: View, terms: list[Value], constant: float) -> Value | None:
    """Recognise x * cos + rotated(x) * sin."""
    if constant or len(terms) != 2:
        return None
    for sin_term, cos_term in (terms, terms[::-1]):
        for factor in factors_of(sin_term):
            rotated = _as_rotated(view, factor)
            sin = without(factors_of(sin_term), (factor,)) if rotated is not None else None
            if rotated is None or not sin:
                continue
            x = rotated.inputs[0]
            cos = without(factors_of(cos_term), factors_of(x))
            if cos:
                made = view.plain(ROTATION, x, product(view, cos), product(view, sin), data=rotated.data)
                return view.with_assumption(made, view.assumption(rotated))
    return None


def _as_rotated(view: View, v: Value) -> Value | None:
    """`v` as a rotated vector; else None. A cast after the rotation becomes a cast before it."""
    if v.op == CAST and v.inputs[0].op == ROTATED:
        inner = v.inputs[0]
        cast = view.plain(ROTATED, view.make(CAST, inner.inputs[0]), data=inner.data)
        return view.with_assumption(cast, view.assumption(inner))
    return v if v.op == ROTATED else None


SUM_RECOGNISERS.append(_rotation)
