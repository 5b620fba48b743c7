"""Recognises hand-written log-softmax, logsumexp and label smoothing.

This file knows the arithmetic that leads to the operations in losses.py. Label smoothing is that of Szegedy et al.,
arXiv:1512.00567, as torch defines it: over all classes, including the target's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofuse.canonical.arithmetic import SUM_RECOGNISERS, factors_of, product, terms_of, total, without
from autofuse.canonical.recognise.class_rows import ClassRows
from autofuse.canonical.recognise.losses import log_softmax_in, loss_of_each, pick_targets
from autofuse.canonical.recognise.smoothing import LabelShares, smoothing_of
from autofuse.canonical.view import CAST, View, literal, rewrites
from autofuse.ir.graph import ATTRIBUTE, ITEM, Value, is_const

UNDERFLOW = "where a probability underflows to 0, this code gives -inf, and log_softmax gives a finite number"
OVERFLOW = "where exp overflows, this code gives -inf, and log_softmax gives a finite number"
ONE_EACH = "assumes one target for each row of the logits"
_NONE_IGNORED = "assumes that no target is ignored"


@rewrites("log")
def _log(view: View, x: Value) -> Value | None:
    if x.op == "softmax":
        return view.with_assumption(view.plain("log_softmax", x.inputs[0], x.inputs[1]), UNDERFLOW)
    if x.op == "unsqueeze" and x.inputs[0].op == "picked":
        return view.make("unsqueeze", view.make("log", x.inputs[0]), x.inputs[1])
    if x.op == "picked" and x.inputs[0].op == "softmax":
        probabilities, dim, target, lookup, count = x.inputs
        assert isinstance(dim.data, int), "the operation holds a number"
        log_probs = view.with_assumption(view.plain("log_softmax", *probabilities.inputs[:2]), UNDERFLOW)
        return pick_targets(view, log_probs, dim.data, target, view.assumption(x), str(lookup.data), count)
    if x.op == "sum" and x.inputs[0].op == "exp":
        rows = x.inputs[0].inputs[0]
        made = view.make("logsumexp", rows, *x.inputs[1:])
        return made if _is_lowered_by_maximum(rows) else view.with_assumption(made, OVERFLOW)
    return None


def _is_lowered_by_maximum(v: Value) -> bool:
    """Whether `v` is x minus its maximum, so that its exponential cannot overflow."""
    lowered = (t.inputs[0] for t in v.inputs if t.op == "mul" and literal(t.inputs[-1]) == -1) if v.op == "add" else ()
    return any(_reduction_op(t) in ("max", "amax") for t in lowered)


def _reduction_op(v: Value) -> str:
    """The operation of a reduction, also after `.values`, `.detach()` and casts."""
    while v.op in (CAST, "detach", ITEM) or v.op == ATTRIBUTE and v.data == "values":
        v = v.inputs[0]
    return v.op


def _terms_with_sign(terms: Sequence[Value], op: str, sign: int) -> list[tuple[Value, Value]]:
    """(term, v) for each term that is sign * v, where v is an `op`."""
    found = []
    for t in terms:
        negative = t.op == "mul" and len(t.inputs) == 2 and literal(t.inputs[1]) == -1
        v = t.inputs[0] if negative else t
        if v.op == op and negative == (sign < 0):
            found.append((t, v))
    return found


def _log_softmax_by_hand(view: View, terms: list[Value], constant: float) -> Value | None:
    """Recognise x - logsumexp(x, dim, keepdim=True) as log_softmax."""
    for term, normaliser in _terms_with_sign(terms, "logsumexp", -1):
        x, dim, keepdim = normaliser.inputs
        rest = without(terms, (term, *terms_of(x))) if is_const(keepdim, True) and not constant else None
        if rest is not None:
            made = view.make("log_softmax", x, dim, view.const(None))
            return total(view, (view.with_assumption(made, view.assumption(normaliser)), *rest))
    return None


def _shifted_logsumexp(view: View, terms: list[Value], constant: float) -> Value | None:
    """Recognise max + log(sum(exp(x - max))) as logsumexp, with either sign."""
    for sign in (1, -1):
        for term, normaliser in _terms_with_sign(terms, "logsumexp", sign):
            shifted, dim, keepdim = normaliser.inputs
            for lowered in shifted.inputs if shifted.op == "add" and is_const(keepdim, True) else ():
                if lowered.op != "mul" or literal(lowered.inputs[-1]) != -1 or len(lowered.inputs) != 2:
                    continue
                shift = lowered.inputs[0] if sign > 0 else lowered
                rest = without(terms, (term, shift))
                inner = without(shifted.inputs, (lowered,))
                if rest is not None and inner:
                    made = view.plain("logsumexp", total(view, inner), dim, keepdim)
                    made = view.with_assumption(made, view.assumption(normaliser))
                    return total(view, (product(view, (made, view.const(sign))), *rest, view.const(constant)))
    return None


def _logsumexp_minus_picked(view: View, terms: list[Value], constant: float) -> Value | None:
    """Recognise logsumexp(x) - x[target] as a loss, with either sign."""
    for sign in (1, -1):
        for term, normaliser in _terms_with_sign(terms, "logsumexp", sign):
            kept = is_const(normaliser.inputs[2], True)
            for other, held in _terms_with_sign(terms, "unsqueeze" if kept else "picked", -sign):
                picked = held.inputs[0] if kept else held
                if picked.op != "picked" or picked.inputs[0] is not normaliser.inputs[0]:
                    continue
                log_probs = view.make("log_softmax", *normaliser.inputs[:2], view.const(None))
                dim = picked.inputs[1].data
                found = log_softmax_in(view, log_probs, dim) if type(dim) is int else None
                rest = without(terms, (term, other))
                if found is None or rest is None:
                    continue
                target, lookup, count = picked.inputs[2:]
                rows = found.with_assumption(view.assumption(picked)).with_assumption(ONE_EACH)
                rows = rows.with_assumption(view.assumption(normaliser))
                of_each = loss_of_each(view, rows, target, str(lookup.data), count)
                made = view.plain("unsqueeze", of_each, held.inputs[1]) if kept else of_each
                return total(view, (product(view, (made, view.const(sign))), *rest, view.const(constant)))
    return None


def _label_smoothing(view: View, terms: list[Value], constant: float) -> Value | None:
    """Recognise (1 - s) * nll - s * log_probs.mean(dim), which is torch's label smoothing."""
    for term in terms:
        plain = next((f for f in factors_of(term) if f.op == "cross_entropy"), None)
        for other in terms if plain is not None else ():
            for spread in factors_of(other):
                if plain is None or other is term or not _is_mean_over_classes(view, spread, plain):
                    continue
                s = product(view, (*(without(factors_of(other), (spread,)) or ()), view.const(-1)))
                share = product(view, without(factors_of(term), (plain,)) or [view.const(1)])
                rest = without(terms, (term, other))
                if rest is not None and _is_sum_one(view, share, s):
                    return total(view, (_with_smoothing(view, plain, s), *rest, view.const(constant)))
    return None


def _smoothing_over_others(view: View, terms: list[Value], constant: float) -> Value | None:
    """Recognise (1 - e) * nll - e / (K - 1) * (log_probs.sum(dim) + nll): smoothing over the other K - 1 classes."""
    for term in terms:
        plain = next((f for f in factors_of(term) if f.op == "cross_entropy"), None)
        for other in terms if plain is not None else ():
            for others in factors_of(other):
                sign = _sign_of_other_classes(view, others, plain) if plain is not None and other is not term else 0
                if not sign or plain is None:
                    continue
                off = product(view, (*(without(factors_of(other), (others,)) or ()), view.const(sign)))
                on = product(view, without(factors_of(term), (plain,)) or [view.const(1)])
                rows = ClassRows(plain.inputs[0], int(str(plain.inputs[6].data)))
                found = smoothing_of(view, LabelShares(on, off), rows)
                rest = without(terms, (term, other))
                if found is None or rest is None:
                    continue
                loss = view.with_assumption(plain, "; ".join(filter(None, (view.assumption(plain), found[1]))))
                return total(view, (_with_smoothing(view, loss, found[0]), *rest, view.const(constant)))
    return None


def _sign_of_other_classes(view: View, v: Value, plain: Value) -> int:
    """1 if `v` is the sum of the losses of all classes except the target; -1 if it is the negative of that; else 0."""
    log_probs, _, weight, ignored, reduction, smoothing, *_ = plain.inputs
    default = is_const(weight, None) and is_const(ignored, None, -100) and is_const(smoothing, 0.0)
    if v.op != "add" or len(v.inputs) != 2 or not default or not is_const(reduction, "none"):
        return 0
    for sign in (1, -1):
        sums, picked = _terms_with_sign(v.inputs, "sum", -sign), _terms_with_sign(v.inputs, "cross_entropy", -sign)
        for _, whole in sums:
            over = whole.inputs[0] is log_probs and whole.inputs[1].data == log_probs.inputs[1].data
            if over and is_const(whole.inputs[2], False) and any(one is plain for _, one in picked):
                return sign
    return 0


def _is_mean_over_classes(view: View, v: Value, plain: Value) -> bool:
    """Whether `v` is the mean over the classes of the log-probabilities of `plain`, with the same reduction."""
    log_probs, _, weight, ignored, reduction, smoothing, *_ = plain.inputs
    if not is_const(weight, None) or not is_const(ignored, None, -100) or not is_const(smoothing, 0.0):
        return False
    if v.op == reduction.data == "mean" and v.inputs[0] is log_probs and is_const(v.inputs[1], None):
        return True
    if reduction.data in ("mean", "sum") and v.op == reduction.data and is_const(v.inputs[1], None):
        v = v.inputs[0]
    elif not is_const(reduction, "none"):
        return False
    return (
        v.op == "mean"
        and v.inputs[0] is log_probs
        and v.inputs[1].data == log_probs.inputs[1].data
        and is_const(v.inputs[2], False)
    )


def _is_sum_one(view: View, share: Value, s: Value) -> bool:
    a, b = literal(share), literal(s)
    if a is not None and b is not None:
        return math.isclose(a + b, 1, rel_tol=1e-9)
    return share is total(view, (product(view, (s, view.const(-1))), view.const(1)))


def _with_smoothing(view: View, plain: Value, s: Value) -> Value:
    *given, _, dim, lookup, count = plain.inputs
    made = view.plain("cross_entropy", *given, s, dim, lookup, count)
    ignored = _NONE_IGNORED if not is_const(plain.inputs[3], None) else ""
    return view.with_assumption(made, "; ".join(filter(None, (view.assumption(plain), ignored))))


SUM_RECOGNISERS += [
    _shifted_logsumexp, _log_softmax_by_hand, _logsumexp_minus_picked, _label_smoothing, _smoothing_over_others,
]  # fmt: skip
