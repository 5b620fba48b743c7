"""Recognises means, variances and norms in all spellings.

Introduces layer_norm(x, axes, eps) and rms_norm(x, axes, eps), without weight and bias. `axes` is -n for the last n
dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autofuse.canonical.arithmetic import PRODUCT_RECOGNISERS, SUM_RECOGNISERS, product, total, without
from autofuse.canonical.shapes import elements, from_end
from autofuse.canonical.sizes import ensures_size, is_size, lengths, number_of_size
from autofuse.canonical.view import CAST, View, literal, rewrites, strip_casts
from autofuse.ir.graph import ATTRIBUTE, CONST, ITEM, SLICE, TUPLE, Value, is_const


def _register_reduction(op: str) -> None:
    @rewrites(op)
    def _count_dim_from_end(view: View, x: Value, dim: Value, keepdim: Value) -> Value | None:
        last = _single_dimension(view, x, dim)
        return view.make(op, x, last, keepdim) if last is not None and last is not dim else None


for _op in ("mean", "sum", "amax", "amin", "prod", "all", "any", "max", "logsumexp"):
    _register_reduction(_op)


@rewrites("var")
def _var(view: View, x: Value, dim: Value, unbiased: Value, keepdim: Value) -> Value | None:
    """The biased variance is the mean of squared deviations. The unbiased variance is not simplified."""
    if not is_const(unbiased, False, 0):
        return None
    centred = total(view, (x, product(view, (view.make("mean", x, dim, view.const(True)), view.const(-1)))))
    return view.make("mean", view.make("square", centred), dim, keepdim)


@rewrites("std")
def _std(view: View, x: Value, dim: Value, unbiased: Value, keepdim: Value) -> Value | None:
    return view.make("sqrt", view.make("var", x, dim, unbiased, keepdim)) if is_const(unbiased, False, 0) else None


@rewrites("var_mean")
def _var_mean(view: View, x: Value, dim: Value, unbiased: Value, keepdim: Value) -> Value:
    return view.plain(TUPLE, view.make("var", x, dim, unbiased, keepdim), view.make("mean", x, dim, keepdim))


def _mean_by_hand(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Recognise sum(x, -1) / x.size(-1) as a mean."""
    for found in factors:
        if found.op != "sum" or not is_const(found.inputs[1], -1):
            continue
        length = next(
            (f for f in factors if f.op == "reciprocal" and _is_length(view, f.inputs[0], found.inputs[0])), None
        )
        rest = without(factors, (found, length)) if length else None
        if rest is not None:
            return [view.make("mean", *found.inputs), *rest], constant
        if _divides_by_length(view, found.inputs[0], constant):
            return [view.make("mean", *found.inputs), *(without(factors, (found,)) or [])], 1
    return None


def _is_length(view: View, v: Value, x: Value) -> bool:
    """Whether `v` is the last size of `x`: x.size(-1), x.shape[-1], or float() of it.

    The size may be that of another tensor, if `x` is computed from it elementwise.
    """
    v = v.inputs[0] if v.op == "number" else v
    if any(is_size(view, v, y, -1) for y in _values_with_same_last_size(view, x)):
        return True
    number = number_of_size(view, v)
    return number is not None and _has_length(view, x, number)


def _divides_by_length(view: View, x: Value, factor: float) -> bool:
    """Whether `factor` is one over the last size of `x`. The size is known, or the front end ensures it."""
    known = _known_length(view, x)
    if known:
        return math.isclose(factor * known, 1)
    # The program divides by a number. It is a mean if the last size is that number.
    number = round(1 / factor) if 1e-15 < factor <= 1 else 0
    return number > 1 and math.isclose(factor * number, 1) and _has_length(view, x, number)


def _has_length(view: View, x: Value, number: int) -> bool:
    return any(ensures_size(view, y, -1, number) for y in _values_with_same_last_size(view, x))


def _known_length(view: View, x: Value) -> int | None:
    """The last size of `x` as a number; None if unknown."""
    found = (known[-1] for y in _values_with_same_last_size(view, x) if (known := lengths(view, y)))
    return next((n for n in found if type(n) is int), None)


def _values_with_same_last_size(view: View, x: Value) -> Iterator[Value]:
    """Yield `x`, and the operands from which it has its last size: x in x ** 2, in 2 * x, in x - mean(x, -1, True)."""
    yield x
    if x.op in (CAST, "square"):
        yield from _values_with_same_last_size(view, x.inputs[0])
    if x.op in ("mul", "add"):
        wide = [i for i in x.inputs if not view.number(i) and not _has_last_size_one(i)]
        if len(wide) == 1:
            yield from _values_with_same_last_size(view, wide[0])


def _has_last_size_one(v: Value) -> bool:
    """Whether the last size of `v` is 1: a reduction with keepdim=True, or an elementwise function of one."""
    v = strip_casts(v)
    if v.op in ("mean", "sum", "amax", "amin"):
        return is_const(v.inputs[1], -1) and is_const(v.inputs[2], True)
    if v.op == "mul":
        return literal(v.inputs[-1]) is not None and len(v.inputs) == 2 and _has_last_size_one(v.inputs[0])
    return v.op in ("sqrt", "rsqrt", "square", "reciprocal") and _has_last_size_one(v.inputs[0])


@rewrites("norm", "vector_norm")
def _vector_norm(view: View, x: Value, order: Value, dim: Value, keepdim: Value, dtype: Value) -> Value | None:
    """The Euclidean norm is the square root of the sum of squares."""
    # Without a dimension, it is the norm of all entries. That is no statistic of a row.
    if not is_const(order, 2, 2.0, "fro", None) or is_const(dim, None) or not is_const(dtype, None):
        return None
    return view.make("sqrt", view.make("sum", view.make("square", x), dim, keepdim))


def _variance_by_hand(view: View, terms: list[Value], constant: float) -> Value | None:
    """Recognise mean(x ** 2) - mean(x) ** 2 as a variance, and record that the program computes this difference."""
    if constant or len(terms) != 2:
        return None
    for squares, square in (terms, terms[::-1]):
        mean = square.inputs[0].inputs[0] if _negated_square(square) else None
        if (
            mean is not None
            and mean.op == squares.op == "mean"
            and squares.inputs[0].op == "square"
            and squares.inputs[0].inputs[0] is mean.inputs[0]
            and squares.inputs[1:] == mean.inputs[1:]
        ):
            made = view.make("var", mean.inputs[0], mean.inputs[1], view.const(False), mean.inputs[2])
            view.differences.add(made)
            return made
    return None


def _negated_square(v: Value) -> bool:
    return v.op == "mul" and len(v.inputs) == 2 and v.inputs[0].op == "square" and literal(v.inputs[1]) == -1


# Layer norm and RMS norm.


def _norm_by_hand(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Recognise (x - mean(x)) * rsqrt(var(x) + eps) and x * rsqrt(mean(x ** 2) + eps) among `factors`."""
    for root in factors:
        if (without_eps := _norm_and_root(view, factors, constant, root)) is not None:
            return without_eps
        found = _squares_and_eps(view, root, factors)
        if found is None:
            continue
        squared, eps = found
        for operand in _factors_equal_to(factors, squared):
            rest = without(factors, (root, *operand))
            if rest is not None:
                return [*rest, _norm(view, squared, eps)], constant
    return None


def _norm_and_root(view: View, factors: list[Value], constant: float, root: Value) -> tuple[list[Value], float] | None:
    """Recognise x / norm(x) * sqrt(x.size(-1)) as an RMS norm with eps 0."""
    total_of = strip_casts(root).inputs[0] if strip_casts(root).op == "rsqrt" else None
    if total_of is None or strip_casts(total_of).op != "sum" or not _keeps_last(strip_casts(total_of)):
        return None
    squares = strip_casts(strip_casts(total_of).inputs[0])
    if squares.op != "square":
        return None
    width = next((f for f in factors if _is_root_of_length(view, f, squares)), None)
    known = None if width else _known_length(view, squares)
    if width is None and not (known and math.isclose(constant, math.sqrt(known))):
        return None
    for operand in _factors_equal_to(factors, squares.inputs[0]):
        rest = without(factors, (root, *operand, *([width] if width else [])))
        if rest is not None:
            return [*rest, _norm(view, squares.inputs[0], view.const(0.0))], constant if width else 1
    return None


def _keeps_last(reduction: Value) -> bool:
    return is_const(reduction.inputs[1], -1) and is_const(reduction.inputs[2], True)


def _is_root_of_length(view: View, v: Value, x: Value) -> bool:
    """Whether `v` is sqrt(x.size(-1)) or x.shape[-1] ** 0.5."""
    if v.op in ("pow", "number_pow") and is_const(v.inputs[1], 0.5) or v.op in ("number_sqrt", "sqrt"):
        size = v.inputs[0].inputs[0] if v.inputs[0].op == "number" else v.inputs[0]
        return _is_length(view, size, x)
    return False


def _squares_and_eps(view: View, root: Value, factors: list[Value]) -> tuple[Value, Value] | None:
    """(y, eps), if `root` is rsqrt(mean(y ** 2, -1, keepdim=True) + eps); else None. A missing eps is 0."""
    root = strip_casts(root)
    if root.op != "rsqrt":
        return None
    terms = root.inputs[0].inputs if root.inputs[0].op == "add" else (root.inputs[0],)
    means = {t: mean for t in terms if (mean := _mean_in(view, t, factors)) is not None}
    if len(means) != 1:
        return None
    ((term, mean),) = means.items()
    squares, dim, keepdim = mean.inputs
    if strip_casts(squares).op != "square" or not is_const(dim, -1) or not is_const(keepdim, True):
        return None
    rest = [t for t in terms if t is not term]
    return strip_casts(squares).inputs[0], total(view, rest) if rest else view.const(0.0)


def _mean_in(view: View, term: Value, factors: list[Value]) -> Value | None:
    """`term` as a mean; else None. sum(x, -1) / n is a mean too, if one of `factors` is a weight with n entries."""
    term = strip_casts(term)
    if term.op == "mean":
        return term
    if term.op != "mul" or len(term.inputs) != 2 or term.inputs[0].op != "sum" or term.inputs[1].op != "reciprocal":
        return None
    found, length = term.inputs[0], term.inputs[1].inputs[0]
    weighed = any(view.rank(w) == 1 and is_size(view, length, w, -1) for w in factors)
    return view.make("mean", *found.inputs) if weighed else None


def _factors_equal_to(factors: list[Value], value: Value) -> list[tuple[Value, ...]]:
    """Each group of factors whose product is `value`, apart from casts."""
    # Products are flattened, so the factors of `value` may be among the others one by one.
    found: list[tuple[Value, ...]] = [(f,) for f in factors if strip_casts(f) is strip_casts(value)]
    return [*found, strip_casts(value).inputs] if strip_casts(value).op == "mul" else found


def _norm(view: View, squared: Value, eps: Value) -> Value:
    x = _operand_of_centering(squared)
    op, operand = ("rms_norm", squared) if x is None else ("layer_norm", x)
    return view.plain(op, operand, view.const(-1), eps)


def _operand_of_centering(v: Value) -> Value | None:
    """x, if `v` is x - mean(x, -1, keepdim=True); else None."""
    if v.op != "add":
        return None
    for term in v.inputs:
        if term.op != "mul" or len(term.inputs) != 2 or literal(term.inputs[1]) != -1:
            continue
        mean = strip_casts(term.inputs[0])
        if mean.op != "mean" or not is_const(mean.inputs[1], -1) or not is_const(mean.inputs[2], True):
            continue
        rest = without(v.inputs, (term,))
        of = mean.inputs[0]
        if rest is not None and (rest == [of] or of.op == "add" and set(rest) == set(of.inputs)):
            return of
    return None


@rewrites("layer_norm")
def _layer_norm(view: View, x: Value, shape: Value, weight: Value, bias: Value, eps: Value) -> Value:
    """Express torch's layer norm as the norm without weight and bias, a product and a sum."""
    normed = view.plain("layer_norm", x, _axes(view, shape), eps)
    return _apply_weight_and_bias(view, normed, weight, bias)


@rewrites("rms_norm")
def _rms_norm(view: View, x: Value, shape: Value, weight: Value, eps: Value) -> Value:
    return _apply_weight_and_bias(view, view.plain("rms_norm", x, _axes(view, shape), eps), weight, view.const(None))


@rewrites("fused_layer_norm")
def _fused_layer_norm(view: View, x: Value, weight: Value, bias: Value, eps: Value) -> Value:
    return _apply_weight_and_bias(view, view.plain("layer_norm", x, view.const(-1), eps), weight, bias)


@rewrites("fused_rms_norm")
def _fused_rms_norm(view: View, x: Value, weight: Value, eps: Value) -> Value:
    return _apply_weight_and_bias(view, view.plain("rms_norm", x, view.const(-1), eps), weight, view.const(None))


def _apply_weight_and_bias(view: View, normed: Value, weight: Value, bias: Value) -> Value:
    scaled = normed if is_const(weight, None) else product(view, (normed, weight))
    return scaled if is_const(bias, None) else total(view, (scaled, bias))


def _axes(view: View, shape: Value) -> Value:
    """-n, if `shape` is known to have n elements, so that the norm is over n dimensions; else `shape` itself."""
    if shape.op == CONST and isinstance(shape.data, tuple):
        return view.const(-len(shape.data))
    if shape.op == TUPLE:
        return view.const(-len(shape.inputs))
    if shape.op == CONST or view.number(shape) or _is_last_of_shape(shape):
        return view.const(-1)
    return shape


def _is_last_of_shape(v: Value) -> bool:
    """Whether `v` is x.shape[-1:] or x.size()[-1:]."""
    if v.op != ITEM or v.inputs[1].op != SLICE or not is_const(v.inputs[1].inputs[0], -1):
        return False
    owner = v.inputs[0]
    return owner.op == ATTRIBUTE and owner.data == "shape" or owner.op == "size" and is_const(owner.inputs[1], None)


def _single_dimension(view: View, x: Value, dim: Value) -> Value | None:
    """The single dimension in `dim`, counted from the end; None if unknown."""
    if dim.op == TUPLE:
        inner = elements(dim)
        return _single_dimension(view, x, inner[0]) or inner[0] if len(inner) == 1 else None
    place = from_end(view, x, dim)
    return None if place is None else view.const(place)


PRODUCT_RECOGNISERS += [_mean_by_hand, _norm_by_hand]
SUM_RECOGNISERS.append(_variance_by_hand)
