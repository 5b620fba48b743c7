"""Recognises linear layers in all spellings, such as `addmm` of flattened rows in GPT-2.

Introduces linear(x, weight, bias), whose weight has the shape (out, in), as in torch. A matrix product becomes a linear
layer only by `as_linear`, because attention has matrix products too.
"""

from __future__ import annotations

from autofuse.canonical.shapes import elements, from_end
from autofuse.canonical.sizes import lengths
from autofuse.canonical.view import CAST, PERMUTE, View, rewrites
from autofuse.ir import layout
from autofuse.ir.graph import ATTRIBUTE, ITEM, PARAMETER, SLICE, TUPLE, Value, is_const


@rewrites("view")
def _view(view: View, x: Value, shape: Value) -> Value | None:
    """A view of addmm(bias, x.view(-1, n), weight) with the shape of x, except for the last dimension."""
    # addmm multiplies the bias by beta and the product by alpha.
    if x.op != "addmm" or not is_const(x.inputs[3], 1, 1.0) or not is_const(x.inputs[4], 1, 1.0):
        return None
    bias, rows, weight = x.inputs[:3]
    whole = _value_before_flattening(view, rows)
    if whole is None or view.rank(weight) not in (None, 2) or not _same_except_last_size(view, whole, shape):
        return None
    return view.plain("linear", whole, view.permuted(weight, layout.SWAP), bias)


def _value_before_flattening(view: View, rows: Value) -> Value | None:
    """x, if `rows` is x.view(-1, x.size(-1)); else None."""
    sizes = elements(rows.inputs[1]) if rows.op == "view" else ()
    if len(sizes) == 2 and is_const(sizes[0], -1) and _is_size(view, sizes[1], rows.inputs[0], -1):
        return rows.inputs[0]
    return None


def _same_except_last_size(view: View, x: Value, shape: Value) -> bool:
    """Whether a shape is the shape of `x` except for the last size: (b, n, m), or x.size()[:-1] + (m,)."""
    sizes = elements(shape)
    if len(sizes) == 1 and sizes[0].op == "add" and len(sizes[0].inputs) == 2:
        front, last = sorted(sizes[0].inputs, key=lambda v: v.op == TUPLE)
        return last.op == TUPLE and len(last.inputs) == 1 and _is_shape_without_last(x, front)
    rank = view.rank(x)
    return rank == len(sizes) and all(_is_size(view, s, x, i - rank) for i, s in enumerate(sizes[:-1]))


def _is_shape_without_last(x: Value, v: Value) -> bool:
    """Whether `v` is x.size()[:-1] or x.shape[:-1]."""
    if v.op != ITEM or v.inputs[1].op != SLICE:
        return False
    start, stop, step = v.inputs[1].inputs
    return _is_shape(x, v.inputs[0]) and is_const(start, None, 0) and is_const(stop, -1) and is_const(step, None)


def _is_shape(x: Value, v: Value) -> bool:
    whole = v.op == "size" and is_const(v.inputs[1], None) or v.op == ATTRIBUTE and v.data == "shape"
    return whole and v.inputs[0] is x


def _is_size(view: View, v: Value, x: Value, dim: int) -> bool:
    if v.op == "size":
        return v.inputs[0] is x and from_end(view, x, v.inputs[1]) == dim
    return v.op == ITEM and _is_shape(x, v.inputs[0]) and from_end(view, x, v.inputs[1]) == dim


def as_linear(view: View, v: Value) -> Value | None:
    """`v` as a linear layer, if it is x @ weight.T + bias with weight and bias of the module; else None."""
    if v.op == "linear":
        return v
    if v.op == "matmul":
        return _linear_of(view, v.inputs[0], v.inputs[1], view.const(None))
    if v.op == "addmm" and is_const(v.inputs[3], 1, 1.0) and is_const(v.inputs[4], 1, 1.0):
        bias, x, weight = v.inputs[:3]
        return _linear_of(view, x, weight, bias) if _may_be_bias(view, bias) else None
    # The operands of a sum have no order.
    for product, bias in (v.inputs, v.inputs[::-1]) if v.op == "add" and len(v.inputs) == 2 else ():
        inner = as_linear(view, product) if product.op in ("matmul", "linear") else None
        if inner is None or not is_const(inner.inputs[2], None) or not _may_be_bias(view, bias):
            continue
        x, weight, _ = inner.inputs
        if _fits_rows(view, weight, bias):
            return view.with_assumption(view.plain("linear", x, weight, bias), view.assumption(inner))
    return None


def _linear_of(view: View, x: Value, matrix: Value, bias: Value) -> Value | None:
    """The linear layer x @ matrix + bias, with a matrix of shape (in, out); None if it belongs to no module."""
    weight = view.permuted(matrix.inputs[0] if matrix.op == "t" else matrix, layout.SWAP)
    if matrix.op == "t" or _is_transposed(matrix):  # a permutation only for two dimensions, which may be unknown
        weight = matrix.inputs[0]
    rank = view.rank(weight)
    if rank not in (None, 2) or not belongs_to_module(weight):
        return None
    if not is_const(bias, None) and not _fits_rows(view, weight, bias):
        return None
    made = view.plain("linear", x, weight, bias)
    return view.with_assumption(made, "" if rank == 2 else "assumes that the matrices of the MLP have two dimensions")


def _is_transposed(v: Value) -> bool:
    return v.op == ATTRIBUTE and v.data == "T"


def _may_be_bias(view: View, v: Value) -> bool:
    return belongs_to_module(v) and view.rank(v) in (None, 1) and view.number(v) is not True


def _fits_rows(view: View, weight: Value, bias: Value) -> bool:
    """Whether a bias has one entry for each row of the weight, as far as their sizes are known."""
    sizes = [known[0] for v in (weight, bias) if (known := lengths(view, v)) and type(known[0]) is int]
    return len({*sizes}) < 2


def belongs_to_module(v: Value) -> bool:
    """Whether `v` is an attribute of the module or of a submodule, apart from permutations and casts."""
    while v.op in (PERMUTE, CAST):
        v = v.inputs[0]
    while v.op == ATTRIBUTE:
        v = v.inputs[0]
        if v.op == PARAMETER:
            return bool(v.data == "self")
    return False
