"""The canonical form of products and sums, in which every order of evaluation is the same.

A product is flat. It lists tensors, then numbers that are not literals, then one literal. Tensors and numbers are in
the order of their first occurrence. A sum does the same. A quotient is a product with a reciprocal, and a difference is
a sum with a factor of -1. This file knows no layout, mask or dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autofuse.canonical.view import PERMUTE, View, literal, order_of, rewrites
from autofuse.ir.graph import Value, is_const
from autofuse.ir.numbers import power_of, product_of, total_of

# Functions (view, factors, literal) -> the same product with a recognised part, or None. Other files add theirs.
PRODUCT_RECOGNISERS: list[Callable[[View, list[Value], float], tuple[list[Value], float] | None]] = []
# Functions (view, terms, literal) -> the recognised sum, or None. Other files add theirs.
SUM_RECOGNISERS: list[Callable[[View, list[Value], float], Value | None]] = []

_ROOTS = {"sqrt": "rsqrt", "rsqrt": "sqrt"}
_MOST_PARTS = 24  # a longer product is one factor of the next one; otherwise, a chain of n would take n * n steps


@rewrites("mul")
def _mul(view: View, *factors: Value) -> Value:
    return product(view, factors)


@rewrites("div")
def _div(view: View, x: Value, by: Value) -> Value:
    return product(view, (x, view.make("reciprocal", by)))


@rewrites("neg")
def _neg(view: View, x: Value) -> Value:
    return product(view, (x, view.const(-1)))


@rewrites("add")
def _add(view: View, *terms: Value) -> Value | None:
    if len(terms) == 3:  # torch.add(a, b, alpha=c)
        return total(view, (terms[0], product(view, terms[1:])))
    return total(view, terms)


@rewrites("addcmul")
def _addcmul(view: View, x: Value, first: Value, second: Value, value: Value) -> Value:
    return total(view, (x, product(view, (first, second, value))))


@rewrites("sub")
def _sub(view: View, x: Value, y: Value, alpha: Value | None = None) -> Value:
    return total(view, (x, product(view, (y, alpha or view.const(1), view.const(-1)))))


@rewrites("rsub")
def _rsub(view: View, x: Value, y: Value) -> Value:
    return total(view, (y, product(view, (x, view.const(-1)))))


def product(view: View, factors: Sequence[Value]) -> Value:
    """The canonical product of canonical factors."""
    if len(factors) == 2 and factors[0] is factors[1] and not view.number(factors[0]):
        return view.make("square", factors[0])
    flat = [g for f in factors for g in factors_of(f)]
    constant = product_of(c for f in flat if (c := literal(f)) is not None)
    if constant is None:
        return view.plain("mul", *sorted(flat, key=_order_key))
    rest = [f for f in flat if literal(f) is None]
    tensors = sorted(powers(view, [f for f in rest if not view.number(f)]), key=_order_key)
    numbers = sorted((f for f in rest if view.number(f)), key=_order_key)
    if len(tensors) == 1 and tensors[0].op == PERMUTE and (numbers or constant != 1):
        inner = product(view, [tensors[0].inputs[0], *numbers, view.const(constant)])
        return view.permuted(inner, order_of(tensors[0]))
    if len(tensors) == 1 and (numbers or constant != 1) and _is_biased_scores(tensors[0]):
        return total(view, [product(view, (t, *numbers, view.const(constant))) for t in tensors[0].inputs])
    items = [*tensors, *numbers]
    for recognise in PRODUCT_RECOGNISERS:
        found = recognise(view, items, constant)
        if found is not None:
            return product(view, [*found[0], view.const(found[1])])
    return _with_literal(view, "mul", items, constant, 1)


def _is_biased_scores(v: Value) -> bool:
    """Whether `v` is a sum of scores and a bias. A scale after the sum multiplies both."""
    return v.op == "add" and any(f.op == "matmul" for t in v.inputs for f in factors_of(t))


def total(view: View, terms: Sequence[Value]) -> Value:
    """The canonical sum of canonical terms."""
    flat = [g for t in terms for g in terms_of(t)]
    constant = total_of(c for t in flat if (c := literal(t)) is not None)
    if constant is None:
        return view.plain("add", *sorted(flat, key=_order_key))
    rest = [t for t in flat if literal(t) is None]
    ordered = sorted((t for t in rest if not view.number(t)), key=_order_key) + sorted(
        (t for t in rest if view.number(t)), key=_order_key
    )
    for recognise in SUM_RECOGNISERS:
        found = recognise(view, ordered, constant)
        if found is not None:
            return found
    return _with_literal(view, "add", ordered, constant, 0)


def _order_key(v: Value) -> int:
    return v.serial


def factors_of(v: Value) -> tuple[Value, ...]:
    """The factors of a product; another value is its own only factor."""
    return v.inputs if v.op == "mul" and len(v.inputs) <= _MOST_PARTS else (v,)


def terms_of(v: Value) -> tuple[Value, ...]:
    """The terms of a sum; another value is its own only term."""
    return v.inputs if v.op == "add" and len(v.inputs) <= _MOST_PARTS else (v,)


def without(items: Sequence[Value], removed: Sequence[Value]) -> list[Value] | None:
    """`items` without one occurrence of each value in `removed`; None if one is missing."""
    rest = list(items)
    for t in removed:
        if t not in rest:
            return None
        rest.remove(t)
    return rest


def _with_literal(view: View, op: str, items: list[Value], constant: float, neutral: int) -> Value:
    """The product or sum of `items` and the literal `constant`, which is left out if it is neutral."""
    if constant != neutral or not items:
        items = [*items, view.const(constant)]
    return items[0] if len(items) == 1 else view.plain(op, *items)


def powers(view: View, factors: list[Value]) -> list[Value]:
    """Replace x * x by square(x), and x * square(x) by pow(x, 3). x may be a product itself."""
    out: list[Value] = []
    for f in factors:
        if f in out and f.op not in ("square", "pow"):
            out[out.index(f)] = view.make("square", f)
        else:
            out.append(f)
    for power in [f for f in out if f.op == "square"]:
        rest = without(out, (power, *factors_of(power.inputs[0])))
        if rest is not None:
            return powers(view, [*rest, view.plain("pow", power.inputs[0], view.const(3))])
    return out


@rewrites("reciprocal")
def _reciprocal(view: View, x: Value) -> Value | None:
    number = literal(x)
    if number:
        return view.const(1.0 / number)
    if x.op == "reciprocal":
        return x.inputs[0]
    if x.op in _ROOTS:
        return view.make(_ROOTS[x.op], *x.inputs)
    if x.op == "mul":
        return product(view, [view.make("reciprocal", f) for f in x.inputs])
    if (logit := _logit(view, x)) is not None:
        return view.make("sigmoid", logit)
    return None


def _logit(view: View, x: Value) -> Value | None:
    """z, if `x` is 1 + exp(-z)."""
    if x.op != "add" or len(x.inputs) != 2 or literal(x.inputs[1]) != 1 or x.inputs[0].op != "exp":
        return None
    return product(view, (x.inputs[0].inputs[0], view.const(-1)))


@rewrites("square")
def _square_of(view: View, x: Value) -> Value | None:
    number = literal(x)
    if number is not None:
        square = product_of((number, number))
        return None if square is None else view.const(square)
    if x.op == "activation" and is_const(x.inputs[1], "relu"):
        return view.plain("activation", x.inputs[0], view.const("relu_squared"))
    return x.inputs[0] if x.op == "sqrt" else None


@rewrites("sqrt")
def _sqrt(view: View, x: Value) -> Value | None:
    if view.number(x):
        return view.make("number_sqrt", x)
    return view.make("rsqrt", *x.inputs) if x.op == "reciprocal" else None


@rewrites("rsqrt")
def _rsqrt(view: View, x: Value) -> Value | None:
    if view.number(x):
        return view.make("reciprocal", view.make("number_sqrt", x))
    return view.make("sqrt", *x.inputs) if x.op == "reciprocal" else None


@rewrites("pow", "number_pow")
def _pow(view: View, x: Value, exponent: Value) -> Value | None:
    power, base = literal(exponent), literal(x)
    if power is None:
        return None
    if base is not None and base > 0:
        folded = power_of(base, power)
        return None if folded is None else view.const(folded)
    if power == 1:
        return x
    if power < 0:
        return view.make("reciprocal", view.make("pow", x, view.const(-power)))
    if power in (0.5, 2):
        return view.make("sqrt" if power == 0.5 else "square", x)
    return view.plain("pow", x, view.const(int(power) if float(power).is_integer() else power))


@rewrites("number_sqrt")
def _number_sqrt(view: View, x: Value) -> Value | None:
    number = literal(x)
    return view.const(math.sqrt(number)) if number is not None and number >= 0 else None


@rewrites("number")
def _float_of(view: View, x: Value) -> Value | None:
    """float("-inf") is a literal; float(n) of a number n is n."""
    if isinstance(x.data, str) and x.op == "const":
        try:
            return view.const(float(x.data))
        except ValueError:
            return None
    return x if view.number(x) else None


@rewrites("tensor")
def _tensor(view: View, data: Value, options: Value) -> Value | None:
    """torch.tensor(0.5) gives the same results as 0.5, because a tensor without dimensions does not widen a dtype."""
    return data if view.number(data) else None


@rewrites("baddbmm")
def _baddbmm(view: View, added: Value, left: Value, right: Value, beta: Value, alpha: Value) -> Value | None:
    scaled = product(view, (view.make("matmul", left, right), alpha))
    if is_const(beta, 0, 0.0):
        return scaled
    return total(view, (scaled, product(view, (added, beta))))
