"""Infers from a graph whether a tensor is floating-point: True, False (integers or booleans), or None (unknown).

A result is floating-point if the operation returns nothing else, or raises an error for anything else: a mean, a
square root, a quotient, a product with 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autofuse.ir.complex_numbers import COMPLEX_DTYPES
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, ITEM, MODULE, TUPLE, Value
from autofuse.ir.vocabulary import ACTIVATIONS, OPS

_FLOATING_NAMES = frozenset("float32 float16 bfloat16 float64 float half double".split())
# Operations that are not defined on integers.
NEEDS_FLOATING = frozenset(
    "mean var std norm vector_norm layer_norm rms_norm group_norm softmax log_softmax logsumexp glu normalize "
    "logsigmoid softsign hardsigmoid cross_entropy mse_loss l1_loss".split()
) | (ACTIVATIONS.keys() - {"relu", "relu6", "tanh"})
_GIVES_FLOATING = NEEDS_FLOATING | frozenset(
    "div reciprocal sqrt rsqrt log exp log1p log2 log10 expm1 exp2 sin cos tan atan sinh cosh erf erfc tanh sigmoid "
    "logit float double half bfloat16 logaddexp atan2 hypot lerp".split()
)
_NOT_FLOATING = frozenset(
    "eq ne lt le gt ge invert logical_not and or logical_and logical_or bool long one_hot".split()
)
_PROMOTING = frozenset("add sub rsub mul maximum minimum matmul linear addmm baddbmm addcmul addcdiv".split())
_FLOATING_CALLS = frozenset(
    "torch.randn torch.rand torch.linspace torch.hann_window torch.nn.functional.embedding".split()
)
_INTEGER_CALLS = frozenset(
    """
    torch.randint torch.randperm torch.argmax torch.argmin torch.argsort torch.nonzero torch.searchsorted
    torch.bucketize torch.multinomial torch.bincount torch.tril_indices torch.triu_indices torch.count_nonzero
    torch.LongTensor torch.IntTensor torch.ShortTensor torch.CharTensor torch.ByteTensor torch.BoolTensor
    .argmax .argmin .argsort .nonzero .multinomial .bincount .count_nonzero .int .short .char .byte
    """.split()
)
_INTEGER_NAMES = frozenset("int8 int16 int32 int64 uint8 bool long int short".split())
_VIEWS = frozenset(name for name, op in OPS.items() if op.effect == "view")
_KEEP_DTYPE = (_VIEWS | frozenset(name for name, op in OPS.items() if op.keeps_sizes)) - {
    "to",
    "type_as",
    "view_as_complex",
}


def floating(v: Value, of: Callable[[Value], bool | None]) -> bool | None:
    """Whether `v` is floating-point; None if unknown. `of` returns the answer for an input of `v`."""
    if v.op == CONST:
        return isinstance(v.data, float) or None
    if v.op in _GIVES_FLOATING or is_linear_layer(v):
        return True
    if v.op in _NOT_FLOATING:
        return False
    if v.op == "to":
        return _cast_floating(v, of)
    if v.op == "type_as":
        return of(v.inputs[1])
    if v.op in _PROMOTING:
        return _any_floating(map(of, v.inputs))
    if v.op == "pow":
        return _any_floating((of(v.inputs[0]), of(v.inputs[1]) or None))
    if v.op in ("where", CHOICE):
        answers = {of(side) for side in v.inputs[1:]}
        return True if v.op == "where" and True in answers else answers.pop() if len(answers) == 1 else None
    if v.op in ("cat", "stack", "einsum", "einops_einsum"):
        return _any_floating(of(part) for i in v.inputs for part in (i.inputs if i.op == TUPLE else ()))
    if v.op in ("ones", "zeros", "full", "arange", "tensor"):
        return _created_floating(v, of)
    if v.op == CALL and isinstance(v.data, tuple) and v.data[0] in _FLOATING_CALLS | _INTEGER_CALLS:
        return v.data[0] in _FLOATING_CALLS or (None if "dtype" in v.data[1] else False)
    if v.op == "masked_fill" and of(v.inputs[2]):
        return True  # torch refuses to fill an integer tensor with a float
    if v.op == ITEM or v.op in _KEEP_DTYPE and v.inputs:
        return of(v.inputs[0])
    return None


def is_linear_layer(v: Value) -> bool:
    """Whether `v` is the result of an nn.Linear, such as self.proj(x). Its weight is always floating-point."""
    weight = v.inputs[1] if v.op == "linear" else None
    return weight is not None and weight.op == ATTRIBUTE and weight.inputs[0].op in (ATTRIBUTE, ITEM)


def _any_floating(answers: Iterable[bool | None]) -> bool | None:
    found = set(answers)
    return True if True in found else False if found == {False} else None


def _cast_floating(v: Value, of: Callable[[Value], bool | None]) -> bool | None:
    targets = (*v.inputs[1].inputs, *v.inputs[2].inputs)
    named = [t for t in targets if t.op == ATTRIBUTE and t.data != "device"]
    if len(named) != 1:
        return of(v.inputs[0]) if not named and all(t.op in (CONST, ATTRIBUTE) for t in targets) else None
    return of(named[0].inputs[0]) if named[0].data == "dtype" else _names_floating(named[0])


def _names_floating(dtype: Value) -> bool | None:
    if dtype.op == ATTRIBUTE and dtype.inputs[0].op == MODULE:
        return dtype.data in _FLOATING_NAMES or (False if dtype.data in _INTEGER_NAMES | COMPLEX_DTYPES else None)
    return None


def _created_floating(v: Value, of: Callable[[Value], bool | None]) -> bool | None:
    """Whether a new tensor is floating-point: by its dtype argument, else by the numbers that fill it."""
    options = [o for o in v.inputs[-1].inputs if o.op == ATTRIBUTE and o.data not in ("device", "requires_grad")]
    if options:
        return _names_floating(options[0]) if len(options) == 1 else None
    if v.op in ("ones", "zeros"):
        return True if not v.inputs[-1].inputs or all(o.op == CONST for o in v.inputs[-1].inputs) else None
    if v.op in ("arange", "tensor"):
        return True if _holds_float(v.inputs[0]) else False if _holds_only_integers(v.inputs[0]) else None
    return True if v.op == "full" and of(v.inputs[1]) else None


def _holds_float(v: Value) -> bool:
    """Whether one of the arguments is a float: torch.arange(0, 1, 0.1), torch.tensor([1.0, 2])."""
    return v.op == CONST and type(v.data) is float or v.op == TUPLE and any(map(_holds_float, v.inputs))


def _holds_only_integers(v: Value) -> bool:
    """Whether all arguments are integers: torch.arange(8), torch.arange(x.size(1)), torch.tensor([1, 2])."""
    if v.op == TUPLE:
        return bool(v.inputs) and all(map(_holds_only_integers, v.inputs))
    return v.op == CONST and type(v.data) in (int, bool) or v.op == "size" or v.op == ITEM and _is_shape(v.inputs[0])


def _is_shape(v: Value) -> bool:
    return v.op == ATTRIBUTE and v.data == "shape" or v.op == "size"
