"""Finds the dimension of the classes in logits, through views, permutations, casts and slices.

A row is one set of classes. Each of these steps must keep a row together, and the rows in their order. This file knows
no loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autofuse.canonical.recognise.logit_scales import LogitScale, undo_scale
from autofuse.canonical.recognise.projections import as_linear
from autofuse.canonical.shapes import elements, source_dimension
from autofuse.canonical.view import CAST, PERMUTE, View, order_of
from autofuse.ir import layout
from autofuse.ir.graph import ATTRIBUTE, ITEM, SLICE, TUPLE, Value, is_const, is_full_slice

_THREE = "assumes that the logits have three dimensions"
_TOGETHER = "assumes that the view keeps the classes of each row together"
_UNCUT = "assumes that the index does not select classes"


@dataclass(frozen=True)
class ClassRows:
    """A value and the dimension of its classes.

    Attributes:
        value: log-probabilities or logits.
        dim: the dimension of the classes.
        assumed: the assumption under which this holds; "" if it always holds.
    """

    value: Value
    dim: int
    assumed: str = ""

    def with_assumption(self, why: str) -> ClassRows:
        """The same rows under one more assumption; "" adds none."""
        known = self.assumed.split("; ") if self.assumed else []
        return self if not why or why in known else replace(self, assumed="; ".join([*known, why]))

    def with_dim(self, dim: int) -> ClassRows:
        """The same value, with its classes in dimension `dim`."""
        return replace(self, dim=dim)


def torch_class_dim(rank: int) -> int:
    """The dimension of the classes in torch's losses, from the end: the second dimension, or the only one."""
    return 1 - rank if rank > 1 else -1


def undo_layout(view: View, found: ClassRows, rank: int | None, op: str) -> tuple[ClassRows, int | None] | None:
    """Undo views and permutations until the value is an `op`.

    Args:
        view: the canonical view.
        found: the value to begin with.
        rank: its number of dimensions, if known.
        op: the operation to look for.

    Returns:
        The `op` with the dimension of its classes, and its rank, if known; None if there is no such operation.
    """
    while found.value.op != op:
        inner = _undo_step(view, found, view.rank(found.value) or rank)
        if inner is None:
            return None
        rank = view.rank(found.value) or rank if found.value.op in (PERMUTE, "transpose") else None
        found = inner
    return found, view.rank(found.value) or rank


def _undo_step(view: View, found: ClassRows, rank: int | None) -> ClassRows | None:
    """Undo the last view or permutation; None if that is not possible."""
    v, dim = found.value, found.dim
    if dim >= 0 and rank is not None:
        dim = torch_class_dim(rank) if dim == 1 else dim - rank
    if v.op == PERMUTE:
        return _undo_permute(replace(found, dim=dim), order_of(v))
    if v.op == "transpose":
        return _undo_transpose(replace(found, dim=dim))
    if v.op == "rearrange":
        return _undo_rearrange(replace(found, dim=dim))
    if v.op == ITEM and v.inputs[0].op == "log_softmax":
        return _undo_index(view, replace(found, dim=dim))
    if v.op == "flatten" and dim == 1 and is_const(v.inputs[1], 0) and is_const(v.inputs[2], 1):
        return replace(found, value=v.inputs[0], dim=-1).with_assumption(_THREE)
    if v.op in ("view", "flatten") and (dim == -1 or dim == 1 and view.rank(v) == 2):
        why = _view_assumption(view, v)
        return None if why is None else replace(found, value=v.inputs[0], dim=-1).with_assumption(why)
    return None


def _undo_index(view: View, found: ClassRows) -> ClassRows | None:
    """Selected rows of a log_softmax are the log_softmax of the selected rows."""
    log_probs, index = found.value.inputs
    why = _index_assumption(view, found.value)
    parts = index.inputs if index.op == TUPLE else (index,)
    if why is None or found.dim != -1 and not all(p.op == SLICE for p in parts):
        return None
    x = view.plain(ITEM, log_probs.inputs[0], index)
    made = view.plain("log_softmax", x, log_probs.inputs[1])
    return replace(found, value=view.replace_step(log_probs, made)).with_assumption(why)


def _undo_permute(found: ClassRows, order: layout.Tail) -> ClassRows | None:
    dim = found.dim
    if dim >= 0:
        if dim != 1 or len(order) != 3:
            return None
        found, dim = found.with_assumption(_THREE), -2
    rows = [source for place, source in enumerate(order, -len(order)) if place != dim]
    if rows != sorted(rows):
        return None
    return replace(found, value=found.value.inputs[0], dim=source_dimension(order, dim))


def _undo_transpose(found: ClassRows) -> ClassRows | None:
    """Undo `x.transpose(a, b)`, if it swaps the dimension of the classes with a neighbour, or 1 with -1; else None."""
    x, *ends = found.value.inputs
    a, b = (e.data for e in ends)
    if type(a) is not int or type(b) is not int or found.dim not in (a, b):
        return None
    other = b if found.dim == a else a
    if abs(a - b) == 1 and min(a, b) >= 0:
        inner = replace(found, value=x, dim=other)
        return inner if other < 2 else inner.with_assumption(_THREE).with_dim(-1)
    return replace(found, value=x, dim=other).with_assumption(_THREE) if {a, b} == {1, -1} else None


def _undo_rearrange(found: ClassRows) -> ClassRows | None:
    """Undo einops.rearrange with a pattern such as `b n c -> b c n` or `b n c -> (b n) c`."""
    pattern = found.value.inputs[1].data
    if not isinstance(pattern, str) or pattern.count("->") != 1:
        return None
    before, after = (side.replace("(", " ( ").replace(")", " ) ").split() for side in pattern.split("->"))
    axes = _groups(after)
    dim = found.dim - len(axes) if found.dim >= 0 else found.dim
    if "(" in before or "..." in before + after or not -len(axes) <= dim < 0 or len(axes[dim]) != 1:
        return None
    letter = axes[dim][0]
    rows = [w for i, axis in enumerate(axes, -len(axes)) if i != dim for w in axis]
    if letter not in before or rows != [w for w in before if w != letter]:
        return None
    return replace(found, value=found.value.inputs[0], dim=before.index(letter) - len(before))


def _groups(words: list[str]) -> list[list[str]]:
    axes: list[list[str]] = []
    inside = False
    for w in words:
        if w in "()":
            inside = w == "("
            axes += [[]] if inside else []
        elif inside:
            axes[-1].append(w)
        else:
            axes.append([w])
    return axes


def _view_assumption(view: View, v: Value) -> str | None:
    """The assumption under which a view keeps the last dimension ("" if it always does); None if it does not."""
    if v.op == "flatten":
        return _flatten_assumption(view, v)
    sizes = elements(v.inputs[1])
    if not sizes:
        return None
    return "" if _is_last_size(view, sizes[-1], v.inputs[0]) else None if is_const(sizes[-1], 1) else _TOGETHER


def _flatten_assumption(view: View, v: Value) -> str | None:
    end, rank = v.inputs[2].data, view.rank(v.inputs[0])
    if type(end) is not int or end == -1:
        return None
    if end < 0 or rank is not None:
        return "" if rank is None or end % rank < rank - 1 else None
    return _TOGETHER


def _is_last_size(view: View, size: Value, of: Value) -> bool:
    """Whether `size` is x.size(-1) or x.shape[-1], where x has the sizes of `of`."""
    if size.op == "size":
        owner, dim = size.inputs
    elif size.op == ITEM and size.inputs[0].op == ATTRIBUTE and size.inputs[0].data == "shape":
        owner, dim = size.inputs[0].inputs[0], size.inputs[1]
    else:
        return False
    rank = view.rank(of)
    last = is_const(dim, -1) or rank is not None and is_const(dim, rank - 1)
    return last and _same_sizes(owner, of)


def _same_sizes(v: Value, of: Value) -> bool:
    keeping = ("log_softmax", "softmax", CAST)
    while v.op in keeping:
        v = v.inputs[0]
    while of.op in keeping:
        of = of.inputs[0]
    return v is of


# Linear layers that compute logits.


@dataclass(frozen=True)
class Rows:
    """A linear layer that computes logits, with the same rows, and what the program does with each logit.

    Attributes:
        linear: the linear layer.
        in_float32: whether the program casts its output to float32.
        scale: the arithmetic on its output.
        flat: whether the program flattens all rows into one dimension; None if it may arrange them in another way.
    """

    linear: Value
    in_float32: bool
    scale: LogitScale
    flat: bool | None = False


def rows_of(view: View, log_probs: Value) -> Rows | None:
    """The linear layer that computes the logits of a log_softmax, before changes of layout; None if there is none."""
    x, dim = log_probs.inputs[:2]
    if type(dim.data) is not int:
        return None
    found, wide, scale = ClassRows(x, dim.data), False, LogitScale()
    rank = view.rank(found.value)
    flat: bool | None = False
    while found.value.op != ITEM and as_linear(view, found.value) is None:
        if (unscaled := undo_scale(view, found.value, scale)) is not None:
            found, scale = replace(found, value=unscaled[0]), unscaled[1]
            continue
        if found.value.op in (CAST, "float32"):
            if not _to_float32(view, found.value):
                return None
            found, wide = replace(found, value=found.value.inputs[0]), True
            continue
        inner = _undo_step(view, found, view.rank(found.value) or rank)
        if inner is None:
            return None
        flat = True if flat or view.rank(found.value) == 2 and found.value.op in ("view", "flatten") else None
        rank = view.rank(found.value) or rank if found.value.op in (PERMUTE, "transpose") else None
        found = inner
    if found.dim == 1 and (rank := view.rank(found.value) or rank) in (None, 2):
        found = found.with_dim(-1).with_assumption("" if rank else "assumes that the logits have two dimensions")
    rows = _slice_input(view, found, wide, scale) if found.dim == -1 else None
    return None if rows is None else replace(rows, flat=flat)


def _slice_input(view: View, found: ClassRows, wide: bool, scale: LogitScale) -> Rows | None:
    """Move slices of the rows from the output of a linear layer to its input; None if there is no linear layer."""
    indices: list[Value] = []
    v = found.value
    while v.op in (ITEM, CAST, "float32", "mul") and as_linear(view, v) is None:
        if v.op == "mul":
            unscaled = undo_scale(view, v, scale)
            if unscaled is None:
                return None
            v, scale = unscaled
            continue
        if v.op == ITEM:
            why = _index_assumption(view, v)
            if why is None:
                return None
            found = found.with_assumption(why)
            indices.append(v.inputs[1])
        elif _to_float32(view, v):
            wide = True
        else:
            return None
        v = v.inputs[0]
    layer = as_linear(view, v)
    if layer is None:
        return None
    x, *weights = layer.inputs
    for index in reversed(indices):
        x = view.plain(ITEM, x, index)
    linear = view.plain("linear", x, *weights) if indices else layer
    why = "; ".join(filter(None, (view.assumption(layer), found.assumed)))
    return Rows(view.with_assumption(linear, why), wide, scale)


def _index_assumption(view: View, item: Value) -> str | None:
    """The assumption under which an index selects whole rows ("" if it always does); None if it does not."""
    container, index = item.inputs
    parts = index.inputs if index.op == TUPLE else (index,)
    if not all(p.op == SLICE or is_const(p) and (p.data is ... or type(p.data) is int) for p in parts):
        return None
    if any(is_const(p, ...) for p in parts):
        return "" if is_full_slice(parts[-1]) else None
    rank = view.rank(container)
    if rank is not None:
        return "" if len(parts) < rank or is_full_slice(parts[-1]) else None
    return None if len(parts) > 2 and not is_full_slice(parts[-1]) else _UNCUT


def _to_float32(view: View, v: Value) -> bool:
    """Whether the program casts to float32 here."""
    if v.op == "float32":
        return True
    for o in view.originals(v):
        if o.op == "float":
            return True
        targets = o.inputs[1].inputs if o.op == "to" else ()
        if len(targets) == 1 and targets[0].op == ATTRIBUTE and targets[0].data in ("float32", "float"):
            return True
    return False
