"""Records forwards whose rows are sorted by expert, and that take one segment after the other.

| as written | recorded as |
| --- | --- |
| `x[start:end]`, `x.split(counts)[e]`, `x.narrow(0, start, n)` | `x[rows]`, rows from `segment_rows(counts, e)` |
| `out[start:end] = y` | `out[rows] = y` |
| `torch.cat(results)` | one `out[rows] = y` for each expert, in a new `out` |

So a turn begins and ends as that of a loop with `torch.where`. The rows are those of a tensor with as many rows as the
counted index has entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, fx

from autofuse.fx.trace.row_counts import CountKeeper, RowBound, RowCount, counted_end, counted_expert, counted_index
from autofuse.fx.trace.values import HeldTensor, Values
from autofuse.ops.experts import joined_rows, segment_rows
from autofuse.reasons import forwards
from autofuse.reasons.reason import because

NOT_HANDLED: Any = object()
ROWS = 7919  # rows of an expert in a trace: a prime number, so that it is not the width of a layer
_NUMBERS = frozenset({"item", "__index__"})
_JOINS = frozenset({"cat", "concat", "concatenate"})


class ExpertSegments(Values, CountKeeper):
    """The part of a Recorder that handles segments of sorted rows."""

    loops: Any
    alternates: bool

    def begin_segments(self) -> None:
        """Set up the tables of one trace."""
        self._segments: dict[tuple[fx.Node, int], str] = {}  # (counts, expert) -> the name of its number of rows
        self._joins: dict[int, tuple[Tensor, list[Tensor]]] = {}  # id of joined rows -> them, and their parts

    def operation_on_segments(
        self, function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of an operation on segments or counts; NOT_HANDLED for any other operation."""
        first = args[0] if args else kwargs.get("input", kwargs.get("tensors"))
        if name in _JOINS and isinstance(first, (list, tuple)):
            dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            return self._join(list(first)) if dim == 0 and len(args) + len(kwargs) < 3 else NOT_HANDLED
        if not isinstance(first, Tensor):
            return NOT_HANDLED
        if name in ("index_add", "index_add_") and len(args) == 4 and args[1] == 0 and not kwargs:
            return self._add_joined(function, args) if all(id(a) in self._joins for a in args[2:]) else NOT_HANDLED
        if name in _NUMBERS and not first.dim():
            return self._number_of_rows(first)
        if name == "numpy" and len(args) == 1 and not kwargs and counted_index(self.node_of(first)) is not None:
            return [self._number_of_rows(c) for c in self.with_rows(torch.Tensor.unbind, (first, 0), {})]
        if name == "split" and len(args) + len(kwargs) <= 3:
            return self._split(first, args[1:], kwargs)
        if name == "narrow" and len(args) == 4 and args[1] == 0 and type(args[3]) is RowCount:
            return self._segment(first, slice(args[2], args[2] + args[3]))
        if name == "__getitem__" and len(args) == 2 and (part := self._leading_slice(first, args[1])) is not None:
            return self._segment(first, part)
        if name == "__setitem__" and len(args) == 3 and (part := self._leading_slice(first, args[1])) is not None:
            found = self._expert_of(part)
            if found is None or not self._has_all_rows(first, found[0]):
                self.refuse_count()
            return self.put((first, self._rows_of_segment(*found), args[2]))
        return NOT_HANDLED

    # Counts.

    def _number_of_rows(self, x: Tensor) -> Any:
        """The count of one expert, or where its rows end, as a number of which little may be asked."""
        node = self.node_of(x)
        if (counted := counted_expert(node)) is not None:
            return RowCount(self, *counted)
        if (ends := counted_end(node)) is not None:
            return RowBound(self, ends[0], ends[1] + 1)
        return NOT_HANDLED

    def test_count(self, counts: fx.Node, e: int) -> bool:
        """Whether expert e has rows in the trace. Only its own turn may ask, before it chooses its rows."""
        index = counted_index(counts)
        if index is None:
            self.refuse_count()
        self.loops.counted.setdefault(index, set()).add(e if self._is_next(counts, e) else -1)
        return not self.is_empty_expert(e)

    def _is_next(self, counts: fx.Node, e: int) -> bool:
        """Whether the turn of expert e begins next, or has begun by taking its segment."""
        return len(self.loops.rows) == e or (counts, e) in self._segments and len(self.loops.rows) == e + 1

    def is_empty_expert(self, e: int) -> bool:
        """Whether expert e has no rows in the trace."""
        return self.alternates and e % 2 == 0

    def refuse_count(self) -> NoReturn:
        """Refuses any other use of a count."""
        self.refuse(because(forwards.NEEDS_NUMBERS, name="tolist"))

    # Segments.

    def _leading_slice(self, x: Tensor, index: Any) -> slice | None:
        """The slice of the first dimension, if counts are its bounds and further dimensions are taken whole."""
        part, *others = index if isinstance(index, tuple) and index else (index,)
        if not isinstance(part, slice) or part.step is not None or any(o != slice(None) for o in others):
            return None
        bounds = [self._bound(b) for b in (part.start, part.stop)]
        return slice(*bounds) if any(isinstance(b, (RowBound, RowCount)) for b in bounds) else None

    def _bound(self, x: Any) -> Any:
        if isinstance(x, Tensor) and not x.dim() and (number := self._number_of_rows(x)) is not NOT_HANDLED:
            return number
        return x

    def _expert_of(self, part: slice) -> tuple[fx.Node, int] | None:
        """(counts, e), if a slice takes the rows of expert e."""
        stop = part.stop + 0 if isinstance(part.stop, RowCount) else part.stop
        start = part.start + 0 if isinstance(part.start, RowCount) else part.start
        if not isinstance(stop, RowBound) or not stop.at:
            return None
        at = 0 if start is None or type(start) is int and start == 0 else getattr(start, "at", None)
        last = RowCount(self, stop.counts, stop.at - 1)
        fits = at is not None and (not at or start.counts is stop.counts) and last.follows(at)
        return (stop.counts, last.e) if fits else None

    def _segment(self, x: Tensor, part: slice) -> Any:
        found = self._expert_of(part)
        stop = part.stop
        if found is None and isinstance(stop, RowBound) and part.start in (None, 0) and self._ends_all(stop):
            if self._has_all_rows(x, stop.counts):  # x[:sum(counts)]
                return x
        if found is None or not self._has_all_rows(x, found[0]):
            self.refuse_count()
        return self._take(x, *found)

    def _ends_all(self, bound: RowBound) -> bool:
        return bool(bound.at == bound.counts.meta["v"].shape[0])

    def _take(self, x: Tensor, counts: fx.Node, e: int) -> Any:
        return self.with_rows(torch.Tensor.__getitem__, (x, self._rows_of_segment(counts, e)), {})

    def _split(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The segments of all experts: `x.split(counts)`."""
        given = dict(zip(("sizes", "dim"), args, strict=False)) | kwargs
        sizes = given.get("sizes", given.get("split_size_or_sections", given.get("split_size")))
        if not isinstance(sizes, (list, tuple)) or not any(isinstance(n, RowCount) for n in sizes):
            return NOT_HANDLED
        counts = next(n.counts for n in sizes if isinstance(n, RowCount))
        is_each = all(isinstance(n, RowCount) and n.counts is counts and n.e == e for e, n in enumerate(sizes))
        is_each = is_each and len(sizes) == counts.meta["v"].shape[0]
        if not is_each or given.get("dim", 0) != 0 or not self._has_all_rows(x, counts):
            self.refuse_count()
        return tuple(self._take(x, counts, e) for e in range(len(sizes)))

    def _rows_of_segment(self, counts: fx.Node, e: int) -> Tensor:
        """The index of the rows of expert e."""
        name = self._segments.get((counts, e))
        if name is None:
            name = self._segments[counts, e] = f"_rows{len(self.loops.conditions)}"
            rows = 0 if self.is_empty_expert(e) else ROWS
            with self.pause_recording():
                example = (torch.empty(rows, dtype=torch.int64, device=counts.meta["v"].device),)
            node = self.annotate(self.graph.call_function(segment_rows, (counts, e)), example)
            node.meta["results"] = self.keep_result(node, example, [], [(name,)])
            self.loops.conditions[name] = self.loops.rows[name] = node
            self.loops.numbers[name] = e
        result: Tensor = self.loops.rows[name].meta["results"][0]
        return result

    def _has_all_rows(self, x: Tensor, counts: fx.Node) -> bool:
        """Whether `x` has one row for each entry of the counted index. Adds a guard if sizes do not show it."""
        index = counted_index(counts)
        counted = next((h.tensor for h in self.held.values() if h.node is index), None)
        if counted is None or not x.dim():
            return False
        total: Any = 1
        for d in range(counted.dim()):
            total = self.length(counted, d) * total
        return bool(total != 0) and bool(total == self.length(x, 0))

    # Results.

    def _join(self, parts: list[Any]) -> Any:
        """`torch.cat` of the results of all experts; NOT_HANDLED for any other tensors."""
        named = [(p, self.rows_of(p)) for p in parts if isinstance(p, Tensor)]
        if len(named) == len(parts) and named and all(name is not None for _, name in named):
            if not any(name in self._segments.values() for _, name in named):
                return self._join_later(parts)
        segments = {name: key for key, name in self._segments.items()}
        if len(named) != len(parts) or not any(name in segments for _, name in named):
            return NOT_HANDLED
        counts = next(segments[name][0] for _, name in named if name in segments)
        results = [(p, name) for p, name in named if p.shape[0] or name is None and not self.alternates]
        wanted = [e for e in range(counts.meta["v"].shape[0]) if not self.is_empty_expert(e)]
        if [segments.get(name or "") for _, name in results] != [(counts, e) for e in wanted]:
            self.refuse_count()
        return self._join_results(counts, [(p, e) for (p, _), e in zip(results, wanted, strict=True)])

    def _join_later(self, parts: list[Tensor]) -> Tensor:
        """`torch.cat` of rows that conditions chose. It may only be added to a result: then each part is added."""
        with self.pause_recording():
            joined = torch.cat(parts)
        self.held[id(joined)] = HeldTensor(joined, self.refuse_count, (None,) * joined.dim())
        self._joins[id(joined)] = joined, parts
        return joined

    def _add_joined(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """`out.index_add(0, torch.cat(rows), torch.cat(results))`."""
        out, (_, rows), (_, results) = args[0], self._joins[id(args[2])], self._joins[id(args[3])]
        names = [self.rows_of(r) for r in rows]
        if names != [self.rows_of(r) for r in results] or len({*names}) < len(names):
            self.refuse_count()
        for index, y in zip(rows, results, strict=True):
            out = self.with_rows(function, (out, 0, index, y), {})
        return out

    def _join_results(self, counts: fx.Node, results: list[tuple[Tensor, int]]) -> Tensor:
        like = results[0][0]
        index = counted_index(counts)
        counted = next(h.tensor for h in self.held.values() if h.node is index)
        if any(p.shape[1:] != like.shape[1:] or p.dtype != like.dtype for p, _ in results):
            self.refuse_count()
        total: Any = 1
        for d in range(counted.dim()):
            total = self.length(counted, d) * total
        with self.pause_recording():
            example = torch.empty((counted.numel(), *like.shape[1:]), dtype=like.dtype, device=like.device)
        node = self.annotate(self.graph.call_function(joined_rows, (counts,)), example)
        made: Tensor = self.keep_result(node, example, [], [(total.size, *self.sizes_of(like)[1:])])
        for part, e in results:
            self.put((made, self._rows_of_segment(counts, e), part))
        return made

    # What the recorder provides.

    def rows_of(self, *values: Any) -> str | None:
        """The name of the number of rows of these values."""
        raise NotImplementedError

    def length(self, x: Tensor, dim: int) -> Any:
        """The size of a dimension."""
        raise NotImplementedError

    def with_rows(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation on tensors with rows. Its results have the same rows."""
        raise NotImplementedError

    def put(self, args: tuple[Any, ...]) -> None:
        """Record `x[rows] = y`."""
        raise NotImplementedError


def is_segment(where: fx.Node) -> bool:
    """Whether a node chooses the rows of an expert as a segment of sorted rows."""
    return where.target is segment_rows


def is_joined(out: fx.Node) -> bool:
    """Whether a node stands for the result of `torch.cat` of the results of all experts."""
    return out.target is joined_rows


__all__ = ["NOT_HANDLED", "ROWS", "ExpertSegments", "is_joined", "is_segment"]
