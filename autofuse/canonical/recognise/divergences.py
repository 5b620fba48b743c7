"""Recognises divergences between two distributions over the classes, and the entropy of one.

Introduces two operations:

- divergence(log_softmax, target, kind, log_target, reduction): as autofuse.ops.divergence
- entropy(log_softmax)

The log_softmax is the distribution that is trained. In the sum of p * (log p - log q) it may be q or p. If both are
log_softmax, it is the one that a linear layer computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autofuse.canonical.arithmetic import SUM_RECOGNISERS, factors_of, product, terms_of, total, without
from autofuse.canonical.recognise.class_rows import rows_of
from autofuse.canonical.recognise.losses import is_distribution, log_softmax_in
from autofuse.canonical.shapes import from_end
from autofuse.canonical.view import View, literal, rewrites, strip_casts, through_blocks
from autofuse.ir.graph import ITEM, TUPLE, Value, is_const

_SELECTIONS = frozenset({"unsqueeze", "one_hot", "scatter"})  # a mask of rows or one class, which is no distribution
_NO_ZERO = "assumes that no probability of the target is 0"


def _divergence(
    view: View, log_probs: Value, target: Value, kind: str, log_target: bool, reduction: str, why: str = ""
) -> Value | None:
    """The divergence of `log_probs`, if they are a log_softmax over the last dimension, in any view of its rows."""
    found = log_softmax_in(view, log_probs, -1, None)
    if found is None:
        return None
    options = (view.const(kind), view.const(log_target), view.const(reduction))
    made = view.plain("divergence", found.value, target, *options)
    return view.with_assumption(made, "; ".join(filter(None, (found.assumed, why))))


# torch's functions.


@rewrites("kl_div")
def _kl_div(
    view: View, x: Value, target: Value, average: Value, reduce: Value, reduction: Value, log_target: Value
) -> Value | None:
    if not is_const(average, None) or not is_const(reduce, None) or not is_const(reduction, "sum", "mean", "batchmean"):
        return None
    return _kl(view, x, target, log_target, str(reduction.data))


def _kl(view: View, x: Value, target: Value, log_target: Value, reduction: str) -> Value | None:
    """The sum over the classes of p * (log p - x), where p is the target or its exponential."""
    if not is_const(log_target, True, False):
        return None
    if is_const(log_target, True) and _is_layer(view, target) and not _is_layer(view, x):
        return _divergence(view, target, x, "reverse_kl", True, reduction)
    return _divergence(view, x, target, "kl", is_const(log_target, True), reduction)


@rewrites("cross_entropy")
def _cross_entropy(
    view: View, x: Value, target: Value, weight: Value, average: Value, ignored: Value, reduce: Value, reduction: Value,
    smoothing: Value,
) -> Value | None:  # fmt: skip
    """Recognise F.cross_entropy of rows whose targets are computed by a softmax."""
    plain = is_const(weight, None) and is_const(average, None) and is_const(reduce, None) and is_const(smoothing, 0.0)
    reductions = {"mean": "batchmean", "sum": "sum", "none": "rows"}
    if not plain or reduction.data not in reductions or view.rank(x) != 2 or not is_distribution(view, target):
        return None
    log_probs = view.plain("log_softmax", x, view.const(-1))
    return _divergence(view, log_probs, target, "cross_entropy", False, reductions[str(reduction.data)])


# Hand-written sums.


@rewrites("sum")
def _sum(view: View, x: Value, dim: Value, keepdim: Value) -> Value | None:
    over_all = is_const(dim, None)
    if not is_const(keepdim, False) or not over_all and from_end(view, x, dim) != -1:
        return None
    reduction = "sum" if over_all else "rows"
    if x.op == "kl_div":
        log_probs, target, average, reduce, none, log_target = x.inputs
        whole = is_const(average, None) and is_const(reduce, None) and is_const(none, "none")
        return _kl(view, log_probs, target, log_target, reduction) if whole else None
    found = _split_product(view, x)
    if found is None:
        return None
    weights, rest, numbers = found
    made = _loss_of_weighted_sum(view, weights, rest, reduction)
    return None if made is None else product(view, (made, *numbers))


def _split_product(view: View, x: Value) -> tuple[list[Value], Value, list[Value]] | None:
    """The weights, log-probabilities (or a difference of two), and numbers of which `x` is the product.

    p * log p - p * log q is p * (log p - log q).
    """
    if x.op == "add" and len(x.inputs) == 2:
        first, second = (list(factors_of(t)) for t in x.inputs)
        shared = [f for f in first if f in second and literal(f) is None]
        if not shared:
            return None
        parts = [product(view, without(p, shared) or [view.const(1)]) for p in (first, second)]
        return shared, total(view, parts), []
    if x.op != "mul":
        return None
    numbers = [f for f in x.inputs if literal(f) is not None or view.number(f)]
    tensors = [f for f in x.inputs if f not in numbers]
    rest = next((f for f in tensors if f.op == "add"), None) or next((f for f in tensors if _is_log(view, f)), None)
    return None if rest is None else (without(tensors, (rest,)) or [], rest, numbers)


def _is_log(view: View, v: Value) -> bool:
    return log_softmax_in(view, v, -1, None) is not None


def _is_layer(view: View, v: Value) -> bool:
    """Whether `v` is the log_softmax of a linear layer's output, also through views."""
    found = log_softmax_in(view, v, -1, None)
    return found is not None and rows_of(view, found.value) is not None


def _loss_of_weighted_sum(view: View, weights: Sequence[Value], rest: Value, reduction: str) -> Value | None:
    """The sum over the classes of `rest`, weighted by a distribution."""
    if not weights or any(_selects_rows_or_class(w) for w in weights):
        return None
    p = product(view, weights)
    if rest.op == "add":
        return _loss_of_log_difference(view, p, rest, reduction)
    if _is_softmax_of(view, p, rest):
        return product(view, (view.plain("entropy", rest), view.const(-1))) if reduction == "rows" else None
    made = _divergence(view, rest, p, "cross_entropy", False, reduction)
    return None if made is None else product(view, (made, view.const(-1)))


def _selects_rows_or_class(v: Value) -> bool:
    """Whether `v` is a mask of rows or selects one class, so that its sum over the classes is no expectation."""
    v = strip_casts(v)
    if v.op == ITEM and v.inputs[1].op == TUPLE and is_const(v.inputs[1].inputs[-1], None):
        return True
    return v.op in _SELECTIONS


def _is_softmax_of(view: View, p: Value, log_probs: Value) -> bool:
    """Whether p is exp(log_probs)."""
    if p.op == "exp" and p.inputs[0] is log_probs:
        return True
    p, log_probs = through_blocks(view, p), through_blocks(view, log_probs)
    if p.op == "softmax" and log_probs.op == "log_softmax":
        return p.inputs[0] is log_probs.inputs[0] and p.inputs[1].data == log_probs.inputs[1].data
    return False


def _loss_of_log_difference(view: View, p: Value, logs: Value, reduction: str) -> Value | None:
    """The divergence that a weighted sum of log p - log q, or of log q - log p, computes."""
    for sign, own, other in _signed_sides(view, p, logs):
        if _is_softmax_of(view, p, own):
            made = _divergence(view, own, other, "reverse_kl", True, reduction)
        elif _is_softmax_of(view, p, other):
            made = _divergence(view, own, other, "kl", True, reduction)
            sign = -sign
        elif other.op == "log" and other.inputs[0] is p:
            made = _divergence(view, own, p, "kl", False, reduction, _NO_ZERO)
            sign = -sign
        else:
            continue
        if made is not None:
            return product(view, (made, view.const(sign)))
    return None


def _signed_sides(view: View, p: Value, logs: Value) -> Iterator[tuple[int, Value, Value]]:
    """(sign, own, other) for each way to write `logs` as sign * (own - other). Linear layers come first, `p` last."""
    terms = terms_of(logs)
    found = []
    for t in terms:
        minus = t.op == "mul" and len(t.inputs) == 2 and literal(t.inputs[1]) == -1
        own, sign = (t.inputs[0], -1) if minus else (t, 1)
        rest = without(terms, (t,))
        if _is_log(view, own) and rest:
            found.append((sign, own, product(view, (total(view, rest), view.const(-sign)))))
    yield from sorted(found, key=lambda side: (not _is_layer(view, side[1]), _is_softmax_of(view, p, side[1])))


def _entropy_of_logits(view: View, terms: list[Value], constant: float) -> Value | None:
    """Recognise logsumexp(x) - sum(softmax(x) * x) as the entropy."""
    for term in terms:
        if term.op != "logsumexp" or not is_const(term.inputs[1], -1) or not is_const(term.inputs[2], False):
            continue
        x = term.inputs[0]
        mean = view.plain("sum", product(view, (view.plain("softmax", x, view.const(-1)), x)), *term.inputs[1:])
        rest = without(terms, (term, product(view, (mean, view.const(-1)))))
        if rest is not None:
            log_probs = view.make("log_softmax", x, view.const(-1), view.const(None))
            made = view.with_assumption(view.plain("entropy", log_probs), view.assumption(term))
            return total(view, (made, *rest, view.const(constant)))
    return None


SUM_RECOGNISERS.append(_entropy_of_logits)
