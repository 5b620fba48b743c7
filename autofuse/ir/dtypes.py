"""The dtype of a value as far as a graph tells it, without running anything.

A dtype is a set of symbols, and stands for that to which all of them promote: the name of a dtype ("float32"), or a
value whose own dtype nobody knows. So `weight * x.float()` has {weight, "float32"}. Equal sets are equal dtypes,
whatever the symbols turn out to be; two different sets may be equal or not. A number has the empty set, for it changes
no floating dtype. Products of matrices are symbols of their own: autocast gives them a dtype that no operand has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autofuse.ir.graph import ATTRIBUTE, CHOICE, ITEM, MODULE, TUPLE, Value, is_const
from autofuse.ir.vocabulary import OPS, SAME_SIZES

Dtype = frozenset["str | Value"]
NUMBER: Dtype = frozenset()
FLOAT32: Dtype = frozenset({"float32"})

_NAMED = {
    "float": "float32", "float32": "float32", "double": "float64", "float64": "float64", "half": "float16",
    "float16": "float16", "bfloat16": "bfloat16",
}  # fmt: skip
CASTS = frozenset("float double half bfloat16 to type_as long bool".split())
_MADE_LIKE = frozenset("full_like ones_like zeros_like".split())
_LOSES = _MADE_LIKE | frozenset("invert logical_not one_hot masked".split())
_REDUCTIONS = frozenset("mean sum amax amin prod logsumexp var std var_mean".split())
_VIEWS = frozenset(name for name, op in OPS.items() if op.effect == "view")
_KEEP = (SAME_SIZES | _REDUCTIONS | _VIEWS) - CASTS - _LOSES - {"complex", "view_as_complex", "view_as_real"}
_PROMOTE = frozenset("add sub rsub mul div pow maximum minimum".split())
_PRODUCTS = frozenset("matmul einsum einops_einsum linear addmm baddbmm".split())
_WITH_DTYPE = {"softmax": 2, "log_softmax": 2, "norm": 4, "vector_norm": 4}  # where their argument `dtype` stands
_PARTS = frozenset({"chunk", "split", "unbind"})


def dtype_of(v: Value, of: Callable[[Value], Dtype], number: bool | None) -> Dtype:
    """The dtype of `v`, given those of its inputs; `number` says whether it is a Python number."""
    if number:
        return NUMBER
    if v.op in CASTS:
        return _cast(v, of)
    if v.op in _WITH_DTYPE:
        given = v.inputs[_WITH_DTYPE[v.op]]
        return of(v.inputs[0]) if is_const(given, None) else named_dtype(given, of)
    if v.op in _PROMOTE:
        return _less_products(promoted(map(of, v.inputs[:2])), of) or frozenset({v})
    if v.op == "where" or v.op == CHOICE:
        sides = {of(side) for side in v.inputs[1:]} - {NUMBER}
        return sides.pop() if len(sides) == 1 else frozenset({v})
    if v.op == ITEM:
        return of(v.inputs[0].inputs[0] if v.inputs[0].op in _PARTS else v.inputs[0])
    if v.op in _MADE_LIKE and any(is_const(o) for o in v.inputs[-1].inputs) == bool(v.inputs[-1].inputs):
        return of(v.inputs[0])
    if v.op in _KEEP and v.inputs:
        return of(v.inputs[0]) or frozenset({v})
    return frozenset({v})


def promoted(dtypes: Iterable[Dtype]) -> Dtype:
    """That to which `dtypes` promote, of floating tensors."""
    symbols = frozenset().union(*dtypes)
    names = {s for s in symbols if isinstance(s, str)}
    if "float64" in names:
        return frozenset({"float64"})
    halves = {"float16", "bfloat16"}
    if "float32" in names or halves <= names:
        symbols = symbols - halves | {"float32"}
    return symbols


def _less_products(dtype: Dtype, of: Callable[[Value], Dtype]) -> Dtype:
    """`dtype` without products of matrices that widen nothing: theirs is that of their operands, or autocast's."""
    for symbol in dtype:
        if isinstance(symbol, Value) and symbol.op in _PRODUCTS:
            rest = dtype - {symbol}
            parts = [part for i in symbol.inputs for part in (i.inputs if i.op == TUPLE else (i,))]
            if rest and all(of(part) <= rest for part in parts if not is_const(part)):
                dtype = rest
    return dtype


def _cast(v: Value, of: Callable[[Value], Dtype]) -> Dtype:
    if v.op in _NAMED:
        return frozenset({_NAMED[v.op]})
    if v.op == "type_as":
        return of(v.inputs[1])
    if v.op != "to":
        return frozenset({v})
    targets = (*v.inputs[1].inputs, *v.inputs[2].inputs)
    dtypes = [t for t in targets if _says_dtype(t)]
    return named_dtype(dtypes[0], of) if len(dtypes) == 1 else frozenset({v})


def _says_dtype(target: Value) -> bool:
    """Whether an argument of `.to` says a dtype: torch.float32, x.dtype, or a name that may hold one."""
    if target.op == ATTRIBUTE:
        return target.data != "device"
    return not is_const(target) or is_const(target, "float")


def named_dtype(target: Value, of: Callable[[Value], Dtype]) -> Dtype:
    """The dtype that a value is: torch.float32, x.dtype; a symbol of its own for any other."""
    if target.op == ATTRIBUTE and target.data == "dtype":
        return of(target.inputs[0]) or frozenset({target})
    if target.op == ATTRIBUTE and target.data in _NAMED and target.inputs[0].op == MODULE:
        return frozenset({_NAMED[str(target.data)]})
    return frozenset({target})
