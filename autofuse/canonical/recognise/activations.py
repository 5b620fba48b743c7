"""Recognises activation functions, torch's and hand-written, as one operation: activation(x, name).

The names are those of autofuse.ops.ACTIVATIONS: gelu (with erf), gelu_tanh, quick_gelu, silu, relu, relu_squared, mish,
hardswish. The name may also be the attribute of a module. Sources of the formulas: Hendrycks & Gimpel, arXiv:1606.08415
(the GELUs); Elfwing et al., arXiv:1702.03118 (SiLU); Misra, arXiv:1908.08681 (Mish); Howard et al., arXiv:1905.02244
(hard swish); So et al., arXiv:2109.08668 (squared ReLU).
"""

from __future__ import annotations

import math

from autofuse.canonical.arithmetic import (
    PRODUCT_RECOGNISERS,
    SUM_RECOGNISERS,
    factors_of,
    product,
    total,
    without,
)
from autofuse.canonical.recognise.rotary_pairs import HALVES, Part, part_of
from autofuse.canonical.view import Rewrite, View, literal, rewrites
from autofuse.ir.graph import ITEM, Value, is_const, is_equal_const
from autofuse.ir.rows import Op
from autofuse.ir.vocabulary import OUR_ACTIVATIONS

_DIGITS = 1e-5  # relative; authors write 0.7978845608 or 0.79788 for sqrt(2 / pi)
_SINGLE = 1.5e-7  # relative; closer numbers are equal or neighbours in float32
_CUBIC = 0.044715  # of the tanh approximation of GELU (Hendrycks & Gimpel)
_QUICK = 1.702  # x * sigmoid(1.702 * x) approximates GELU (Hendrycks & Gimpel)
_GATES = ("activation", "sigmoid")


def _rewrite_of(op: Op) -> Rewrite:
    """The rewrite of an activation in autofuse.ops and of torch's function of that name, with default arguments."""

    def rewrite(view: View, x: Value, *options: Value) -> Value | None:
        usual = all(is_equal_const(v, default) for v, (_, default) in zip(options, op.options, strict=True))
        return activation(view, x, op.name) if usual else None

    return rewrite


for _row in OUR_ACTIVATIONS.values():
    rewrites(_row.name, f"fused_{_row.name}")(_rewrite_of(_row))


@rewrites("gelu", "fused_gelu")
def _gelu_by_tanh(view: View, x: Value, approximate: Value) -> Value | None:
    return activation(view, x, "gelu_tanh") if is_const(approximate, "tanh") else None


@rewrites("relu")
def _relu(view: View, x: Value) -> Value:
    return activation(view, x, "relu")


@rewrites("log1p")
def _log1p(view: View, x: Value) -> Value:
    """log1p(x) is log(1 + x), which authors write as often. The two only round differently."""
    return view.make("log", total(view, (x, view.const(1))))


@rewrites("relu6")
def _relu6(view: View, x: Value) -> Value:
    return view.make("clamp", x, view.const(0), view.const(6))


@rewrites("clamp")
def _clamp(view: View, x: Value, low: Value, high: Value) -> Value | None:
    """Write integral bounds as int. clamp(min=0) is a ReLU."""
    if literal(low) == 0 and is_const(high, None):
        return activation(view, x, "relu")
    bounds = [view.const(int(n)) if (n := literal(b)) is not None and float(n).is_integer() else b for b in (low, high)]
    return None if bounds == [low, high] else view.plain("clamp", x, *bounds)


@rewrites("clamp_min")
def _clamp_min(view: View, x: Value, low: Value) -> Value:
    return view.make("clamp", x, low, view.const(None))


@rewrites("clamp_max")
def _clamp_max(view: View, x: Value, high: Value) -> Value:
    return view.make("clamp", x, view.const(None), high)


def activation(view: View, x: Value, name: str) -> Value:
    """The activation of `x` that has this name in autofuse.ops.ACTIVATIONS."""
    return view.plain("activation", x, view.const(name))


def _is_activation(v: Value, name: str) -> bool:
    return v.op == "activation" and is_const(v.inputs[1], name)


def _silu_by_hand(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Recognise x * sigmoid(x), and x * sigmoid(1.702 * x)."""
    for gate in factors:
        if gate.op != "sigmoid":
            continue
        x, name = gate.inputs[0], "silu"
        if literal(factors_of(x)[-1]) is not None:
            quick = _operand_of_scale(view, x, _QUICK)
            if quick is None:
                continue
            x, name = quick, "quick_gelu"
        rest = without(factors, (gate, *factors_of(x)))
        if rest is not None:
            return [*rest, activation(view, x, name)], constant
    return None


def _gated_halves(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Write two halves of a last dimension, one of which is activated, as items of `chunk`."""
    parts = {f: part_of(view, f.inputs[0] if f.op in _GATES else f) for f in factors if _may_be_half(f)}
    for gate, own in parts.items():
        for up, other in parts.items():
            if gate.op not in _GATES or up.op in _GATES or own is None or other is None:
                continue
            if own.layout != HALVES or not own.belongs_to(other) or own.which == other.which:
                continue
            new = [_half_as_chunk(view, gate.inputs[0], own), _half_as_chunk(view, up, other)]
            if new == [gate.inputs[0], up]:
                continue
            rest = without(factors, (gate, up))
            return [*(rest or []), view.make(gate.op, new[0], *gate.inputs[1:]), new[1]], constant
    return None


def _may_be_half(v: Value) -> bool:
    return v.op == ITEM or v.op in _GATES and v.inputs[0].op == ITEM


def _half_as_chunk(view: View, v: Value, part: Part) -> Value:
    """The half `v` as an item of `chunk`."""
    if v.inputs[0].op == "chunk":
        return v
    return view.plain(ITEM, view.plain("chunk", part.of, view.const(2), view.const(-1)), view.const(part.which))


def _mish_by_hand(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Recognise x * tanh(softplus(x)), also with log(1 + exp(x)) as softplus."""
    for gate in factors:
        x = _softplus_operand(gate.inputs[0]) if gate.op == "tanh" else None
        rest = without(factors, (gate, *factors_of(x))) if x is not None else None
        if x is not None and rest is not None:
            return [*rest, activation(view, x, "mish")], constant
    return None


def _softplus_operand(v: Value) -> Value | None:
    """x, if `v` is log(1 + exp(x)) or torch's softplus with default arguments; else None."""
    if v.op == "softplus" and literal(v.inputs[1]) == 1 and literal(v.inputs[2]) == 20 or _is_activation(v, "softplus"):
        return v.inputs[0]
    inner = v.inputs[0] if v.op == "log" else None
    if inner is None or inner.op != "add" or len(inner.inputs) != 2 or literal(inner.inputs[1]) != 1:
        return None
    return inner.inputs[0].inputs[0] if inner.inputs[0].op == "exp" else None


def _hardswish_by_hand(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Recognise x * clamp(x + 3, 0, 6) / 6."""
    for gate in factors:
        if gate.op != "clamp" or literal(gate.inputs[1]) != 0 or literal(gate.inputs[2]) != 6:
            continue
        shifted = gate.inputs[0]
        if shifted.op != "add" or literal(shifted.inputs[-1]) != 3:
            continue
        x = total(view, shifted.inputs[:-1])
        rest = without(factors, (gate, *factors_of(x)))
        if rest is not None:
            return [*rest, activation(view, x, "hardswish")], constant * 6
    return None


def _gelu_by_hand(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Recognise x / 2 * (1 + erf(x / sqrt(2))) and x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))."""
    for cdf in factors:
        found = _cdf_of(view, cdf)
        if found is None:
            continue
        x, name, assumed = found
        own = factors_of(x)
        scale = literal(own[-1]) or 1.0
        rest = without(factors, (cdf, *(own[:-1] if literal(own[-1]) is not None else own)))
        if rest is not None:
            return [*rest, view.with_assumption(activation(view, x, name), assumed)], constant / (0.5 * scale)
    return None


def _cdf_of(view: View, v: Value) -> tuple[Value, str, str] | None:
    """(x, name, assumption), if `v` is 1 + erf(...) or 1 + tanh(...): twice the normal distribution function of x."""
    if v.op != "add" or len(v.inputs) != 2 or literal(v.inputs[1]) != 1:
        return None
    inner = v.inputs[0]
    if inner.op == "erf" and (x := _operand_of_scale(view, inner.inputs[0], math.sqrt(0.5))) is not None:
        return x, "gelu", _assumption_of(inner.inputs[0], math.sqrt(0.5))
    if inner.op == "tanh" and (cubic := _operand_of_scale(view, inner.inputs[0], math.sqrt(2 / math.pi))) is not None:
        x = _operand_of_cubic(view, cubic)
        return None if x is None else (x, "gelu_tanh", _assumption_of(inner.inputs[0], math.sqrt(2 / math.pi)))
    return None


def _assumption_of(v: Value, factor: float) -> str:
    """The assumption that the code means `factor`, if its literal differs by more than float32 rounding; else ""."""
    found = literal(factors_of(v)[-1]) or factor
    if math.isclose(found, factor, rel_tol=_SINGLE):
        return ""
    return f"assumes that {found:.10g} stands for {factor:.10g}, although they differ by more than float32 rounding"


def _operand_of_scale(view: View, v: Value, factor: float) -> Value | None:
    """y, if `v` is y * factor; else None."""
    items = factors_of(v)
    found = literal(items[-1]) if len(items) > 1 else None
    if found is None:
        return None
    ratio = found / factor
    if math.isclose(ratio, 1, rel_tol=_DIGITS):
        return product(view, items[:-1])
    return None


def _operand_of_cubic(view: View, v: Value) -> Value | None:
    """x, if `v` is x + 0.044715 * x ** 3 or x * (1 + 0.044715 * x ** 2); else None."""
    if v.op == "add" and len(v.inputs) == 2:
        for cube, x in (v.inputs, v.inputs[::-1]):
            term = _operand_of_scale(view, cube, _CUBIC)
            if term is not None and term.op == "pow" and is_const(term.inputs[1], 3) and term.inputs[0] is x:
                return x
    if v.op == "mul":
        for part in v.inputs:
            rest = without(v.inputs, (part,))
            x = product(view, rest) if rest else v
            if part.op == "add" and len(part.inputs) == 2 and literal(part.inputs[1]) == 1:
                square = _operand_of_scale(view, part.inputs[0], _CUBIC)
                if square is not None and square.op == "square" and square.inputs[0] is x:
                    return x
    return None


def _common_literal(view: View, terms: list[Value], constant: float) -> Value | None:
    """Factor out a literal: 0.5 + 0.5 * y is 0.5 * (1 + y)."""
    if not constant or constant in (1, -1) or not terms:
        return None
    if all(t.op == "mul" and literal(t.inputs[-1]) == constant for t in terms):
        inner = [product(view, t.inputs[:-1]) for t in terms]
        return product(view, (total(view, [*inner, view.const(1)]), view.const(constant)))
    return None


PRODUCT_RECOGNISERS += [_gated_halves, _silu_by_hand, _gelu_by_hand, _mish_by_hand, _hardswish_by_hand]
SUM_RECOGNISERS.append(_common_literal)
