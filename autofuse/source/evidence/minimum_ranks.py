"""Finds lower bounds for the ranks of values, by the operations that the function applies to them.

`k.transpose(-2, -1)` raises an error for a vector. So `k` has rank 2 or more after it ran. The bound also holds for
values that `k` was computed from by operations that keep the rank, and for values computed from those.

Only operations that run whenever the edited code runs are evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autofuse.canonical import CAST, LEAF, PERMUTE, View
from autofuse.canonical.view import order_of
from autofuse.ir.facts import index_change
from autofuse.ir.graph import ATTRIBUTE, CHOICE, CONST, ITEM, SLICE, TUPLE, Value, is_const
from autofuse.ir.vocabulary import SAME_SIZES
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.evidence.site_values import find_always_computed

# Operations whose result has the rank of the first input.
_KEEP_RANK = SAME_SIZES | frozenset("linear transpose mT permute identity cat".split())
# Operations that broadcast their inputs.
_BROADCASTS = frozenset("add sub mul div maximum minimum where".split())
# Operation -> the positions of its inputs that are dimensions of the first input.
_DIMENSION_INPUTS = {"transpose": (1, 2), "unsqueeze": (), "softmax": (1,), "mean": (1,), "sum": (1,), "select": (1,)}


class MinimumRanks:
    """Lower bounds for the ranks of the values of one function, if `root` is computed."""

    def __init__(self, captured: CapturedFunction, view: View, root: Value) -> None:
        self._view, self._facts = view, view.facts
        self._bounds: dict[Value, int] = {}
        values = sorted(find_always_computed(captured, root), key=lambda v: v.serial)
        for v in values:
            self._raise_bound(v, self._facts.rank(v) or 0)
            for operand, rank in _required_ranks(v):
                self._raise_bound(operand, rank)
        # A bound goes back to a shared input and forward to other results. Two rounds are enough in practice.
        for _ in range(2):
            for v in reversed(values):
                self._raise_inputs(v)
            for v in values:
                self._raise_result(v)

    def bound_of(self, canonical: Value) -> int:
        """Returns the lower bound for the rank of a canonical value; 0 if nothing is known."""
        bounds = [self._bounds.get(o, 0) for o in self._view.originals(canonical)]
        if canonical.op == LEAF and isinstance(canonical.data, Value):
            bounds.append(self._bounds.get(canonical.data, 0))
        if canonical.op == PERMUTE:
            bounds += [len(order_of(canonical)), self.bound_of(canonical.inputs[0])]
        if canonical.op in (CAST, "mul", "add"):
            bounds += map(self.bound_of, canonical.inputs)
        if canonical.op == CHOICE:
            bounds.append(min(map(self.bound_of, canonical.inputs[1:])))
        return max([*bounds, self._view.rank(canonical) or 0])

    def _raise_bound(self, v: Value, rank: int) -> None:
        if rank > self._bounds.get(v, 0):
            self._bounds[v] = rank

    def _raise_inputs(self, v: Value) -> None:
        """Raises the bounds of the inputs of `v` by the bound of `v`."""
        rank = self._bounds.get(v, 0)
        if v.op in _KEEP_RANK and v.inputs and v.inputs[0].op != TUPLE:
            self._raise_bound(v.inputs[0], rank)
        if v.op in _BROADCASTS:
            tensors = [i for i in v.inputs if not self._facts.number(i)]
            if len(tensors) == 1:
                self._raise_bound(tensors[0], rank)
        if v.op == ITEM and v.inputs[0].op in ("chunk", "split"):
            self._raise_bound(v.inputs[0].inputs[0], rank)

    def _raise_result(self, v: Value) -> None:
        """Raises the bound of `v` by the bounds of its inputs."""
        ranks = [self._bounds.get(i, 0) for i in v.inputs]
        if v.op in _KEEP_RANK and v.inputs:
            inner = v.inputs[0].inputs if v.inputs[0].op == TUPLE else v.inputs[:1]
            self._raise_bound(v, max((self._bounds.get(i, 0) for i in inner), default=0))
        elif v.op in _BROADCASTS:
            self._raise_bound(v, max(ranks))
        elif v.op == "matmul":
            self._raise_bound(v, max(ranks) if min(ranks) >= 2 else max(max(ranks) - 1, 0))
        elif v.op == ITEM and v.inputs[0].op in ("chunk", "split"):
            self._raise_bound(v, self._bounds.get(v.inputs[0].inputs[0], 0))
        elif v.op == ITEM and v.inputs[1].op == TUPLE:
            change = index_change(v.inputs[1])
            self._raise_bound(v, 0 if change is None else ranks[0] + change)
        elif v.op == ITEM:
            self._raise_bound(v, ranks[0] - 1 if v.inputs[1].op == CONST else 0)
        elif v.op == "unsqueeze":
            self._raise_bound(v, ranks[0] + 1)
        elif v.op == CHOICE:
            self._raise_bound(v, min(ranks[1:]))


def _required_ranks(v: Value) -> Iterator[tuple[Value, int]]:
    """Yields the operands of `v` that need a rank, and the rank. A lower rank is an error."""
    if v.op in _DIMENSION_INPUTS:
        yield v.inputs[0], _rank_for([v.inputs[i] for i in _DIMENSION_INPUTS[v.op]])
    elif v.op == "mT":
        yield v.inputs[0], 2
    elif v.op == "permute":
        arguments = v.inputs[1].inputs
        dimensions = arguments[0].inputs if len(arguments) == 1 and arguments[0].op == TUPLE else arguments
        yield v.inputs[0], len(dimensions) if all(a.op == CONST for a in dimensions) else 0
    elif v.op == "size":
        yield v.inputs[0], _rank_for(v.inputs[1:2])
    elif v.op == ITEM and v.inputs[0].op == ATTRIBUTE and v.inputs[0].data == "shape":
        yield v.inputs[0].inputs[0], _rank_for(v.inputs[1:2])
    elif v.op == ITEM and v.inputs[0].op == "size" and is_const(v.inputs[0].inputs[1], None):
        yield v.inputs[0].inputs[0], _rank_for(v.inputs[1:2])
    elif v.op == ITEM and v.inputs[1].op == TUPLE:
        index = v.inputs[1].inputs
        yield v.inputs[0], sum(i.op == SLICE or type(i.data) is int for i in index)


def _rank_for(dimensions: Iterable[Value]) -> int:
    """Returns the smallest rank of a tensor that has all dimensions of `dimensions`, which may be negative."""
    numbers = [n.data for n in dimensions if n.op == CONST and type(n.data) is int]
    return max((-n if n < 0 else n + 1 for n in numbers), default=0)
