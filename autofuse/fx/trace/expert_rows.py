"""What a recorder does where forward goes through its experts: how many rows each of them takes, tensors decide.

`torch.where(chosen[e])` is written down with a made-up number of rows, whose name stands wherever it is a size. A loop
over the experts that are hit runs for all of them, as one that is not hit has no rows. Questions whether an expert has
rows are answered with yes, and the answer is remembered. fold_experts.py then proves that the trace is a loop over
experts, and where it is not, forward is refused.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from autofuse.fx.trace.torch_functions import CONSTANT_METHODS
from autofuse.fx.trace.values import Values, tensors
from autofuse.reasons import forwards
from autofuse.reasons.reason import because

ROWS = 7919  # rows of an expert while it is traced: a prime that is no width
_NAME = re.compile(r"_rows\d+")
_HAS_ROWS = re.compile(r"not \(?(_rows\d+)(?: \* 1\))? (?:==|<=) 0|\(?(_rows\d+)(?: \* 1\))? (?:>|!=) 0")
_REDUCED = frozenset({"any", "sum", "count_nonzero"})
_VIEWS = frozenset({"view", "reshape", "flatten", "squeeze", "contiguous", "bool", "long", "int"})
UNSEEN: Any = object()


@dataclass
class Loops:
    """What one trace says of rows of experts."""

    conditions: dict[str, fx.Node] = field(default_factory=dict)  # name of a number of rows -> what chooses them
    rows: dict[str, fx.Node] = field(default_factory=dict)  # -> the node of torch.where
    asked: set[fx.Node] = field(default_factory=set)  # conditions of which forward asked whether they hold anywhere
    hits: set[fx.Node] = field(default_factory=set)  # masks of which only the experts that are hit are gone through

    @property
    def skips_empty(self) -> set[str]:
        """The names of rows that forward leaves out where there are none."""
        return {name for name, node in self.conditions.items() if node in self.asked}


class ExpertRows(Values):
    """A recorder's answers about rows of experts."""

    def begin_rows(self) -> None:
        self.loops = Loops()
        self._hits: dict[int, tuple[Tensor, int]] = {}  # id of what torch.nonzero gives -> itself, how many experts
        self._numbers: dict[int, tuple[Tensor, int]] = {}  # id of one of those -> itself, its number

    def about_rows(self, function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation that is about experts' rows; UNSEEN for any other."""
        first = args[0] if args else kwargs.get("input")
        if name in CONSTANT_METHODS:
            return UNSEEN
        if name in ("where", "nonzero") and isinstance(first, Tensor) and (len(args) == 1 or name == "nonzero"):
            if name == "where" and not kwargs or kwargs.get("as_tuple") is True:
                return self._chosen(first)
            if name == "nonzero" and len(args) == 1 and not kwargs and first.dim() == 1:
                return self._hit(first)
        if isinstance(first, Tensor) and id(first) in self._hits:
            return self._of_hits(name, *self._hits[id(first)], args)
        if isinstance(first, Tensor) and id(first) in self._numbers:
            return self._of_number(name, *self._numbers[id(first)], args)
        if name == "__getitem__" and len(args) == 2 and (index := self._index(args[1])) is not None:
            return self.with_rows(function, (first, index), kwargs)
        if name == "__setitem__" and len(args) == 3 and self.rows_of(args[2]):
            index = self._index(args[1])
            return UNSEEN if index is None else self.put((first, index, args[2]))
        if name in ("__bool__", "item") and isinstance(first, Tensor) and not kwargs:
            return self._whether(first)
        if (
            name in ("__eq__", "__gt__", "__ne__", "eq", "gt", "ne")
            and len(args) == 2
            and type(args[1]) in (int, float)
            and args[1] == 0
        ):
            if (asked := self._asks(first)) is not None:
                self.loops.asked.add(base_of(asked))
                return name.strip("_") != "eq"
        return UNSEEN

    # Which rows.

    def _chosen(self, chosen: Tensor) -> Any:
        node = self.node_of(chosen)
        if (base := base_of(node)) is not node and isinstance(base.meta.get("v"), Tensor):
            return self._flat(base)
        for name, condition in self.loops.conditions.items():
            if condition is node or _is_same(condition, node):
                return self.loops.rows[name].meta["results"]
        name = f"_rows{len(self.loops.conditions)}"
        with self.pause_recording():
            made = tuple(torch.empty(ROWS, dtype=torch.int64, device=chosen.device) for _ in range(chosen.dim()))
        where = self.annotate(self.graph.call_function(torch.where, (node,)), made)
        result = self.keep_result(where, made, [], [(name,)] * len(made))
        self.loops.conditions[name], self.loops.rows[name] = node, where
        where.meta["results"] = result
        return result

    def _flat(self, base: fx.Node) -> Any:
        """The rows of a flat view, told by those of the mask itself."""
        mask: Tensor = next(h.tensor for h in self.held.values() if h.node is base)
        first, *others = self._chosen(mask)
        for dim, place in enumerate(others, start=1):
            first = self.with_rows(torch.Tensor.mul, (first, self.length(mask, dim)), {})
            first = self.with_rows(torch.Tensor.add, (first, place), {})
        return (first,)

    def length(self, x: Tensor, dim: int) -> Any:
        """The size of a dimension."""
        raise NotImplementedError

    def _hit(self, hit: Tensor) -> Any:
        """The experts that are hit: `(mask.sum(dim=(-1, -2)) > 0).nonzero()`."""
        mask = _mask_of_hits(self.node_of(hit))
        if mask is None:
            return UNSEEN
        self.loops.hits.add(mask)
        if not _counts_classes(mask):
            self.length(hit, 0).int_()
        with self.pause_recording():
            made = torch.empty(hit.shape[0], 1, dtype=torch.int64, device=hit.device)
        self._hits[id(made)] = made, int(hit.shape[0])
        return made

    def _of_hits(self, name: str, hits: Tensor, count: int, args: tuple[Any, ...]) -> Any:
        if name in ("__iter__", "unbind"):
            return self._each(hits, count)
        if name in ("squeeze", "flatten", "view", "reshape", "tolist") and args[1:] in ((), (-1,), (1,)):
            flat = name != "squeeze" or args[1:] in ((-1,), (1,))
            if name == "tolist" and hits.dim() == 1:
                return self._each(hits, count)
            if flat and name != "tolist":
                with self.pause_recording():
                    made = torch.empty(count, dtype=torch.int64, device=hits.device)
                self._hits[id(made)] = made, count
                return made
        self.refuse(because(forwards.NEEDS_NUMBERS, name="nonzero"))

    def _each(self, hits: Tensor, count: int) -> list[Tensor]:
        return [self._number(hits, e, hits.dim() - 1) for e in range(count)]

    def _number(self, like: Tensor, e: int, rank: int) -> Tensor:
        with self.pause_recording():
            made = torch.empty((1,) * rank, dtype=torch.int64, device=like.device)
        self._numbers[id(made)] = made, e
        return made

    def _of_number(self, name: str, number: Tensor, e: int, args: tuple[Any, ...]) -> Any:
        """The number of an expert is known in each turn."""
        if name in ("item", "__int__", "__index__", "tolist"):
            return e if name != "tolist" or number.dim() == 0 else [e]
        if name in ("squeeze", "__getitem__") and args[1:] in ((), (0,), (-1,)):
            return self._number(number, e, 0)
        compared = getattr(operator, name.strip("_"), None)
        if name.strip("_") in ("eq", "ne", "lt", "le", "gt", "ge") and len(args) == 2 and type(args[1]) is int:
            return compared(e, args[1]) if compared else UNSEEN
        self.refuse(because(forwards.NEEDS_NUMBERS, name=name.strip("_")))

    # Tensors with as many rows.

    def _index(self, index: Any) -> Any:
        """An index with numbers of experts and masks put in words; None where there are no such."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(isinstance(p, Tensor) and (id(p) in self._numbers or self._chooses(p)) for p in parts):
            return tuple(parts) if any(isinstance(p, Tensor) and self.rows_of(p) for p in parts) else None
        made: list[Any] = []
        for part in parts:
            if isinstance(part, Tensor) and id(part) in self._numbers:
                number, e = self._numbers[id(part)]
                made.append(e if number.dim() == 0 else slice(e, e + 1))
            elif isinstance(part, Tensor) and self._chooses(part):
                made += self._chosen(part)
            else:
                made.append(part)
        return tuple(made) if len(made) > 1 else made[0]

    def _chooses(self, x: Tensor) -> bool:
        return x.dtype is torch.bool and x.dim() > 0

    def rows_of(self, *values: Any) -> str | None:
        """The name of the number of rows that is a size of one of these; refuses two."""
        found = {str(s) for t in tensors(values) if id(t) in self.held for s in self.held[id(t)].sizes if is_rows(s)}
        if len(found) > 1:
            self.refuse(because(forwards.NEEDS_NUMBERS, name="where"))
        return next(iter(found), None)

    def with_rows(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Write down an operation of tensors with rows, whose results have as many."""
        raise NotImplementedError

    def put(self, args: tuple[Any, ...]) -> None:
        """Write down `x[rows] = y`."""
        raise NotImplementedError

    def named_rows(self, name: str | None, results: list[Tensor], sizes: list[Any]) -> list[Any]:
        """The sizes of results, rows by their name."""
        if name is None:
            return sizes
        found = []
        for result, known in zip(results, sizes, strict=True):
            actual = [int(n) for n in result.shape]
            if any(n > ROWS and n % ROWS == 0 for n in actual):
                self.refuse(because(forwards.NEEDS_NUMBERS, name="where"))
            found.append(tuple(name if n == ROWS else k for n, k in zip(actual, known, strict=True)))
        return found

    # Whether there are any.

    def _whether(self, x: Tensor) -> Any:
        """Whether `mask.any()`, or `mask.sum() > 0`: an expert without rows adds nothing."""
        asked = self._asks(x)
        if asked is None:
            return UNSEEN
        self.loops.asked.add(base_of(asked))
        return True

    def _asks(self, x: Any) -> fx.Node | None:
        held = self.held.get(id(x)) if isinstance(x, Tensor) else None
        if held is None or x.dim():
            return None
        node = held.node if held.node is not None else self.node_of(x)
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        of = node.args[0] if node.args else None
        if name in _REDUCED and isinstance(of, fx.Node) and len(node.args) == 1 and not node.kwargs:
            return of if _compares_index(base_of(of)) or base_of(of) in self.loops.conditions.values() else None
        return None

    def settle_rows(self) -> None:
        """Take out of the guards what asks for numbers of rows. Refuses where forward asks more than whether any."""
        for test in [t for t in self.guards.tests if _NAME.search(t)]:
            found = _HAS_ROWS.fullmatch(test)
            if found is None:
                self.refuse(because(forwards.NEEDS_NUMBERS, name="size"))
            del self.guards.tests[test]
            self.loops.asked.add(self.loops.conditions[found[1] or found[2]])


def _compares_index(node: fx.Node) -> bool:
    """Whether a mask says where an index is one number: `indices == 2`, `(indices == 2).any(dim=-1)`."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    if name == "any" and isinstance(node.args[0], fx.Node):
        return _compares_index(node.args[0])
    return name == "eq" and len(node.args) == 2 and type(node.args[1]) is int


def _is_same(one: fx.Node, other: fx.Node) -> bool:
    """Whether both are the same comparison of the same: `index == 2`, written twice."""
    name = getattr(one.target, "__name__", one.target)
    return name == "eq" and one.target == other.target and (one.args, one.kwargs) == (other.args, other.kwargs)


def _counts_classes(mask: fx.Node) -> bool:
    """Whether a mask has as many experts as `one_hot` was told: a number, which is guarded."""
    while mask.op == "call_method" and mask.target in ("permute", "bool", "to") and isinstance(mask.args[0], fx.Node):
        mask = mask.args[0]
    return getattr(mask.target, "__name__", "") == "one_hot" and "num_classes" in mask.kwargs


def base_of(node: fx.Node) -> fx.Node:
    """The mask of which `node` is a flat view: `mask.view(-1)`."""
    while node.op == "call_method" and (
        node.target in ("view", "reshape") and node.args[1:] in ((-1,), ((-1,),))
        or node.target == "flatten" and len(node.args) == 1 and not node.kwargs
    ) and isinstance(node.args[0], fx.Node):  # fmt: skip
        node = node.args[0]
    return node


def is_rows(size: Any) -> bool:
    return isinstance(size, str) and _NAME.fullmatch(size) is not None


def _mask_of_hits(node: fx.Node) -> fx.Node | None:
    """The mask of which `node` says for each first index whether anything is set."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    if name in ("gt", "greater", "ne") and len(node.args) == 2 and node.args[1] == 0 and not node.kwargs:
        inner = node.args[0]
        name = inner.target if isinstance(inner, fx.Node) and inner.op == "call_method" else getattr(
            getattr(inner, "target", None), "__name__", "")  # fmt: skip
        if not isinstance(inner, fx.Node) or name != "sum":
            return None
        node = inner
    elif name not in ("any",):
        return None
    dims: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else ())
    mask = node.args[0]
    if not isinstance(mask, fx.Node) or not isinstance(mask.meta.get("v"), Tensor):
        return None
    rank = mask.meta["v"].dim()
    asked = (
        {int(d) % rank for d in (dims if isinstance(dims, (tuple, list)) else [dims])} if dims is not None else set()
    )
    return mask if asked == set(range(1, rank)) else None


__all__ = ["ROWS", "UNSEEN", "ExpertRows", "Loops", "base_of", "is_rows"]
