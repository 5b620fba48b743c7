"""What an expression says of the tensor that it makes: `torch.arange(8).view(2, 4)[0]` holds 4 integers.

Reads calls of torch's functions and methods with literal sizes. What it does not know, it leaves open. Knows syntax and
torch's names; the caller says what a name holds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autofuse.source.capture.scope import FileScope

Sizes = tuple[int | None, ...]


@dataclass(frozen=True)
class Made:
    """A tensor, or a number of Python. sizes: None where the number of dimensions is not known.

    floating: False for integers, truth values and complex numbers.
    """

    floating: bool | None = None
    sizes: Sizes | None = None
    number: bool = False


_FLOATS = frozenset("randn rand zeros ones empty linspace logspace eye hann_window normal".split())
_SIZED = frozenset("randn rand zeros ones empty".split())
_LIKE = frozenset("randn_like rand_like zeros_like ones_like empty_like full_like".split())
_INTEGERS = frozenset(
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
_SAME = frozenset(
    "clone detach contiguous cuda cpu requires_grad_ pin_memory abs neg relu clamp clip triu tril flip roll cumsum "
    "masked_fill Parameter Buffer to fill_ zero_ share_memory_".split()
)
_FLOAT_RESULTS = frozenset("sigmoid tanh exp log sqrt rsqrt softmax gelu silu sin cos div reciprocal".split())
_REDUCES = frozenset("mean sum std var amax amin norm prod logsumexp median".split())
_TRUE_DIVISION = (ast.Div,)


class Reader:
    """Reads expressions of one file. `holds` gives the expressions that a name or an attribute may stand for."""

    def __init__(self, scope: FileScope, holds: Callable[[ast.expr], Iterator[ast.expr | Made]]) -> None:
        self._scope, self._holds = scope, holds

    def read(self, node: ast.expr, depth: int = 12) -> Made | None:
        """What `node` makes; None where that is no tensor and no number, or not known."""
        if depth == 0:
            return None
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as value):
                return Made(isinstance(value, float), (), number=True)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=operand):
                return self.read(operand, depth - 1)
            case ast.BinOp(left=ast.Constant(complex())) | ast.BinOp(right=ast.Constant(complex())):
                return Made(False)
            case ast.BinOp(left=left, op=op, right=right):
                return self._arithmetic(self.read(left, depth - 1), op, self.read(right, depth - 1))
            case ast.Compare(left=left, comparators=[right]):
                sides = [self.read(left, depth - 1), self.read(right, depth - 1)]
                tensors = [s for s in sides if s is not None and not s.number]
                return Made(False, _broadcast([s.sizes for s in tensors])) if tensors else None
            case ast.Subscript(value=value, slice=index):
                inner = self.read(value, depth - 1)
                return None if inner is None or inner.number else replace(inner, sizes=_indexed(inner.sizes, index))
            case ast.Attribute(value=value, attr="T" | "mT" | "data"):
                inner = self.read(value, depth - 1)
                if inner is None or inner.number or node.attr == "data":
                    return inner
                return replace(inner, sizes=_swapped(inner.sizes, -1, -2))
            case ast.Call():
                return self._call(node, depth)
            case ast.IfExp(body=body, orelse=orelse):
                return self.read(body, depth - 1) or self.read(orelse, depth - 1)
            case ast.Name() | ast.Attribute():
                return self._held(node, depth)
        return None

    def _held(self, node: ast.expr, depth: int) -> Made | None:
        for held in self._holds(node):
            made = held if isinstance(held, Made) else self.read(held, depth - 1)
            if made is not None:
                return made
        return None

    @staticmethod
    def _arithmetic(left: Made | None, op: ast.operator, right: Made | None) -> Made | None:
        sides = [s for s in (left, right) if s is not None]
        if not sides:
            return None
        known = len(sides) == 2
        if not known and sides[0].number:
            return None  # a number and something else
        kinds = {s.floating for s in sides}
        floating = (
            True if isinstance(op, _TRUE_DIVISION) or True in kinds else False if known and kinds == {False} else None
        )
        sizes = _broadcast([s.sizes for s in sides]) if known else None
        if isinstance(op, ast.MatMult):
            sizes = None
        return Made(floating, sizes, number=known and all(s.number for s in sides))

    def _call(self, call: ast.Call, depth: int) -> Made | None:
        name = self._scope.name_of(call.func) or ""
        last = name.rpartition(".")[2]
        if name.startswith("torch."):
            made = self._by_torch(last, call, depth)
        elif isinstance(call.func, ast.Attribute):
            last, inner = call.func.attr, self.read(call.func.value, depth - 1)
            if last in ("new_tensor", "new_zeros", "new_ones", "new_full", "new_empty"):
                made = self._new(last, call, inner, depth)
            else:
                made = None if inner is None or inner.number else self._of(last, inner, call.args, call)
        else:
            return None
        named = next((k.value for k in call.keywords if k.arg == "dtype"), None)
        kind = _kind_of(named)
        return replace(made, floating=kind) if made is not None and kind is not None else made

    def _by_torch(self, last: str, call: ast.Call, depth: int) -> Made | None:
        args = call.args
        if last in _FLOATS:
            return Made(True, _sizes(args) if last in _SIZED else (None,) * (2 if last == "eye" else 1))
        if last == "arange":
            return Made(any(_is_fraction(a) for a in args), (_length(args),))
        if last == "randint":
            shape = next((a for a in args if isinstance(a, (ast.Tuple, ast.List))), None)
            return Made(False, _sizes([shape]) if shape is not None else None)
        if last == "full" and len(args) > 1:
            fill = self.read(args[1], depth - 1)
            return Made(None if fill is None else fill.floating, _sizes(args[:1]))
        if last in ("tensor", "as_tensor") and args:
            return Made(_kind_of_contents(args[0]), _nested(args[0]))
        if last in _INTEGER_TYPES:
            return Made(False, _nested(args[0]) if args else None)
        if last == "FloatTensor":
            return Made(True, _nested(args[0]) if args else None)
        if last == "where" and len(args) == 3:
            sides = [m for a in args[1:] if (m := self.read(a, depth - 1)) is not None]
            return Made(True if any(s.floating for s in sides) else None)
        if last in ("cat", "stack", "concat") and args and isinstance(args[0], (ast.Tuple, ast.List)):
            parts = [m for a in args[0].elts if (m := self.read(a, depth - 1)) is not None]
            return Made(True if any(p.floating for p in parts) else parts[0].floating) if parts else None
        inner = self.read(args[0], depth - 1) if args else None
        if last in _TO_COMPLEX:
            return Made(False)
        if last in _LIKE:
            return Made(
                True if last.startswith("rand") or inner is None else inner.floating, inner.sizes if inner else None
            )
        if inner is None and last in _INTEGERS:
            return Made(False)
        return None if inner is None or inner.number else self._of(last, inner, args[1:], call)

    def _new(self, last: str, call: ast.Call, inner: Made | None, depth: int) -> Made | None:
        of = None if inner is None else inner.floating
        if last == "new_tensor":
            return Made(of, _nested(call.args[0]) if call.args else None)
        return Made(of, _sizes(call.args[:1] if last == "new_full" else call.args))

    def _of(self, last: str, inner: Made, args: Sequence[ast.expr], call: ast.Call) -> Made | None:
        """What a method, or a function of torch, makes of a tensor."""
        sizes = inner.sizes
        if last in _TO_COMPLEX:
            return Made(False)
        if last in _TO_INTEGERS or last in _TO_FLOATS:
            return replace(inner, floating=last in _TO_FLOATS)
        if last in ("to", "type"):
            kind = next((k for a in args if (k := _kind_of(a)) is not None), None)
            return inner if kind is None else replace(inner, floating=kind)
        if last in _SAME:
            return inner
        if last in _FLOAT_RESULTS:
            return replace(inner, floating=True)
        if last in ("view", "reshape", "expand", "repeat"):
            return replace(inner, sizes=_sizes(args) if last != "repeat" else (None,) * len(args))
        if last in ("transpose", "swapaxes"):
            return replace(inner, sizes=_swapped(sizes, *map(_integer, args[:2])) if len(args) == 2 else None)
        if last == "t":
            return replace(inner, sizes=_swapped(sizes, 0, -1))
        if last == "permute":
            return replace(inner, sizes=None if sizes is None else (None,) * len(sizes))
        if last == "unsqueeze" and args and sizes is not None and (at := _integer(args[0])) is not None:
            at = at + len(sizes) + 1 if at < 0 else at
            return replace(inner, sizes=(*sizes[:at], 1, *sizes[at:]))
        if last == "flatten":
            return replace(inner, sizes=None if args or call.keywords else (None,))
        if last in _REDUCES or last in _INTEGERS:
            kind = False if last in _INTEGERS else True if last in ("mean", "std", "var", "norm") else inner.floating
            return Made(kind, _reduced(sizes, [*args], call) if last in _REDUCES else None)
        return replace(inner, sizes=None) if last in ("gather", "index_select", "narrow", "squeeze", "chunk") else None


def _kind_of(dtype: ast.expr | None) -> bool | None:
    """Whether a dtype that is named is a floating one."""
    last = dtype.attr if isinstance(dtype, ast.Attribute) else dtype.id if isinstance(dtype, ast.Name) else ""
    return True if last in _FLOAT_DTYPES else False if last in _INTEGER_DTYPES | _COMPLEX_DTYPES else None


def _kind_of_contents(node: ast.expr) -> bool | None:
    found = [n for n in ast.walk(node) if isinstance(n, ast.Constant)]
    if any(isinstance(n, ast.Name | ast.Call | ast.Attribute) for n in ast.walk(node)):
        return True if any(isinstance(c.value, float) for c in found) else None
    return any(isinstance(c.value, float) for c in found) if found else None


def _nested(node: ast.expr) -> Sizes | None:
    """The sizes of a tensor by its contents."""
    if isinstance(node, (ast.List, ast.Tuple)):
        inner = _nested(node.elts[0]) if node.elts else ()
        return None if inner is None else (len(node.elts), *inner)
    return () if _is_number(node) else None


def _is_number(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _is_fraction(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def _integer(node: ast.expr) -> int | None:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    if not isinstance(inner, ast.Constant) or type(inner.value) is not int:
        return None
    return -inner.value if negative else inner.value


def _length(args: Sequence[ast.expr]) -> int | None:
    return _integer(args[0]) if len(args) == 1 else None


def _sizes(args: Sequence[ast.expr]) -> Sizes | None:
    """The sizes that arguments name: (2, 3), or 2, 3."""
    if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)):
        args = args[0].elts
    elif len(args) == 1 and _integer(args[0]) is None:
        return None
    if any(isinstance(a, ast.Starred) for a in args):
        return None
    named = [_integer(a) for a in args]
    return tuple(n if n is not None and n >= 0 else None for n in named)


def _swapped(sizes: Sizes | None, first: int | None = None, second: int | None = None) -> Sizes | None:
    if sizes is None or first is None or second is None or max(first, second) >= len(sizes):
        return sizes if sizes is None or first is None or second is None else None
    if min(first, second) < -len(sizes):
        return None
    out = list(sizes)
    out[first], out[second] = out[second], out[first]
    return tuple(out)


def _reduced(sizes: Sizes | None, args: list[ast.expr], call: ast.Call) -> Sizes | None:
    dims = args or [k.value for k in call.keywords if k.arg in ("dim", "axis")]
    if not dims:
        return ()
    at = _integer(dims[0])
    kept = any(k.arg in ("keepdim", "keepdims") for k in call.keywords) or len(args) > 1
    if sizes is None or at is None or kept or not -len(sizes) <= at < len(sizes):
        return None
    return tuple(s for i, s in enumerate(sizes) if i != at % len(sizes))


def _broadcast(every: Sequence[Sizes | None]) -> Sizes | None:
    if any(s is None for s in every):
        return None
    known = [s for s in every if s is not None]
    out: list[int | None] = []
    for i in range(1, max(map(len, known)) + 1):
        column = [s[-i] for s in known if len(s) >= i]
        larger = [c for c in column if c != 1]
        out.append(larger[0] if larger else 1)
    return tuple(out[::-1])


def _indexed(sizes: Sizes | None, index: ast.expr) -> Sizes | None:
    """The sizes of `x[0, :, None]`."""
    if sizes is None:
        return None
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    named = sum(not (isinstance(p, ast.Constant) and p.value in (None, ...)) for p in parts)
    rest, out = list(sizes), list[int | None]()
    for p in parts:
        if isinstance(p, ast.Constant) and p.value is None:
            out.append(1)
        elif isinstance(p, ast.Constant) and p.value is ...:
            while len(rest) > named:
                out.append(rest.pop(0))
        elif not rest:
            return None
        elif isinstance(p, ast.Slice):
            whole = p.lower is None and p.upper is None and p.step is None
            out.append(rest.pop(0) if whole else rest.pop(0) and None)
            named -= 1
        elif _integer(p) is not None:
            rest.pop(0)
            named -= 1
        else:
            return None
    return (*out, *rest)
