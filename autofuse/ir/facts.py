"""What can be known about a value without running it: its rank, and whether it is a plain number.

Each answer may be None, "not known". A front end may know more than the graph says (a live tensor has a rank, an
attribute assigned in `__init__` may be a number): it hands in what it knows, and the rest is inferred here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

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
    """What a front end knows of one value.

    `form` names what a tensor is proved to hold in its last two dimensions: "lower" (1 or True where the column is not
    past the row, 0 elsewhere), "upper" (1 or True where the column is past the row), "bias" (0 where the column is not
    past the row, a fill elsewhere); None where nothing is proved. `lengths` are symbolic sizes, one for each dimension;
    `size` is what they hold for a dimension with as many entries as this number says.
    `positive`: a number that is above zero.
    """

    rank: int | None = None
    number: bool | None = None
    dtype: str | None = None
    form: str | None = None
    lengths: tuple[object, ...] | None = None
    size: object = None
    positive: bool | None = None


def _nothing(v: Value, dim: int, number: int) -> bool:
    return False


@dataclass
class Facts:
    """What is known of values, and what more follows.

    `ensures` says whether dimension `dim` (from the end) of a value has that many entries whenever this runs: a front
    end that can may see to it by a guard.
    """

    known: Mapping[Value, Known] = field(default_factory=dict)
    ensures: Callable[[Value, int, int], bool] = _nothing
    _numbers: dict[Value, bool] = field(default_factory=dict)
    _ranks: dict[Value, int] = field(default_factory=dict)
    _no_number: set[Value] = field(default_factory=set)  # asked, and not known so far
    _no_rank: set[Value] = field(default_factory=set)
    _dtypes: dict[Value, Dtype] = field(default_factory=dict)
    _floating: dict[Value, bool | None] = field(default_factory=dict)

    def learned(self) -> None:
        """`known` says more than before: what was not known is asked again."""
        self._no_number.clear()
        self._no_rank.clear()
        self._dtypes.clear()
        self._floating.clear()

    def rank(self, v: Value) -> int | None:
        """Number of dimensions of `v`."""
        if v not in self._ranks and v not in self._no_rank:
            for asked in _unanswered(v, self._ranks, self._no_rank):  # inputs first, so that no chain is too long
                _answer(asked, self._rank(asked), self._ranks, self._no_rank)
        return self._ranks.get(v)

    def _rank(self, v: Value) -> int | None:
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
            return self._flattened(v)
        if v.op == "unsqueeze":
            inner = self.rank(v.inputs[0])
            return None if inner is None else inner + 1
        if v.op == "matmul":
            ranks = [r for r in map(self.rank, v.inputs) if r is not None]
            return max(ranks) if len(ranks) == 2 and min(ranks) > 1 else None
        if v.op in _SAME_RANK:
            return self.rank(v.inputs[0])
        if v.op == ITEM:
            return self._item(v) if v.inputs[1].op != TUPLE else self._indexed(v)
        if v.op in ("ones", "zeros", "full"):
            return made_rank(v)
        if v.op == "arange":
            return 1
        return self._broadcast(v) if v.op in _BROADCAST else None

    def _flattened(self, v: Value) -> int | None:
        start, end = v.inputs[1].data, v.inputs[2].data
        if type(start) is not int or type(end) is not int:
            return None
        if start == 0 and end < 0:
            return -end
        rank = self.rank(v.inputs[0])
        return None if not rank else rank - (end % rank - start % rank)

    def _item(self, v: Value) -> int | None:
        """A part of a tensor, or a tensor less one dimension: `qkv[0]`."""
        container, index = v.inputs
        inner = self.rank(container.inputs[0] if container.op in ("chunk", "split", "unbind") else container)
        if inner is None or not is_const(index) or type(index.data) is not int:
            return None
        return inner if container.op in ("chunk", "split") else inner - 1

    def _indexed(self, v: Value) -> int | None:
        """`x[:, None, 0]`: None adds a dimension, a number takes one out."""
        rank = self.rank(v.inputs[0])
        change = index_change(v.inputs[1])
        return None if rank is None or change is None else rank + change

    def _broadcast(self, v: Value) -> int | None:
        ranks = [0 if self.number(i) else self.rank(i) for i in v.inputs]
        known = [r for r in ranks if r is not None]
        return max(known) if len(known) == len(ranks) else None

    def dtype(self, v: Value) -> Dtype:
        """The dtype of `v`, as symbols: see autofuse/ir/dtypes.py."""
        return _followed(v, self._dtypes, self._dtype)

    def floating(self, v: Value) -> bool | None:
        """Whether tensor `v` is floating-point: True, False, or None."""
        return _followed(v, self._floating, self._is_floating)

    def _is_floating(self, v: Value) -> bool | None:
        if v in self.known and (name := self.known[v].dtype) is not None:
            return "float" in name
        return floating(v, self._floating.__getitem__)

    def _dtype(self, v: Value) -> Dtype:
        if v in self.known and (name := self.known[v].dtype) is not None:
            return frozenset({name.removeprefix("torch.")})
        return dtype_of(v, self._dtypes.__getitem__, self.number(v))

    def number(self, v: Value) -> bool | None:
        """Whether `v` is a Python number: True, False (a tensor), or None."""
        if v not in self._numbers and v not in self._no_number:
            for asked in _unanswered(v, self._numbers, self._no_number):
                _answer(asked, self._number(asked), self._numbers, self._no_number)
        return self._numbers.get(v)

    def _number(self, v: Value) -> bool | None:
        if v in self.known and self.known[v].number is not None:
            return self.known[v].number
        if v.op == CONST:
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
    """`v` and what it was computed from, as far as nothing is remembered of it: inputs before what uses them."""
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


def _answer(v: Value, answer: _T | None, answers: dict[Value, _T], unknown: set[Value]) -> None:
    if answer is None:
        unknown.add(v)
    else:
        answers[v] = answer


def made_rank(v: Value) -> int | None:
    """How many dimensions ones(2, 3), ones((2, 3)) and full((2, 3), 0.0) have."""
    shape = v.inputs[0]
    if shape.op == TUPLE and len(shape.inputs) == 1 and v.op != "full":
        shape = shape.inputs[0] if shape.inputs[0].op == TUPLE else shape
    plain = shape.op == TUPLE and all(i.op in (CONST, ITEM, "size", "add", "sub", "mul") for i in shape.inputs)
    return len(shape.inputs) if plain else None


def index_change(index: Value) -> int | None:
    """How many dimensions more than before there are after an index by a tuple of slices, numbers, None and `...`."""
    change = 0
    for part in index.inputs:
        if part.op != SLICE and not (part.op == CONST and (part.data is None or part.data is ...)):
            if type(part.data) is not int or part.op != CONST:
                return None
            change -= 1
        change += part.op == CONST and part.data is None
    return change


def _followed(v: Value, answers: dict[Value, _T], answer: Callable[[Value], _T]) -> _T:
    """The answer for `v`, after those for all that it is computed from; no recursion, for programs may be long."""
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
    """How many dimensions the variadic argument of view or permute names."""
    arguments = v.inputs[1]
    if any(i.op == SYNTAX for i in arguments.inputs):
        return None  # `*shape` is any number
    if len(arguments.inputs) != 1:
        return len(arguments.inputs)
    only = arguments.inputs[0]
    return len(only.inputs) if only.op == "tuple" else 1 if type(only.data) is int and only.op == CONST else None


def named_ranks(op: str, inputs: Sequence[Value]) -> Iterator[tuple[Value, int]]:
    """Each tensor that an equation or a pattern names the dimensions of, with how many it names."""
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
    """How many dimensions the result of an einsum names."""
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
    """How many axes one side of a pattern has; what stands in parentheses is one."""
    depth, count = 0, 0
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        count += depth == 0 and word != ")"
        depth += (word == "(") - (word == ")")
    return count
