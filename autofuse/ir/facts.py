"""Infers facts about a value without running it: its rank, its dtype, and whether it is a Python number.

Each answer may be None, "unknown". A front end may know more than the graph shows: a live tensor has a rank, and an
attribute assigned in `__init__` may be a number. It passes in what it knows, and the rest is inferred here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from autofuse.ir.complex_numbers import complex_numbers
from autofuse.ir.dtypes import Dtype, dtype_of
from autofuse.ir.floating import floating
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, ITEM, SLICE, SYNTAX, TUPLE, Value, is_const
from autofuse.ir.harmless import TENSOR_CALLS
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import SAME_SIZES

_T = TypeVar("_T")
_SAME_RANK = SAME_SIZES | frozenset("transpose mT t permute activation linear fused_attention".split())
_RANK_CHANGE = {"stack": 1, "select": -1, "view_as_complex": -1, "view_as_real": 1}
_OF_TENSORS = frozenset("maximum minimum logaddexp xlogy atan2 hypot lerp addcmul addcdiv".split())
_BROADCAST = _OF_TENSORS | frozenset(
    "add sub rsub mul div floordiv mod pow eq ne lt le gt ge and or logical_and logical_or where".split()
)
_NUMERIC = frozenset("add sub mul div floordiv mod pow number_pow neg".split())
_MAKES_NUMBERS = frozenset("int len math.log math.exp math.ceil math.floor math.prod .numel .element_size".split())
_PRODUCTS_AND_SHAPES = frozenset("matmul view rearrange einsum einops_einsum baddbmm expand unsqueeze".split())
_TENSOR = _SAME_RANK | _OF_TENSORS | _PRODUCTS_AND_SHAPES
_NO_NUMBER = _TENSOR - _NUMERIC


@dataclass(frozen=True)
class Known:
    """The facts that a front end knows about one value. None stands for "unknown".

    Attributes:
        rank: the number of dimensions.
        number: whether it is a Python number.
        dtype: the name of its dtype, such as "torch.float32".
        form: what a tensor is proved to hold in its last two dimensions. "lower": 1 or True where column <= row, and 0
            elsewhere. "upper": 1 or True where column > row, and 0 elsewhere. "bias": 0 where column <= row, and a
            fill value elsewhere.
        lengths: symbolic sizes, one for each dimension.
        size: for a number, the symbolic size (see `lengths`) that it is equal to.
        positive: whether it is a number above zero.
    """

    rank: int | None = None
    number: bool | None = None
    dtype: str | None = None
    form: str | None = None
    lengths: tuple[object, ...] | None = None
    size: object = None
    positive: bool | None = None


def _ensures_nothing(v: Value, dim: int, number: int) -> bool:
    return False


@dataclass
class Facts:
    """The known facts about values, and the facts that follow from them.

    Attributes:
        known: what the front end knows.
        ensures: whether a dimension of a value has a given size at every call. The arguments are the value, the
            dimension (negative, from the end) and the size. A front end may add a guard to ensure it.
    """

    known: Mapping[Value, Known] = field(default_factory=dict)
    ensures: Callable[[Value, int, int], bool] = _ensures_nothing
    _numbers: dict[Value, bool] = field(default_factory=dict)
    _ranks: dict[Value, int] = field(default_factory=dict)
    _no_number: set[Value] = field(default_factory=set)  # values whose answer is unknown so far
    _no_rank: set[Value] = field(default_factory=set)
    _dtypes: dict[Value, Dtype] = field(default_factory=dict)
    _floating: dict[Value, bool | None] = field(default_factory=dict)
    _complex: dict[Value, bool | None] = field(default_factory=dict)

    def forget_unknowns(self) -> None:
        """Discard the answers that may change, after the front end has added to `known`."""
        self._no_number.clear()
        self._no_rank.clear()
        self._dtypes.clear()
        self._floating.clear()
        self._complex.clear()

    def rank(self, v: Value) -> int | None:
        """The number of dimensions of `v`; None if unknown."""
        if v not in self._ranks and v not in self._no_rank:
            for value in _unanswered(v, self._ranks, self._no_rank):  # inputs first, so that no recursion is deep
                _remember(value, self._infer_rank(value), self._ranks, self._no_rank)
        return self._ranks.get(v)

    def _infer_rank(self, v: Value) -> int | None:
        if v in self.known and self.known[v].rank is not None:
            return self.known[v].rank
        if v.op == "view":
            return _length(v)
        if v.op == "permute" and v.data is None:
            return _length(v)
        if v.op == "rearrange":
            return _rearranged_rank(v)
        if v.op in ("einsum", "einops_einsum"):
            return _contracted_rank(v)
        if v.op == "cat" and v.inputs[0].op == TUPLE and v.inputs[0].inputs:
            return self.rank(v.inputs[0].inputs[0])
        if v.op in _RANK_CHANGE:
            of = v.inputs[0].inputs[0] if v.op == "stack" and v.inputs[0].inputs else v.inputs[0]
            inner = self.rank(of)
            return None if inner is None else inner + _RANK_CHANGE[v.op]
        if v.op == "flatten":
            return self._flattened_rank(v)
        if v.op == "unsqueeze":
            inner = self.rank(v.inputs[0])
            return None if inner is None else inner + 1
        if v.op == "matmul":
            ranks = [r for r in map(self.rank, v.inputs) if r is not None]
            return max(ranks) if len(ranks) == 2 and min(ranks) > 1 else None  # a vector loses its dimension
        if v.op in _SAME_RANK:
            return self.rank(v.inputs[0])
        if v.op == ITEM:
            return self._item_rank(v) if v.inputs[1].op != TUPLE else self._indexed_rank(v)
        if v.op in ("ones", "zeros", "full"):
            return created_rank(v)
        if v.op == "arange":
            return 1
        if v.op == CHOICE:
            sides = {self.rank(side) for side in v.inputs[1:]}
            return sides.pop() if len(sides) == 1 else None
        return self._broadcast_rank(v) if v.op in _BROADCAST else None

    def _flattened_rank(self, v: Value) -> int | None:
        start, end = v.inputs[1].data, v.inputs[2].data
        if type(start) is not int or type(end) is not int:
            return None
        if start == 0 and end < 0:  # one dimension, and those after `end`, for any rank
            return -end
        rank = self.rank(v.inputs[0])
        return None if not rank else rank - (end % rank - start % rank)

    def _item_rank(self, v: Value) -> int | None:
        """The rank of one part of `x.chunk(3)`, or of a tensor indexed by one number: `qkv[0]`."""
        container, index = v.inputs
        inner = self.rank(container.inputs[0] if container.op in ("chunk", "split", "unbind") else container)
        if inner is None or not is_const(index) or type(index.data) is not int:
            return None
        return inner if container.op in ("chunk", "split") else inner - 1

    def _indexed_rank(self, v: Value) -> int | None:
        """The rank of `x[:, None, 0]`: None adds a dimension, and a number removes one."""
        rank = self.rank(v.inputs[0])
        change = index_change(v.inputs[1])
        return None if rank is None or change is None else rank + change

    def _broadcast_rank(self, v: Value) -> int | None:
        ranks = [0 if self.number(i) else self.rank(i) for i in v.inputs]
        known = [r for r in ranks if r is not None]
        return max(known) if len(known) == len(ranks) else None

    def dtype(self, v: Value) -> Dtype:
        """The dtype of `v`, as a set of symbols. See autofuse/ir/dtypes.py."""
        return _answer_inputs_first(v, self._dtypes, self._infer_dtype)

    def floating(self, v: Value) -> bool | None:
        """Whether tensor `v` is floating-point; None if unknown."""
        return _answer_inputs_first(v, self._floating, self._infer_floating)

    def is_complex(self, v: Value) -> bool | None:
        """Whether tensor `v` is complex: True, or None if unknown."""
        return _answer_inputs_first(v, self._complex, lambda x: complex_numbers(x, self._complex.__getitem__))

    def _infer_floating(self, v: Value) -> bool | None:
        if v in self.known and (name := self.known[v].dtype) is not None:
            return "float" in name
        return floating(v, self._floating.__getitem__)

    def _infer_dtype(self, v: Value) -> Dtype:
        if v in self.known and (name := self.known[v].dtype) is not None:
            return frozenset({name.removeprefix("torch.")})
        return dtype_of(v, self._dtypes.__getitem__, self.number(v))

    def number(self, v: Value) -> bool | None:
        """Whether `v` is a Python number: True, False (a tensor), or None if unknown."""
        if v not in self._numbers and v not in self._no_number:
            for value in _unanswered(v, self._numbers, self._no_number):
                _remember(value, self._infer_number(value), self._numbers, self._no_number)
        return self._numbers.get(v)

    def _infer_number(self, v: Value) -> bool | None:
        if v in self.known and self.known[v].number is not None:
            return self.known[v].number
        if v.op == CONST:  # bool is a subclass of int
            return isinstance(v.data, (int, float)) and not isinstance(v.data, bool)
        if v.op == CALL and isinstance(v.data, tuple) and v.data[0] in _MAKES_NUMBERS:
            return True
        if v.op in ("number_sqrt", "number", "dim") or v.op == "size" and v.inputs[1].data is not None:
            return True
        if v.op in ("reciprocal", "sqrt", "rsqrt"):
            return self.number(v.inputs[0])
        if v.op == ITEM and v.inputs[0].op == ATTRIBUTE and v.inputs[0].data == "shape":
            return v.inputs[1].op != SLICE
        if v.op == ATTRIBUTE and v.data in ("max", "min", "eps") and v.inputs[0].op == "finfo":
            return True
        if v.op == "tensor":
            return self.number(v.inputs[0])
        if v.op in _NUMERIC:
            answers = {self.number(i) for i in v.inputs}
            return True if answers == {True} else False if False in answers else None
        if v.op == CHOICE:
            answers = {self.number(i) for i in v.inputs[1:]}
            return answers.pop() if len(answers) == 1 else None
        if v.op in _NO_NUMBER or v.op == CALL and isinstance(v.data, tuple) and v.data[0] in TENSOR_CALLS:
            return False
        return None


def _unanswered(v: Value, answers: Mapping[Value, object], unknown: set[Value]) -> Iterator[Value]:
    """Yield `v` and everything it was computed from that has no answer yet; inputs before their users."""
    todo = [v]
    while todo:
        v = todo[-1]
        if v in answers or v in unknown:
            todo.pop()
            continue
        spend()
        missing = [i for i in v.inputs if i not in answers and i not in unknown]
        if missing:
            todo += missing
        else:
            yield todo.pop()


def _remember(v: Value, answer: _T | None, answers: dict[Value, _T], unknown: set[Value]) -> None:
    if answer is None:
        unknown.add(v)
    else:
        answers[v] = answer


def created_rank(v: Value) -> int | None:
    """The rank of ones(2, 3), ones((2, 3)) or full((2, 3), 0.0); None if the shape is not written out."""
    shape = v.inputs[0]
    if shape.op == TUPLE and len(shape.inputs) == 1 and v.op != "full":
        shape = shape.inputs[0] if shape.inputs[0].op == TUPLE else shape
    plain = shape.op == TUPLE and all(i.op in (CONST, ITEM, "size", "add", "sub", "mul") for i in shape.inputs)
    return len(shape.inputs) if plain else None


def index_change(index: Value) -> int | None:
    """The change of rank by an index: a tuple of slices, numbers, None and `...`. None if unknown."""
    change = 0
    for part in index.inputs:
        if part.op != SLICE and not (part.op == CONST and (part.data is None or part.data is ...)):
            if type(part.data) is not int or part.op != CONST:
                return None
            change -= 1
        change += part.op == CONST and part.data is None
    return change


def _answer_inputs_first(v: Value, answers: dict[Value, _T], answer: Callable[[Value], _T]) -> _T:
    """The answer for `v`. Everything that `v` is computed from is answered first.

    It does not recurse, because a long program would exceed Python's recursion limit.
    """
    todo = [v]
    while todo:
        last = todo[-1]
        spend()
        missing = [i for i in last.inputs if i not in answers] if last not in answers else []
        todo += missing
        if not missing:
            if todo.pop() not in answers:
                answers[last] = answer(last)
    return answers[v]


def _length(v: Value) -> int | None:
    """The number of sizes or dimensions that a call of view or permute lists."""
    arguments = v.inputs[1]
    if any(i.op == SYNTAX for i in arguments.inputs):
        return None  # `*shape` may hold any number of sizes
    if len(arguments.inputs) != 1:
        return len(arguments.inputs)
    only = arguments.inputs[0]
    return len(only.inputs) if only.op == "tuple" else 1 if type(only.data) is int and only.op == CONST else None


def named_ranks(op: str, inputs: Sequence[Value]) -> Iterator[tuple[Value, int]]:
    """Yield each operand of an einsum or rearrange whose equation names all its dimensions, with their number."""
    if op == "rearrange" and isinstance(pattern := inputs[1].data, str) and "..." not in pattern:
        yield inputs[0], _axes(pattern.partition("->")[0])
    if op == "einsum" and isinstance(equation := inputs[0].data, str) and "." not in equation:
        operands = inputs[1].inputs
        operands = operands[0].inputs if len(operands) == 1 and operands[0].op == TUPLE else operands
        letters = equation.partition("->")[0].replace(" ", "").split(",")
        yield from ((v, len(named)) for v, named in zip(operands, letters, strict=False))
    if op == "einops_einsum" and isinstance(equation := inputs[0].inputs[-1].data, str) and "..." not in equation:
        words = equation.partition("->")[0].split(",")
        yield from ((v, len(named.split())) for v, named in zip(inputs[0].inputs, words, strict=False))


def _contracted_rank(v: Value) -> int | None:
    """The number of dimensions that the result of an einsum has."""
    equation = v.inputs[0].data if v.op == "einsum" else v.inputs[-1].inputs[-1].data
    if not isinstance(equation, str) or "..." in equation or "->" not in equation:
        return None
    result = equation.partition("->")[2]
    return len(result.split()) if v.op == "einops_einsum" else len(result.replace(" ", ""))


def _rearranged_rank(v: Value) -> int | None:
    pattern = v.inputs[1].data
    if not isinstance(pattern, str) or "..." in pattern:
        return None
    return _axes(pattern.partition("->")[2])


def _axes(side: str) -> int:
    """The number of axes on one side of an einops pattern. A group in parentheses is one axis."""
    depth, count = 0, 0
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        count += depth == 0 and word != ")"
        depth += (word == "(") - (word == ")")
    return count
