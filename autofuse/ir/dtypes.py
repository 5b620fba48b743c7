"""Infers the dtype of a value from a graph, without running anything.

A dtype is a set of symbols, and denotes the dtype to which all of them promote. A symbol is the name of a dtype
("float32") or a value whose dtype is unknown. So `weight * x.float()` has {weight, "float32"}.

Equal sets are equal dtypes, whatever the unknown dtypes are. Different sets may denote the same dtype or not. A Python
number has the empty set, because it changes no floating dtype. A matrix product is a symbol of its own, because under
autocast it has a dtype that no operand has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autofuse.ir.graph import ATTRIBUTE, CHOICE, ITEM, MODULE, TUPLE, Value, is_const
from autofuse.ir.vocabulary import OPS, SAME_SIZES

Dtype = frozenset["str | Value"]
NUMBER: Dtype = frozenset()  # no symbol, because a Python number does not change the dtype of a tensor
FLOAT32: Dtype = frozenset({"float32"})

_DTYPE_NAMES = {
    "float": "float32", "float32": "float32", "double": "float64", "float64": "float64", "half": "float16",
    "float16": "float16", "bfloat16": "bfloat16",
}  # fmt: skip
CASTS = frozenset("float double half bfloat16 to type_as long bool".split())
_LIKE_FUNCTIONS = frozenset("full_like ones_like zeros_like".split())
_CHANGE_DTYPE = _LIKE_FUNCTIONS | frozenset("invert logical_not one_hot masked".split())
_REDUCTIONS = frozenset("mean sum amax amin prod logsumexp var std var_mean".split())
_VIEWS = frozenset(name for name, op in OPS.items() if op.effect == "view")
_KEEP_DTYPE = (
    (SAME_SIZES | _REDUCTIONS | _VIEWS) - CASTS - _CHANGE_DTYPE - {"complex", "view_as_complex", "view_as_real"}
)
_PROMOTE = frozenset("add sub rsub mul div pow maximum minimum".split())
_PRODUCTS = frozenset("matmul einsum einops_einsum linear addmm baddbmm".split())
_WITH_DTYPE = {"softmax": 2, "log_softmax": 2, "norm": 4, "vector_norm": 4}  # the position of their argument `dtype`
PARTS = frozenset({"chunk", "split", "unbind"})


def dtype_of(v: Value, of: Callable[[Value], Dtype], number: bool | None) -> Dtype:
    """Infer the dtype of `v`.

    Args:
        v: the value.
        of: returns the dtype of an input of `v`.
        number: whether `v` is a Python number; None if unknown.

    Returns:
        The dtype, as a set of symbols. If nothing is known, it is the set that holds `v` alone.
    """
    if number:
        return NUMBER
    if v.op in CASTS:
        return _cast(v, of)
    if v.op in _WITH_DTYPE:
        argument = v.inputs[_WITH_DTYPE[v.op]]
        return of(v.inputs[0]) if is_const(argument, None) else named_dtype(argument, of)
    if v.op in _PROMOTE:
        return _without_narrow_products(promoted(map(of, v.inputs[:2])), of) or frozenset({v})
    if v.op == "where" or v.op == CHOICE:
        sides = {of(side) for side in v.inputs[1:]} - {NUMBER}
        return sides.pop() if len(sides) == 1 else frozenset({v})
    if v.op == ITEM:
        return of(v.inputs[0].inputs[0] if v.inputs[0].op in PARTS else v.inputs[0])
    if v.op in _LIKE_FUNCTIONS and any(is_const(o) for o in v.inputs[-1].inputs) == bool(v.inputs[-1].inputs):
        return of(v.inputs[0])
    if v.op in _KEEP_DTYPE and v.inputs:
        return of(v.inputs[0]) or frozenset({v})
    return frozenset({v})


def promoted(dtypes: Iterable[Dtype]) -> Dtype:
    """The dtype to which the dtypes of floating-point tensors promote.

    The result is exact for the names: float16 and bfloat16 promote to float32, as torch.promote_types does.
    """
    symbols = frozenset().union(*dtypes)
    names = {s for s in symbols if isinstance(s, str)}
    if "float64" in names:
        return frozenset({"float64"})
    halves = {"float16", "bfloat16"}
    if "float32" in names or halves <= names:
        symbols = symbols - halves | {"float32"}
    return symbols


def _without_narrow_products(dtype: Dtype, of: Callable[[Value], Dtype]) -> Dtype:
    """Drop the matrix products from `dtype` that cannot widen it.

    A product has the dtype of its operands, or the narrower one of autocast. If the operands do not widen `dtype`, the
    product does not either.
    """
    for symbol in dtype:
        if isinstance(symbol, Value) and symbol.op in _PRODUCTS:
            rest = dtype - {symbol}
            parts = [part for i in symbol.inputs for part in (i.inputs if i.op == TUPLE else (i,))]
            if rest and all(of(part) <= rest for part in parts if not is_const(part)):
                dtype = rest
    return dtype


def _cast(v: Value, of: Callable[[Value], Dtype]) -> Dtype:
    if v.op in _DTYPE_NAMES:
        return frozenset({_DTYPE_NAMES[v.op]})
    if v.op == "type_as":
        return of(v.inputs[1])
    if v.op != "to":  # long and bool are not floating-point dtypes, and promote in other ways
        return frozenset({v})
    targets = (*v.inputs[1].inputs, *v.inputs[2].inputs)
    dtypes = [t for t in targets if _may_be_dtype(t)]
    return named_dtype(dtypes[0], of) if len(dtypes) == 1 else frozenset({v})


def _may_be_dtype(target: Value) -> bool:
    """Whether an argument of `.to` may be a dtype: torch.float32, x.dtype, or a variable that may hold one."""
    if target.op == ATTRIBUTE:
        return target.data != "device"
    return not is_const(target) or is_const(target, "float")


def named_dtype(target: Value, of: Callable[[Value], Dtype]) -> Dtype:
    """Return the dtype that an argument such as torch.float32 or x.dtype names.

    Any other argument is a symbol of its own.
    """
    if target.op == ATTRIBUTE and target.data == "dtype":
        return of(target.inputs[0]) or frozenset({target})
    if target.op == ATTRIBUTE and target.data in _DTYPE_NAMES and target.inputs[0].op == MODULE:
        return frozenset({_DTYPE_NAMES[str(target.data)]})
    return frozenset({target})
