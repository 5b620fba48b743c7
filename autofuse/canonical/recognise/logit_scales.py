"""Recognises arithmetic on the logits of a linear layer: a soft cap, then a factor (1 / temperature).

A soft cap is cap * tanh(x / cap). Both treat each logit alone, so they may come before or after a change of layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofuse.canonical.arithmetic import factors_of, product, without
from autofuse.canonical.view import LEAF, View, literal, strip_casts
from autofuse.ir.graph import ATTRIBUTE, PARAMETER, Value


@dataclass(frozen=True)
class LogitScale:
    """The arithmetic of a program on logits x: factor * soft_cap * tanh(x / soft_cap), or factor * x without a cap."""

    factor: Value | None = None
    soft_cap: Value | None = None


def undo_scale(view: View, v: Value, after: LogitScale) -> tuple[Value, LogitScale] | None:
    """Undo a product of a tensor and numbers, or a soft cap.

    Args:
        view: the canonical view.
        v: a product.
        after: the arithmetic that follows it.

    Returns:
        The tensor, and the arithmetic on it; None if `v` is something else, or if a cap follows it already.
    """
    found = _split_product(view, v)
    if found is None or after.soft_cap is not None:
        return None
    tensor, numbers = found
    factor = product(view, (*numbers, *([after.factor] if after.factor is not None else [])))
    if tensor.op != "tanh":
        return tensor, LogitScale(_unless_one(factor))
    inner = strip_casts(tensor.inputs[0])
    capped = _split_product(view, inner) if inner.op == "mul" else (inner, [view.const(1.0)])
    if capped is None:
        return None
    of, shares = capped
    cap = view.make("reciprocal", product(view, shares))
    return of, LogitScale(_unless_one(_reduced_quotient(view, factor, cap)), cap)


def _split_product(view: View, v: Value) -> tuple[Value, list[Value]] | None:
    """The only tensor of a product, and its numbers. An attribute or argument counts as a number if it may be one."""
    if v.op != "mul":
        return None
    numbers = [f for f in v.inputs if _may_be_number(view, f)]
    tensors = [f for f in v.inputs if f not in numbers]
    return (tensors[0], numbers) if len(tensors) == 1 and numbers else None


def _may_be_number(view: View, v: Value) -> bool:
    known = view.number(v)
    inner = v.inputs[0] if v.op == "reciprocal" else v
    return known if known is not None else inner.op in (LEAF, ATTRIBUTE, PARAMETER)


def _reduced_quotient(view: View, factor: Value, cap: Value) -> Value:
    """factor / cap, where the factors of a cap that is no literal cancel out."""
    rest = without(factors_of(factor), factors_of(cap))
    if rest is not None:
        return product(view, rest) if rest else view.const(1.0)
    return product(view, (factor, view.make("reciprocal", cap)))


def _unless_one(factor: Value) -> Value | None:
    number = literal(factor)
    return None if number is not None and math.isclose(number, 1.0, rel_tol=1e-12) else factor
