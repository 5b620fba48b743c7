"""How many dimensions a value has at least, by what the function does with it.

`k.transpose(-2, -1)` is an error for a vector, so where it runs, `k` has two dimensions or more; so has what `k` was
computed from by operations that keep the number of dimensions, and whatever else is computed from that. Only what runs
whenever the edited place runs is evidence: steps on the way to it, and statements of the function's own block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autofuse.canonical import CAST, LEAF, PERMUTE, View
from autofuse.canonical.view import order_of
from autofuse.ir.facts import index_change
from autofuse.ir.graph import ATTRIBUTE, CHOICE, CONST, ITEM, SLICE, TUPLE, Value, is_const
from autofuse.ir.vocabulary import SAME_SIZES
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.evidence.reached import surely_run

_KEEP = SAME_SIZES | frozenset("linear transpose mT permute identity cat".split())
_BOTH = frozenset("add sub mul div maximum minimum where".split())
_DIMS = {"transpose": (1, 2), "unsqueeze": (), "softmax": (1,), "mean": (1,), "sum": (1,), "select": (1,)}


class LeastRanks:
    """The least number of dimensions of each value of one function, as far as `root` is reached."""

    def __init__(self, captured: CapturedFunction, view: View, root: Value) -> None:
        self._view, self._facts = view, view.facts
        self._least: dict[Value, int] = {}
        values = sorted(surely_run(captured, root), key=lambda v: v.serial)
        for v in values:
            self._raise(v, self._facts.rank(v) or 0)
            for operand, rank in _needed(v):
                self._raise(operand, rank)
        for _ in range(2):
            for v in reversed(values):
                self._back(v)
            for v in values:
                self._forth(v)

    def of(self, canonical: Value) -> int:
        """The least number of dimensions of a canonical value; 0 where nothing is known."""
        found = [self._least.get(o, 0) for o in self._view.originals(canonical)]
        if canonical.op == LEAF and isinstance(canonical.data, Value):
            found.append(self._least.get(canonical.data, 0))
        if canonical.op == PERMUTE:
            found += [len(order_of(canonical)), self.of(canonical.inputs[0])]
        if canonical.op in (CAST, "mul", "add"):
            found += map(self.of, canonical.inputs)
        if canonical.op == CHOICE:
            found.append(min(map(self.of, canonical.inputs[1:])))
        return max([*found, self._view.rank(canonical) or 0])

    def _raise(self, v: Value, rank: int) -> None:
        if rank > self._least.get(v, 0):
            self._least[v] = rank

    def _back(self, v: Value) -> None:
        """What `v` says of what it is computed from."""
        rank = self._least.get(v, 0)
        if v.op in _KEEP and v.inputs and v.inputs[0].op != TUPLE:
            self._raise(v.inputs[0], rank)
        if v.op in _BOTH:
            tensors = [i for i in v.inputs if not self._facts.number(i)]
            if len(tensors) == 1:
                self._raise(tensors[0], rank)
        if v.op == ITEM and v.inputs[0].op in ("chunk", "split"):
            self._raise(v.inputs[0].inputs[0], rank)

    def _forth(self, v: Value) -> None:
        """What is known of operands says of `v`."""
        ranks = [self._least.get(i, 0) for i in v.inputs]
        if v.op in _KEEP and v.inputs:
            inner = v.inputs[0].inputs if v.inputs[0].op == TUPLE else v.inputs[:1]
            self._raise(v, max((self._least.get(i, 0) for i in inner), default=0))
        elif v.op in _BOTH:
            self._raise(v, max(ranks))
        elif v.op == "matmul":
            self._raise(v, max(ranks) if min(ranks) >= 2 else max(max(ranks) - 1, 0))
        elif v.op == ITEM and v.inputs[0].op in ("chunk", "split"):
            self._raise(v, self._least.get(v.inputs[0].inputs[0], 0))
        elif v.op == ITEM and v.inputs[1].op == TUPLE:
            change = index_change(v.inputs[1])
            self._raise(v, 0 if change is None else ranks[0] + change)
        elif v.op == ITEM:
            self._raise(v, ranks[0] - 1 if v.inputs[1].op == CONST else 0)
        elif v.op == "unsqueeze":
            self._raise(v, ranks[0] + 1)
        elif v.op == CHOICE:
            self._raise(v, min(ranks[1:]))


def _needed(v: Value) -> Iterator[tuple[Value, int]]:
    """What raises an error for operands with fewer dimensions: each operand, with how many it needs."""
    if v.op in _DIMS:
        yield v.inputs[0], _dims([v.inputs[i] for i in _DIMS[v.op]])
    elif v.op == "mT":
        yield v.inputs[0], 2
    elif v.op == "permute":
        arguments = v.inputs[1].inputs
        named = arguments[0].inputs if len(arguments) == 1 and arguments[0].op == TUPLE else arguments
        yield v.inputs[0], len(named) if all(a.op == CONST for a in named) else 0
    elif v.op == "size":
        yield v.inputs[0], _dims(v.inputs[1:2])
    elif v.op == ITEM and v.inputs[0].op == ATTRIBUTE and v.inputs[0].data == "shape":
        yield v.inputs[0].inputs[0], _dims(v.inputs[1:2])
    elif v.op == ITEM and v.inputs[0].op == "size" and is_const(v.inputs[0].inputs[1], None):
        yield v.inputs[0].inputs[0], _dims(v.inputs[1:2])
    elif v.op == ITEM and v.inputs[1].op == TUPLE:
        index = v.inputs[1].inputs
        yield v.inputs[0], sum(i.op == SLICE or type(i.data) is int for i in index)


def _dims(named: Iterable[Value]) -> int:
    """How many dimensions a tensor has in which each of `named` is one."""
    dims = [d.data for d in named if d.op == CONST and type(d.data) is int]
    return max((-d if d < 0 else d + 1 for d in dims), default=0)
