"""The dtype kind and the sizes of the tensor that an expression creates.

`torch.arange(8).view(2, 4)[0]` is a tensor of 4 integers. This file reads calls of torch functions and tensor methods
with literal sizes. An unknown size or dtype stays None. It looks at syntax and at the names of torch; the caller
resolves names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autofuse.source.capture.scope import FileScope

Sizes = tuple[int | None, ...]


@dataclass(frozen=True)
class TensorFacts:
    """The dtype kind and the sizes of a tensor, or a Python number.

    Attributes:
        floating: True for floating-point, False for integers, booleans and complex numbers, None if unknown.
        sizes: one entry for each dimension, None for an unknown size; None if the rank is unknown.
        number: True for a Python number.
    """

    floating: bool | None = None
    sizes: Sizes | None = None
    number: bool = False


_CREATE_FLOATS = frozenset("randn rand zeros ones empty linspace logspace eye hann_window normal".split())
_TAKE_SIZES = frozenset("randn rand zeros ones empty".split())
_LIKE_FUNCTIONS = frozenset("randn_like rand_like zeros_like ones_like empty_like full_like".split())
_RETURN_INTEGERS = frozenset(
    "argmax argmin argsort nonzero searchsorted bucketize multinomial bincount randperm tril_indices triu_indices eq "
    "ne lt le gt ge isnan isinf isfinite isin logical_and logical_or logical_not logical_xor count_nonzero all "
    "any".split()
)
_TO_INTEGERS = frozenset("long int short char byte bool".split())
_TO_FLOATS = frozenset("float double half bfloat16".split())
_INTEGER_TYPES = frozenset("LongTensor IntTensor ShortTensor ByteTensor CharTensor BoolTensor".split())
_INTEGER_DTYPES = frozenset("int8 int16 int32 int64 uint8 bool long int short".split())
_COMPLEX_DTYPES = frozenset("complex32 complex64 complex128 cfloat cdouble chalf".split())
_TO_COMPLEX = frozenset("complex polar view_as_complex fft fftn fft2 rfft ifft cfloat cdouble chalf".split())
_FLOAT_DTYPES = frozenset("float16 float32 float64 bfloat16 float double half".split())
_KEEP_DTYPE_AND_SIZES = frozenset(
    "clone detach contiguous cuda cpu requires_grad_ pin_memory abs neg relu clamp clip triu tril flip roll cumsum "
    "masked_fill Parameter Buffer to fill_ zero_ share_memory_".split()
)
_RETURN_FLOATS = frozenset("sigmoid tanh exp log sqrt rsqrt softmax gelu silu sin cos div reciprocal".split())
_REDUCTIONS = frozenset("mean sum std var amax amin norm prod logsumexp median".split())
_TRUE_DIVISION = (ast.Div,)


class TensorReader:
    """Reads expressions of one file.

    `values_of` yields the expressions that a name or an attribute may have as its value.
    """

    def __init__(self, scope: FileScope, values_of: Callable[[ast.expr], Iterator[ast.expr | TensorFacts]]) -> None:
        self._scope, self._values_of = scope, values_of

    def read(self, node: ast.expr, depth: int = 12) -> TensorFacts | None:
        """Return what `node` evaluates to; None if it is neither a tensor nor a number, or if it is unknown.

        Args:
            node: the expression.
            depth: how many nested expressions and names are followed.
        """
        if depth == 0:
            return None
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as value):
                return TensorFacts(isinstance(value, float), (), number=True)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=operand):
                return self.read(operand, depth - 1)
            case ast.BinOp(left=ast.Constant(complex())) | ast.BinOp(right=ast.Constant(complex())):
                return TensorFacts(False)
            case ast.BinOp(left=left, op=op, right=right):
                return self._read_arithmetic(self.read(left, depth - 1), op, self.read(right, depth - 1))
            case ast.Compare(left=left, comparators=[right]):
                sides = [self.read(left, depth - 1), self.read(right, depth - 1)]
                tensors = [s for s in sides if s is not None and not s.number]
                return TensorFacts(False, _broadcast_sizes([s.sizes for s in tensors])) if tensors else None
            case ast.Subscript(value=value, slice=index):
                inner = self.read(value, depth - 1)
                return None if inner is None or inner.number else replace(inner, sizes=_index_sizes(inner.sizes, index))
            case ast.Attribute(value=value, attr="T" | "mT" | "data"):
                inner = self.read(value, depth - 1)
                if inner is None or inner.number or node.attr == "data":
                    return inner
                return replace(inner, sizes=_swap_sizes(inner.sizes, -1, -2))
            case ast.Call():
                return self._read_call(node, depth)
            case ast.IfExp(body=body, orelse=orelse):
                return self.read(body, depth - 1) or self.read(orelse, depth - 1)
            case ast.Name() | ast.Attribute():
                return self._read_name(node, depth)
        return None

    def _read_name(self, node: ast.expr, depth: int) -> TensorFacts | None:
        for value in self._values_of(node):
            facts = value if isinstance(value, TensorFacts) else self.read(value, depth - 1)
            if facts is not None:
                return facts
        return None

    @staticmethod
    def _read_arithmetic(left: TensorFacts | None, op: ast.operator, right: TensorFacts | None) -> TensorFacts | None:
        sides = [s for s in (left, right) if s is not None]
        if not sides:
            return None
        both_known = len(sides) == 2
        if not both_known and sides[0].number:
            return None  # the other operand may be anything: a tensor of any rank, or a number
        kinds = {s.floating for s in sides}
        floating = (
            True
            if isinstance(op, _TRUE_DIVISION) or True in kinds
            else False
            if both_known and kinds == {False}
            else None
        )
        sizes = _broadcast_sizes([s.sizes for s in sides]) if both_known else None
        if isinstance(op, ast.MatMult):
            sizes = None  # matmul does not broadcast its last two dimensions
        return TensorFacts(floating, sizes, number=both_known and all(s.number for s in sides))

    def _read_call(self, call: ast.Call, depth: int) -> TensorFacts | None:
        name = self._scope.name_of(call.func) or ""
        last = name.rpartition(".")[2]
        if name.startswith("torch."):
            facts = self._read_torch_function(last, call, depth)
        elif isinstance(call.func, ast.Attribute):
            last, inner = call.func.attr, self.read(call.func.value, depth - 1)
            if last in ("new_tensor", "new_zeros", "new_ones", "new_full", "new_empty"):
                facts = self._read_new_method(last, call, inner, depth)
            else:
                facts = None if inner is None or inner.number else self._read_method(last, inner, call.args, call)
        else:
            return None
        dtype = next((k.value for k in call.keywords if k.arg == "dtype"), None)
        floating = _is_floating_dtype(dtype)
        return replace(facts, floating=floating) if facts is not None and floating is not None else facts

    def _read_torch_function(self, function: str, call: ast.Call, depth: int) -> TensorFacts | None:
        args = call.args
        if function in _CREATE_FLOATS:
            return TensorFacts(
                True, _sizes(args) if function in _TAKE_SIZES else (None,) * (2 if function == "eye" else 1)
            )
        if function == "arange":
            return TensorFacts(any(_is_float_literal(a) for a in args), (_arange_length(args),))
        if function == "randint":
            shape = next((a for a in args if isinstance(a, (ast.Tuple, ast.List))), None)
            return TensorFacts(False, _sizes([shape]) if shape is not None else None)
        if function == "full" and len(args) > 1:
            fill = self.read(args[1], depth - 1)
            return TensorFacts(None if fill is None else fill.floating, _sizes(args[:1]))
        if function in ("tensor", "as_tensor") and args:
            return TensorFacts(_has_floats(args[0]), _sizes_of_contents(args[0]))
        if function in _INTEGER_TYPES:
            return TensorFacts(False, _sizes_of_contents(args[0]) if args else None)
        if function == "FloatTensor":
            return TensorFacts(True, _sizes_of_contents(args[0]) if args else None)
        if function == "where" and len(args) == 3:
            tensors = [m for a in args[1:] if (m := self.read(a, depth - 1)) is not None]
            # Two integers may be promoted to a third dtype, so only a floating-point side decides.
            return TensorFacts(True if any(s.floating for s in tensors) else None)
        if function in ("cat", "stack", "concat") and args and isinstance(args[0], (ast.Tuple, ast.List)):
            parts = [m for a in args[0].elts if (m := self.read(a, depth - 1)) is not None]
            return TensorFacts(True if any(p.floating for p in parts) else parts[0].floating) if parts else None
        inner = self.read(args[0], depth - 1) if args else None
        if function in _TO_COMPLEX:
            return TensorFacts(False)
        if function in _LIKE_FUNCTIONS:
            return TensorFacts(
                True if function.startswith("rand") or inner is None else inner.floating, inner.sizes if inner else None
            )
        if inner is None and function in _RETURN_INTEGERS:
            return TensorFacts(False)
        return None if inner is None or inner.number else self._read_method(function, inner, args[1:], call)

    def _read_new_method(
        self, method: str, call: ast.Call, inner: TensorFacts | None, depth: int
    ) -> TensorFacts | None:
        floating = None if inner is None else inner.floating
        if method == "new_tensor":
            return TensorFacts(floating, _sizes_of_contents(call.args[0]) if call.args else None)
        return TensorFacts(floating, _sizes(call.args[:1] if method == "new_full" else call.args))

    def _read_method(
        self, method: str, inner: TensorFacts, args: Sequence[ast.expr], call: ast.Call
    ) -> TensorFacts | None:
        """Return the result of a tensor method, or of the torch function of the same name, for the tensor `inner`."""
        sizes = inner.sizes
        if method in _TO_COMPLEX:
            return TensorFacts(False)
        if method in _TO_INTEGERS or method in _TO_FLOATS:
            return replace(inner, floating=method in _TO_FLOATS)
        if method in ("to", "type"):
            floating = next((k for a in args if (k := _is_floating_dtype(a)) is not None), None)
            return inner if floating is None else replace(inner, floating=floating)
        if method in _KEEP_DTYPE_AND_SIZES:
            return inner
        if method in _RETURN_FLOATS:
            return replace(inner, floating=True)
        if method in ("view", "reshape", "expand", "repeat"):
            return replace(inner, sizes=_sizes(args) if method != "repeat" else (None,) * len(args))
        if method in ("transpose", "swapaxes"):
            return replace(inner, sizes=_swap_sizes(sizes, *map(_integer_value, args[:2])) if len(args) == 2 else None)
        if method == "t":
            return replace(inner, sizes=_swap_sizes(sizes, 0, -1))
        if method == "permute":
            return replace(inner, sizes=None if sizes is None else (None,) * len(sizes))
        if method == "unsqueeze" and args and sizes is not None and (at := _integer_value(args[0])) is not None:
            at = at + len(sizes) + 1 if at < 0 else at
            return replace(inner, sizes=(*sizes[:at], 1, *sizes[at:]))
        if method == "flatten":
            return replace(inner, sizes=None if args or call.keywords else (None,))
        if method in _REDUCTIONS or method in _RETURN_INTEGERS:
            floating = (
                False
                if method in _RETURN_INTEGERS
                else True
                if method in ("mean", "std", "var", "norm")
                else inner.floating
            )
            return TensorFacts(floating, _reduce_sizes(sizes, [*args], call) if method in _REDUCTIONS else None)
        return (
            replace(inner, sizes=None) if method in ("gather", "index_select", "narrow", "squeeze", "chunk") else None
        )


def _is_floating_dtype(dtype: ast.expr | None) -> bool | None:
    """True if `dtype` names a floating-point dtype, False for another dtype, None if it is unknown."""
    last = dtype.attr if isinstance(dtype, ast.Attribute) else dtype.id if isinstance(dtype, ast.Name) else ""
    return True if last in _FLOAT_DTYPES else False if last in _INTEGER_DTYPES | _COMPLEX_DTYPES else None


def _has_floats(node: ast.expr) -> bool | None:
    """True if the nested lists contain a float, False if all their entries are integers, None if unknown."""
    constants = [n for n in ast.walk(node) if isinstance(n, ast.Constant)]
    if any(isinstance(n, ast.Name | ast.Call | ast.Attribute) for n in ast.walk(node)):
        return True if any(isinstance(c.value, float) for c in constants) else None
    return any(isinstance(c.value, float) for c in constants) if constants else None


def _sizes_of_contents(node: ast.expr) -> Sizes | None:
    """The sizes of the tensor that `torch.tensor(node)` creates."""
    if isinstance(node, (ast.List, ast.Tuple)):
        inner = _sizes_of_contents(node.elts[0]) if node.elts else ()
        return None if inner is None else (len(node.elts), *inner)
    return () if _is_number_literal(node) else None


def _is_number_literal(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _is_float_literal(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def _integer_value(node: ast.expr) -> int | None:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    if not isinstance(inner, ast.Constant) or type(inner.value) is not int:
        return None
    return -inner.value if negative else inner.value


def _arange_length(args: Sequence[ast.expr]) -> int | None:
    return _integer_value(args[0]) if len(args) == 1 else None


def _sizes(args: Sequence[ast.expr]) -> Sizes | None:
    """The sizes that arguments name: (2, 3), or 2, 3."""
    if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)):
        args = args[0].elts
    elif len(args) == 1 and _integer_value(args[0]) is None:
        return None
    if any(isinstance(a, ast.Starred) for a in args):
        return None
    named = [_integer_value(a) for a in args]
    return tuple(n if n is not None and n >= 0 else None for n in named)


def _swap_sizes(sizes: Sizes | None, first: int | None = None, second: int | None = None) -> Sizes | None:
    if sizes is None or first is None or second is None or max(first, second) >= len(sizes):
        return sizes if sizes is None or first is None or second is None else None
    if min(first, second) < -len(sizes):
        return None
    result = list(sizes)
    result[first], result[second] = result[second], result[first]
    return tuple(result)


def _reduce_sizes(sizes: Sizes | None, args: list[ast.expr], call: ast.Call) -> Sizes | None:
    dims = args or [k.value for k in call.keywords if k.arg in ("dim", "axis")]
    if not dims:
        return ()
    at = _integer_value(dims[0])
    keeps_dimension = any(k.arg in ("keepdim", "keepdims") for k in call.keywords) or len(args) > 1
    if sizes is None or at is None or keeps_dimension or not -len(sizes) <= at < len(sizes):
        return None
    return tuple(s for i, s in enumerate(sizes) if i != at % len(sizes))


def _broadcast_sizes(every: Sequence[Sizes | None]) -> Sizes | None:
    if any(s is None for s in every):
        return None
    known_sizes = [s for s in every if s is not None]
    result: list[int | None] = []
    for i in range(1, max(map(len, known_sizes)) + 1):
        column = [s[-i] for s in known_sizes if len(s) >= i]
        larger = [c for c in column if c != 1]
        result.append(larger[0] if larger else 1)
    return tuple(result[::-1])


def _index_sizes(sizes: Sizes | None, index: ast.expr) -> Sizes | None:
    """The sizes of `x[0, :, None]`, where `sizes` are those of `x`."""
    if sizes is None:
        return None
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    named_dimensions = sum(not (isinstance(p, ast.Constant) and p.value in (None, ...)) for p in parts)
    remaining, result = list(sizes), list[int | None]()
    for p in parts:
        if isinstance(p, ast.Constant) and p.value is None:
            result.append(1)
        elif isinstance(p, ast.Constant) and p.value is ...:
            while len(remaining) > named_dimensions:
                result.append(remaining.pop(0))
        elif not remaining:
            return None
        elif isinstance(p, ast.Slice):
            is_full_slice = p.lower is None and p.upper is None and p.step is None
            result.append(remaining.pop(0) if is_full_slice else remaining.pop(0) and None)
            named_dimensions -= 1
        elif _integer_value(p) is not None:
            remaining.pop(0)
            named_dimensions -= 1
        else:
            return None
    return (*result, *remaining)
