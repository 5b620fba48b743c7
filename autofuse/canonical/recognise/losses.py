"""Recognises cross entropy in all spellings.

Introduces three operations:

- log_softmax(x, dim)
- picked(x, dim, target, lookup, count): the entries of `x` at the targets
- cross_entropy(log_softmax, target, weight, ignore_index, reduction, label_smoothing, dim, lookup, count)

`dim` is the dimension of the classes: 1 if it is the one that torch expects, for every rank. An `ignore_index` of None
means that every target counts. `lookup` and `count` describe how the program selects the entry of a target
(autofuse/ops/class_lookups.py). likelihoods.py recognises the arithmetic, and class_rows.py the dimension of the
classes.
"""

from __future__ import annotations

from autofuse.canonical.arithmetic import factors_of, product, without
from autofuse.canonical.recognise.class_rows import ClassRows, torch_class_dim, undo_layout
from autofuse.canonical.recognise.precision import known_dtypes
from autofuse.canonical.recognise.smoothing import smoothed_one_hot, smoothing_of
from autofuse.canonical.recognise.softmax import without_shift
from autofuse.canonical.shapes import elements, from_end
from autofuse.canonical.view import CAST, LEAF, View, literal, rewrites, strip_casts, through_blocks
from autofuse.ir.graph import ATTRIBUTE, GLOBAL, ITEM, SLICE, TUPLE, Value, is_const, is_full_slice

_TWO = "assumes that the logits have two dimensions"
_ONE = "assumes that the target has one dimension"
_AS_MANY = "assumes as many targets as there are rows"
_NOT_NEGATIVE = "assumes one target for each row, none of them negative"
_SHAPE_ONLY = ("unsqueeze", "squeeze", "view", "flatten")


def _loss(
    view: View, log_probs: ClassRows, target: Value, weight: Value, ignored: Value, reduction: Value,
    smoothing: Value, lookup: str | None = None, count: Value | None = None,
) -> Value:  # fmt: skip
    """The cross entropy of a log_softmax whose classes are in dimension `log_probs.dim`."""
    options = (reduction, smoothing, view.const(log_probs.dim), view.const(lookup), count or view.const(None))
    made = view.plain("cross_entropy", log_probs.value, target, weight, ignored, *options)
    return view.with_assumption(made, log_probs.assumed)


def loss_of_each(view: View, log_probs: ClassRows, target: Value, lookup: str, count: Value | None = None) -> Value:
    """The loss of each target, without reduction. Every target counts."""
    none = view.const(None)
    return _loss(view, log_probs, target, none, none, view.const("none"), view.const(0.0), lookup, count)


# torch's functions.


@rewrites("log_softmax")
def _log_softmax(view: View, x: Value, dim: Value, dtype: Value | None = None) -> Value | None:
    if dtype is None:
        return None
    if not is_const(dtype, None):
        if dtype.op != ATTRIBUTE or dtype.data not in ("float32", "float"):
            return None
        x = view.make("float32", x)
    if is_const(dim, None):  # torch's default dimension depends on the rank
        rank = view.rank(x)
        place = 1 if rank is None else -rank if rank in (1, 3) else torch_class_dim(rank)
        return view.with_assumption(view.plain("log_softmax", x, view.const(place)), "" if rank else _TWO)
    known = from_end(view, x, dim)
    if known is None:
        return view.plain("log_softmax", x, dim)
    return view.plain("log_softmax", without_shift(view, x) if known == -1 else x, view.const(known))


@rewrites("cross_entropy")
def _cross_entropy(
    view: View, x: Value, target: Value, weight: Value, average: Value, ignored: Value, reduce: Value, reduction: Value,
    smoothing: Value,
) -> Value | None:  # fmt: skip
    if not is_const(average, None) or not is_const(reduce, None) or is_distribution(view, target):
        return None
    rank = view.rank(x)
    log_probs = view.plain("log_softmax", x, view.const(torch_class_dim(rank) if rank else 1))
    return _loss(view, ClassRows(log_probs, 1), target, weight, ignored, reduction, smoothing)


@rewrites("nll_loss")
def _nll_loss(
    view: View, x: Value, target: Value, weight: Value, average: Value, ignored: Value, reduce: Value, reduction: Value
) -> Value | None:
    if not is_const(average, None) or not is_const(reduce, None):
        return None
    found = log_softmax_in(view, x, 1, view.rank(target))
    return None if found is None else _loss(view, found, target, weight, ignored, reduction, view.const(0.0))


@rewrites("nll")
def _nll(
    view: View, x: Value, target: Value, dim: Value, weight: Value, ignored: Value, reduction: Value,
    smoothing: Value, lookup: Value, count: Value,
) -> Value | None:  # fmt: skip
    """The operation of autofuse in a rule's `before`."""
    if x.op != "log_softmax":
        return None
    return view.plain("cross_entropy", x, target, weight, ignored, reduction, smoothing, dim, lookup, count)


def log_softmax_in(view: View, log_probs: Value, dim: int, targets: int | None = None) -> ClassRows | None:
    """The log_softmax of log-probabilities, before any change of layout; None if there is none.

    Args:
        view: the canonical view.
        log_probs: the log-probabilities.
        dim: the dimension of their classes.
        targets: the rank of the target, if known.
    """
    rank = view.rank(log_probs) or (None if targets is None else targets + 1)
    inner = undo_layout(view, ClassRows(log_probs, dim), rank, "log_softmax")
    if inner is None:
        return None
    found, rank = inner
    own = found.value.inputs[1].data
    if type(own) is not int:
        return None
    if rank is not None:
        at = torch_class_dim(rank)
        expected = at if found.dim == 1 else found.dim
        same = own % rank == expected % rank
        return found.with_dim(1 if expected % rank == at % rank else own % rank - rank) if same else None
    if own == found.dim:
        return found
    positive_dim = max(own, found.dim)
    if min(own, found.dim) != -1 or positive_dim < 1:
        return None
    return (
        found.with_assumption(_TWO).with_dim(1)
        if positive_dim == 1
        else found.with_assumption(f"assumes that dimension {positive_dim} is the last").with_dim(-1)
    )


def is_distribution(view: View, v: Value) -> bool:
    """Whether a target holds probabilities from a softmax, not class indices (divergences.py)."""
    v = through_blocks(view, v)
    while v.op in (*_SHAPE_ONLY, CAST, "detach"):
        v = through_blocks(view, v.inputs[0])
    return v.op == "softmax"


# Operations that select the entries of the targets.


@rewrites("take_along_dim")
def _take_along_dim(view: View, x: Value, index: Value, dim: Value) -> Value | None:
    return _gather_targets(view, x, dim, index, "take")


@rewrites("gather")
def _gather(view: View, x: Value, dim: Value, index: Value) -> Value | None:
    return _gather_targets(view, x, dim, index, "gather")


def _gather_targets(view: View, x: Value, dim: Value, index: Value, lookup: str) -> Value | None:
    if type(dim.data) is not int:
        return None
    found = _target_in(view, index, dim.data)
    if found is None:
        return None
    target, at, assumed = found
    if _is_sliced(target) and not _is_sliced(x):
        assumed = "; ".join(filter(None, (assumed, _AS_MANY)))
    return view.plain("unsqueeze", pick_targets(view, x, at, target, assumed, lookup), view.const(at))


def _is_sliced(v: Value) -> bool:
    """Whether `v` is a slice of a longer tensor. gather accepts fewer targets than rows."""
    while v.op in (*_SHAPE_ONLY, "log_softmax", "long", "flat", CAST) or v.op == ITEM and not _has_slice(v.inputs[1]):
        v = v.inputs[0]
    return v.op == ITEM


def _has_slice(index: Value) -> bool:
    return any(p.op == SLICE and not is_full_slice(p) for p in (index.inputs if index.op == TUPLE else (index,)))


def pick_targets(
    view: View, x: Value, dim: int, target: Value, assumed: str, lookup: str, count: Value | None = None
) -> Value:
    """The entries of `x` at the targets: the negative of a loss if `x` is a log_softmax."""
    found = log_softmax_in(view, x, dim, view.rank(target))
    if found is None:
        how = view.const(lookup), count or view.const(None)
        return view.with_assumption(view.plain("picked", x, view.const(dim), target, *how), assumed)
    return product(view, (loss_of_each(view, found.with_assumption(assumed), target, lookup, count), view.const(-1)))


def _target_in(view: View, index: Value, dim: int) -> tuple[Value, int, str] | None:
    """(target, dim, assumption), if `index` is a target with a new dimension of size 1 at `dim`; else None."""
    if index.op == "long":
        inner = _target_in(view, index.inputs[0], dim)
        return None if inner is None else (view.make("long", inner[0]), *inner[1:])
    if index.op == "view" and dim in (1, -1):
        sizes = elements(index.inputs[1])
        two = len(sizes) == 2 and is_const(sizes[1], 1)
        return (_flatten_target(view, index.inputs[0]), 1, "") if two else None
    unsqueezed = _operand_of_unsqueeze(view, index)
    if unsqueezed is None:
        return None
    target, at = unsqueezed
    rank = view.rank(target)
    if at == dim or rank is not None and at % (rank + 1) == dim % (rank + 1):
        return target, dim, ""
    positive_dim = max(at, dim)
    if rank is not None or min(at, dim) != -1 or positive_dim < 1:
        return None
    return (
        (target, 1, _ONE)
        if positive_dim == 1
        else (target, -1, f"assumes that the target has {positive_dim} dimensions")
    )


def _operand_of_unsqueeze(view: View, index: Value) -> tuple[Value, int] | None:
    """(t, dim), if `index` is t.unsqueeze(dim), t[:, None] or t[..., None]; else None."""
    if index.op == "unsqueeze" and type(index.inputs[1].data) is int:
        return index.inputs[0], index.inputs[1].data
    if index.op == ITEM and index.inputs[1].op == TUPLE:
        *parts, last = index.inputs[1].inputs
        if is_const(last, None) and len(parts) == 1 and is_const(parts[0], ...):
            return index.inputs[0], -1
        if is_const(last, None) and all(p.op == SLICE for p in parts):
            whole = all(map(is_full_slice, parts))
            return index.inputs[0] if whole else view.plain(ITEM, index.inputs[0], view.plain(TUPLE, *parts)), len(
                parts
            )
    return None


def _flatten_target(view: View, target: Value) -> Value:
    """`target` with one dimension."""
    return target if view.rank(target) == 1 else view.plain("flat", target)


@rewrites(ITEM)
def _item(view: View, x: Value, index: Value) -> Value | None:
    """Recognise x[torch.arange(n), target], and [:, 0], [:, :, 0] or [..., 0] after gather."""
    if index.op != TUPLE or len(index.inputs) < 2:
        return None
    *parts, last = index.inputs
    if x.op == "unsqueeze" and is_const(last, 0):
        all_of_last = len(parts) == 1 and is_const(parts[0], ...)
        at = -1 if all_of_last else len(parts) if all(map(is_full_slice, parts)) else None
        return x.inputs[0] if at == x.inputs[1].data else None
    if len(parts) != 1:
        return None
    (first,), second = parts, last
    count = _range_length(view, first)
    if count is None or second.op in (SLICE, TUPLE) or is_const(second) or view.rank(second) not in (None, 1):
        return None
    return pick_targets(view, x, 1, second, _NOT_NEGATIVE, "index", count)


def _range_length(view: View, v: Value) -> Value | None:
    """n, if `v` is torch.arange(n) or range(n); else None."""
    if v.op == "arange":
        return v.inputs[0].inputs[0] if len(v.inputs[0].inputs) == 1 else None
    call = v.data if v.op == LEAF else None
    if not isinstance(call, Value) or not isinstance(call.data, tuple) or call.data[0] != "range":
        return None
    arguments = [i for i in call.inputs if i.op != GLOBAL]  # the name `range` is an input if the file may rebind it
    return view.of(arguments[0]) if len(arguments) == 1 else None


@rewrites("squeeze")
def _squeeze(view: View, x: Value, dim: Value) -> Value | None:
    """Squeeze undoes an unsqueeze of the same dimension, also through a product with numbers."""
    numbers = [f for f in factors_of(x) if literal(f) is not None or view.number(f)]
    rest = without(factors_of(x), numbers) or []
    if len(rest) != 1 or rest[0].op != "unsqueeze":
        return None
    unsqueezed_dim = rest[0].inputs[1]
    place = from_end(view, x, unsqueezed_dim)
    if unsqueezed_dim is not dim and (place is None or place != from_end(view, x, dim)):
        return None
    return product(view, (rest[0].inputs[0], *numbers))


# Sums and means.


@rewrites("mean")
def _mean(view: View, x: Value, dim: Value, keepdim: Value) -> Value | None:
    return _reduce_loss(view, "mean", x) if is_const(dim, None) else None


@rewrites("sum")
def _sum(view: View, x: Value, dim: Value, keepdim: Value) -> Value | None:
    if not is_const(keepdim, False):
        return None
    found = _one_hot_loss(view, x, dim)
    return _reduce_loss(view, "sum", x) if found is None and is_const(dim, None) else found


def _reduce_loss(view: View, op: str, x: Value) -> Value | None:
    """The mean or sum of the losses of all targets, times numbers; None if `x` is not such a product."""
    while x.op in _SHAPE_ONLY:
        x = x.inputs[0]
    numbers = [f for f in factors_of(x) if literal(f) is not None or view.number(f)]
    rest = without(factors_of(x), numbers) or []
    if len(rest) == 1 and numbers and rest[0].op in _SHAPE_ONLY:
        inner = _reduce_loss(view, op, rest[0])
        return None if inner is None else product(view, (inner, *numbers))
    if len(rest) != 1 or rest[0].op != "cross_entropy" or not is_const(rest[0].inputs[4], "none"):
        return None
    log_probs, target, weight, ignored, _, *others = rest[0].inputs
    if op == "mean" and not (is_const(weight, None) and is_const(ignored, None)):
        return None  # torch's mean excludes ignored targets and weighs the others
    made = view.plain("cross_entropy", log_probs, target, weight, ignored, view.const(op), *others)
    return product(view, (view.with_assumption(made, view.assumption(rest[0])), *numbers))


def _one_hot_loss(view: View, x: Value, dim: Value) -> Value | None:
    """Recognise (log_probs * one_hot(target)).sum(-1) and the sum over all dimensions, also with smoothed labels."""
    for log_probs in x.inputs if x.op == "mul" else ():
        for chosen in x.inputs:
            spread = smoothed_one_hot(view, chosen) if log_probs is not chosen else None
            hot, given = spread if spread is not None else (chosen, None)
            target = _target_of(view, hot)
            rest = without(x.inputs, (log_probs, chosen)) if target is not None and log_probs is not chosen else None
            if target is None or rest is None or not all(literal(r) is not None or view.number(r) for r in rest):
                continue
            found = log_softmax_in(view, log_probs, target[1], view.rank(target[0]))
            if found is not None and given is not None and _has_same_dtype(view, chosen, log_probs):
                smoothing = smoothing_of(view, given, found, hot.inputs[1] if hot.op == "one_hot" else None)
                loss = (
                    None if smoothing is None else _target_loss(view, found.with_assumption(smoothing[1]), target, dim)
                )
                loss = with_smoothing(view, loss, smoothing[0]) if smoothing and loss is not None else None
            else:
                loss = None if found is None or given is not None else _target_loss(view, found, target, dim)
            if loss is not None:
                return product(view, (loss, view.const(-1), *rest))
    return None


def _has_same_dtype(view: View, chosen: Value, log_probs: Value) -> bool:
    """Whether the labels may have the dtype of the logits, so that they are rounded alike."""
    own, other = known_dtypes(view, strip_casts(chosen)), known_dtypes(view, log_probs)
    return not own or not other or own == other


def with_smoothing(view: View, loss: Value, smoothing: Value) -> Value:
    """`loss` with label smoothing."""
    plain = next(f for f in factors_of(loss) if f.op == "cross_entropy")
    rest = without(factors_of(loss), (plain,)) or []
    *options, _, dim, lookup, count = plain.inputs
    made = view.plain("cross_entropy", *options, smoothing, dim, lookup, count)
    return product(view, (view.with_assumption(made, view.assumption(plain)), *rest))


def _target_loss(view: View, log_probs: ClassRows, target: tuple[Value, int, str], dim: Value) -> Value | None:
    """The loss of each target, or their sum if `dim` is None; None if `dim` is not the dimension of the classes.

    `target` is the result of `_target_of`.
    """
    if is_const(dim, None):
        return _reduce_loss(view, "sum", loss_of_each(view, log_probs, target[0], target[2]))
    if type(dim.data) is not int:
        return None
    rank = view.rank(target[0])
    if dim.data == target[1] or rank is not None and dim.data % (rank + 1) == target[1] % (rank + 1):
        return loss_of_each(view, log_probs, target[0], target[2])
    if rank is not None or {dim.data, target[1]} != {1, -1}:
        return None
    return loss_of_each(view, log_probs.with_assumption(_ONE).with_dim(1), target[0], target[2])


def _target_of(view: View, v: Value) -> tuple[Value, int, str] | None:
    """(target, dimension of the classes, lookup), if `v` is one_hot(target) or zeros with scattered ones; else None."""
    v = strip_casts(v)
    if v.op == "one_hot":
        return v.inputs[0], -1, "one_hot"
    if v.op == "scatter" and strip_casts(v.inputs[0]).op == "zeros_like" and is_const(v.inputs[3], 1, 1.0):
        dim = v.inputs[1].data
        found = _target_in(view, v.inputs[2], dim) if type(dim) is int else None
        return (found[0], found[1], "scatter") if found and not found[2] else None
    return None
