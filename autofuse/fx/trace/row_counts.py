"""The numbers of rows that experts have, while forward is traced: counts, and where one expert's rows end.

A count is a number that only the call knows. Forward may ask whether an expert has rows, add counts up one after the
other, and take the rows between two such sums. Everything else is refused.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NoReturn

import torch
from torch import Tensor, fx

from autofuse.fx.trace.expert_spellings import choices, flat_base, index_under, node_name

_CASTS = frozenset({"cpu", "int", "long", "to", "detach"})
_EXACT_CASTS = frozenset({"float", "double"})
_EXACT = (torch.int64, torch.int32, torch.float32, torch.float64)  # a float16 does not hold every index


def counted_expert(count: fx.Node) -> tuple[fx.Node, int] | None:
    """(counts, e), if `count` is how often expert e occurs in an index of experts; None for other values."""
    counts, e = _entry(count)
    return None if counts is None or counted_index(counts) is None else (uncast(counts), e)


def counted_end(end: fx.Node) -> tuple[fx.Node, int] | None:
    """(counts, e), if `end` is how often experts 0 to e occur in an index of experts; None for other values."""
    ends, e = _entry(end)
    ends = None if ends is None else uncast(ends)
    if ends is None or node_name(ends) != "cumsum" or not ends.args or not isinstance(ends.args[0], fx.Node):
        return None
    dim: Any = ends.kwargs.get("dim", ends.args[1] if len(ends.args) > 1 else None)
    counts = uncast(ends.args[0])
    return (counts, e) if dim in (0, -1) and counted_index(counts) is not None else None


def _entry(node: fx.Node) -> tuple[fx.Node | None, int]:
    """(of, e), if a node is `of[e]` or an item of `of.unbind()`."""
    of, e = node.args if node_name(node) == "getitem" and len(node.args) == 2 else (None, None)
    if not isinstance(of, fx.Node) or type(e) is not int:
        return None, 0
    return (of.args[0] if node_name(of) == "unbind" and isinstance(of.args[0], fx.Node) else of), e


def uncast(node: fx.Node) -> fx.Node:
    """The value of which `node` is a copy in another dtype of integers, or on another device."""
    while node_name(node) in _CASTS and isinstance(node.args[0], fx.Node) and _holds_counts(node):
        node = node.args[0]
    return node


def _holds_counts(node: fx.Node) -> bool:
    """Whether the dtype of a node holds every count exactly."""
    value = node.meta.get("v")
    return isinstance(value, Tensor) and value.dtype in _EXACT


def counted_index(counts: fx.Node) -> fx.Node | None:
    """The index of experts of which `counts` holds how often each occurs; None for other values."""
    counts = uncast(counts)
    if not _holds_counts(counts):
        return None
    if node_name(counts) in ("bincount", "histc") and isinstance(counts.args[0], fx.Node):
        index = flat_base(_unfloat(flat_base(counts.args[0])))
        return index if node_name(counts) == "bincount" or _has_unit_bins(counts, index) else None
    mask = counts.args[0] if node_name(counts) == "sum" and counts.args else None
    if not isinstance(mask, fx.Node) or not isinstance(value := mask.meta.get("v"), Tensor):
        return None
    dims: Any = counts.kwargs.get("dim", counts.args[1] if len(counts.args) > 1 else ())
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    over = {d % value.dim() for d in dims if type(d) is int}
    if over != set(range(value.dim() - 1)):
        return None
    while node_name(mask) in ("bool", *_CASTS) and isinstance(mask.args[0], fx.Node):
        mask = mask.args[0]
    return index_under(mask) if node_name(mask) == "one_hot" else _scattered_index(mask)


def _unfloat(index: fx.Node) -> fx.Node:
    while node_name(index) in _CASTS | _EXACT_CASTS and isinstance(index.args[0], fx.Node) and _holds_counts(index):
        index = index.args[0]
    return index


def _has_unit_bins(counts: fx.Node, index: fx.Node) -> bool:
    """Whether `torch.histc` has one bin for each expert."""
    given: dict[str, Any] = dict(zip(("bins", "min", "max"), counts.args[1:], strict=False)) | counts.kwargs
    bins, numbers = given.get("bins"), counts.args[0]
    if type(bins) is not int or not isinstance(numbers, fx.Node) or not _holds_counts(numbers):
        return False
    return bool(given.get("min") == 0 and given.get("max") in (bins, bins - 1) and choices(index) == bins)


def _scattered_index(mask: fx.Node) -> fx.Node | None:
    """The index (T, K) in `zeros(T, E).scatter(1, index, 1)`, if the entries of each row of it are distinct."""
    if node_name(mask) not in ("scatter_", "scatter") or len(mask.args) != 4 or mask.kwargs or mask.args[3] != 1:
        return None
    zeros, dim, index = mask.args[:3]
    if not isinstance(index, fx.Node) or not isinstance(zeros, fx.Node) or dim not in (1, -1):
        return None
    is_distinct = node_name(index) == "getitem" and isinstance(index.args[0], fx.Node) and index.args[1] == 1
    is_distinct = is_distinct and node_name(index.args[0]) == "topk"  # type: ignore[arg-type]
    fits = node_name(zeros) in ("zeros", "new_zeros", "zeros_like") and choices(index) == mask.meta["v"].shape[-1]
    return index if is_distinct and fits and mask.meta["v"].dim() == 2 else None


class CountKeeper:
    """The part of a recorder that handles counts of rows."""

    @abstractmethod
    def test_count(self, counts: fx.Node, e: int) -> bool:
        """Whether expert e has rows in the trace. Remembers that forward asked."""

    @abstractmethod
    def is_empty_expert(self, e: int) -> bool:
        """Whether expert e has no rows in the trace."""

    @abstractmethod
    def refuse_count(self) -> NoReturn:
        """Refuses any other use of a count."""


class RowBound:
    """The number of rows the experts before `at` have together.

    Attributes:
        keeper: The recorder.
        counts: The node of the counts.
        at: The number of experts.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, keeper: CountKeeper, counts: fx.Node, at: int) -> None:
        self.keeper, self.counts, self.at = keeper, counts, at

    def __add__(self, other: Any) -> Any:
        if type(other) is int and other == 0:
            return self
        if type(other) is RowCount and other.counts is self.counts and other.follows(self.at):
            return RowBound(self.keeper, self.counts, other.e + 1)
        return self.keeper.refuse_count()

    def __radd__(self, other: Any) -> Any:
        return self + other

    def __sub__(self, other: Any) -> Any:
        if type(other) is int and other == 0:
            return self
        if type(other) is RowCount and other.counts is self.counts and other.e == self.at - 1:
            return RowBound(self.keeper, self.counts, other.e)
        last = RowCount(self.keeper, self.counts, self.at - 1)
        if type(other) is RowBound and other.counts is self.counts and last.follows(other.at):
            return last
        return self.keeper.refuse_count()

    def _compare(self, other: Any, name: str) -> bool:
        """Whether the bounds compare like this: they are equal if the expert between them has no rows."""
        at = 0 if type(other) is int and other == 0 else getattr(other, "at", None)
        if at is None or at and other.counts is not self.counts:
            self.keeper.refuse_count()
        low, high = sorted((self.at, at))
        if low == high:
            return name in ("eq", "le", "ge")
        if not RowCount(self.keeper, self.counts, high - 1).follows(low):
            self.keeper.refuse_count()
        if name == ("ge" if self.at == high else "le"):
            return True
        if name == ("lt" if self.at == high else "gt"):
            return False
        return self.keeper.test_count(self.counts, high - 1) == (name not in ("eq", "le", "ge"))

    def __bool__(self) -> bool:
        return self._compare(0, "gt")

    def __eq__(self, other: object) -> bool:
        return self._compare(other, "eq")

    def __ne__(self, other: object) -> bool:
        return self._compare(other, "ne")

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, "gt")

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, "ge")

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, "lt")

    def __le__(self, other: Any) -> bool:
        return self._compare(other, "le")


class RowCount:
    """The number of rows an expert has.

    Attributes:
        keeper: The recorder.
        counts: The node of the counts.
        e: The number of the expert.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, keeper: CountKeeper, counts: fx.Node, e: int) -> None:
        self.keeper, self.counts, self.e = keeper, counts, e

    def follows(self, at: int) -> bool:
        """Whether the rows of this expert follow those of the experts before `at`: those in between have none."""
        return at <= self.e and all(self.keeper.is_empty_expert(e) for e in range(at, self.e))

    def __bool__(self) -> bool:
        return self.keeper.test_count(self.counts, self.e)

    def __add__(self, other: Any) -> Any:
        if type(other) is RowBound:
            return other + self
        if type(other) is int and other == 0 or type(other) is RowCount:
            return (RowBound(self.keeper, self.counts, 0) + self) + other
        return self.keeper.refuse_count()

    def __radd__(self, other: Any) -> Any:
        return self + other if type(other) is int else self.keeper.refuse_count()

    def _compare(self, other: Any, answer: bool) -> bool:
        if type(other) is not int or other != 0:
            self.keeper.refuse_count()
        return answer == self.keeper.test_count(self.counts, self.e)

    def __eq__(self, other: object) -> bool:
        return self._compare(other, False)

    def __ne__(self, other: object) -> bool:
        return self._compare(other, True)

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, True)

    def __le__(self, other: Any) -> bool:
        return self._compare(other, False)


def _refuse_number(count: RowCount | RowBound, *_: Any) -> NoReturn:
    count.keeper.refuse_count()


_REFUSED = "mul rmul truediv rtruediv floordiv rfloordiv mod neg int float index format str repr rsub"
for _name in _REFUSED.split():
    setattr(RowBound, f"__{_name}__", _refuse_number)
for _name in f"{_REFUSED} sub lt ge".split():
    setattr(RowCount, f"__{_name}__", _refuse_number)


def same_counts(one: fx.Node, other: fx.Node) -> bool:
    """Whether both nodes are the counts of one index."""
    return one is other or counted_index(one) is counted_index(other)


__all__ = [
    "CountKeeper", "RowBound", "RowCount", "counted_end", "counted_expert", "counted_index", "same_counts", "uncast",
]  # fmt: skip
