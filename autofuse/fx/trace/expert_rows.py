"""Records a forward that loops over experts, where tensors decide how many rows each expert gets.

`torch.where(chosen[e])` is recorded with a made-up number of rows. The name of this number is the size of every
dependent dimension. A loop over the experts with rows is recorded for all experts, because an expert without rows adds
nothing. If forward tests whether an expert has rows, the answer is yes, and the test is remembered. fold_experts.py
then
proves that the trace is a loop over experts. If it cannot, forward is refused.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from autofuse.fx.trace.expert_segments import NOT_HANDLED, ROWS, ExpertSegments
from autofuse.fx.trace.expert_spellings import choices, expert_number, flat_base, known_form, repeated_index
from autofuse.fx.trace.torch_functions import CONSTANT_METHODS
from autofuse.fx.trace.values import tensors
from autofuse.ops.experts import first_rows
from autofuse.reasons import forwards
from autofuse.reasons.reason import because

_ROWS_NAME = re.compile(r"_rows\d+")
_HAS_ROWS = re.compile(r"not \(?(_rows\d+)(?: \* 1\))? (?:==|<=) 0|\(?(_rows\d+)(?: \* 1\))? (?:>|!=) 0")
_REDUCTIONS = frozenset({"any", "sum", "count_nonzero"})
_UNIQUE = frozenset({"unique", "_unique_impl", "_return_output"})  # torch.unique, and its parts
_OF_COLUMN = (
    *((name, (dim,)) for name in ("squeeze", "view", "reshape") for dim in (-1, 1) if name == "squeeze" or dim < 0),
    ("flatten", ()),
)
_VIEWS = frozenset({"view", "reshape", "flatten", "squeeze", "contiguous", "bool", "long", "int"})


@dataclass
class Loops:
    """The facts that one trace recorded about the rows of experts.

    Attributes:
        conditions: name of a number of rows -> the mask that chooses the rows.
        rows: name of a number of rows -> the node of torch.where.
        tested: masks of which forward tested whether any entry is set.
        hits: masks, or indices of experts, of which forward loops over the experts with rows only.
        numbers: name of a number of rows -> the number of the expert.
        counted: index of experts -> the experts of which forward tested, by a list of counts, whether they have rows.
    """

    conditions: dict[str, fx.Node] = field(default_factory=dict)
    rows: dict[str, fx.Node] = field(default_factory=dict)
    tested: set[fx.Node] = field(default_factory=set)
    hits: set[fx.Node] = field(default_factory=set)
    counted: dict[fx.Node, set[int]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def skips_empty(self) -> set[str]:
        """The names of the numbers of rows for which forward skips an expert without rows."""
        return {name for name, node in self.conditions.items() if node in self.tested}

    @property
    def tests_rows(self) -> bool:
        """Whether forward tests which experts have rows."""
        return bool(self.tested or self.hits or self.counted)

    @property
    def assumes_rows(self) -> bool:
        """Whether the trace rests on the assumption that each expert has rows."""
        return bool(self.conditions or self.tests_rows)

    def split(self, turns: int) -> Loops:
        """Remove what was recorded about the first `turns` turns, and return it.

        Tests of masks that no turn uses stay with the last turns.
        """
        names = list(self.rows)[:turns]
        whole = len(names) == len(self.rows)
        conditions = {name: self.conditions[name] for name in names}
        tested = self.tested if whole else self.tested & set(conditions.values())
        first = Loops(conditions, {name: self.rows[name] for name in names}, tested, self.hits, self.counted)
        self.tested = set() if whole else self.tested - tested
        for name in names:
            del self.rows[name], self.conditions[name]
        return first


class ExpertRows(ExpertSegments):
    """The part of a Recorder that handles rows of experts."""

    def begin_rows(self) -> None:
        """Set up the tables of one trace."""
        self.loops = Loops()
        self.begin_segments()
        self.alternates = False  # whether every other expert has no rows (empty_experts.py)
        self._hits: dict[int, tuple[Tensor, int]] = {}  # id of a result of torch.nonzero -> it, the number of experts
        self._numbers: dict[int, tuple[Tensor, int]] = {}  # id of an expert's index tensor -> it, the index
        self._columns: dict[int, tuple[Tensor, Tensor]] = {}  # id of rows with the shape (rows, 1) -> it, the rows

    def operation_on_rows(
        self, function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of an operation on the rows of experts; NOT_HANDLED for any other operation."""
        if name in CONSTANT_METHODS:
            return NOT_HANDLED
        first = args[0] if args else kwargs.get("input")
        is_known = id(first) in self._hits or id(first) in self._numbers
        found = NOT_HANDLED if is_known else self.operation_on_segments(function, name, args, kwargs)
        if found is not NOT_HANDLED:
            return found
        given = function, name, args, kwargs
        function, name, args, kwargs = known = known_form(given, ROWS, self._numbers, self._index_in_columns)
        if known is not given and name != "__getitem__":
            return self.with_rows(function, args, kwargs)
        first = args[0] if args else kwargs.get("input")
        if (
            isinstance(first, Tensor)
            and not is_known
            and (found := self._counts(name, first, args, kwargs)) is not NOT_HANDLED
        ):
            return found
        if name in ("where", "nonzero") and isinstance(first, Tensor) and (len(args) == 1 or name == "nonzero"):
            if name == "where" and not kwargs or kwargs.get("as_tuple") is True:
                return self._rows_where(first)
            if name == "nonzero" and len(args) == 1 and not kwargs and first.dim() == 1:
                hits = self._experts_with_rows(first)
                return self._column_of_rows(first) if hits is NOT_HANDLED and first.dtype is torch.bool else hits
        if isinstance(first, Tensor) and id(first) in self._columns:
            token = self._columns[id(first)][1]
            if (name, args[1:]) in _OF_COLUMN or name == "__getitem__" and args[1] == (slice(None), 0):
                return token
        if isinstance(first, Tensor) and id(first) in self._hits:
            return self._operation_on_hits(name, *self._hits[id(first)], args)
        if isinstance(first, Tensor) and id(first) in self._numbers:
            return self._operation_on_number(name, *self._numbers[id(first)], args)
        if name == "__getitem__" and len(args) == 2 and (index := self._index(args[1])) is not None:
            return self.with_rows(function, (first, index), kwargs)
        if name == "__getitem__" and len(args) == 2 and self._is_chosen_row(first) and _is_beginning(args[1]):
            return self.with_rows(first_rows, (first, args[1].stop), {})
        if name == "__setitem__" and len(args) == 3 and self.rows_of(args[2]):
            index = self._index(args[1])
            return NOT_HANDLED if index is None else self.put((first, index, args[2]))
        if name in ("__bool__", "item") and isinstance(first, Tensor) and not kwargs:
            return self._any_rows(first)
        if (
            name in ("__eq__", "__gt__", "__ne__", "eq", "gt", "ne")
            and len(args) == 2
            and type(args[1]) in (int, float)
            and args[1] == 0
        ):
            if (mask := self._tested_mask(first)) is not None:
                self.loops.tested.add(flat_base(mask))
                has_rows = not self.is_empty_expert(self._number_of(flat_base(mask)))
                return has_rows != (name.strip("_") == "eq")
        return NOT_HANDLED

    # The rows of an expert.

    def _rows_where(self, mask: Tensor) -> Any:
        node = self.node_of(mask)
        if (base := flat_base(node)) is not node and isinstance(base.meta.get("v"), Tensor):
            return self._rows_of_flat_view(base)
        for name, condition in self.loops.conditions.items():
            if condition is node or _is_same_comparison(condition, node):
                return self.loops.rows[name].meta["results"]
        name = f"_rows{len(self.loops.conditions)}"
        self.loops.numbers[name] = number = self._number_of(node)
        rows = 0 if self.is_empty_expert(number) else ROWS
        with self.pause_recording():
            examples = tuple(torch.empty(rows, dtype=torch.int64, device=mask.device) for _ in range(mask.dim()))
        where = self.annotate(self.graph.call_function(torch.where, (node,)), examples)
        result = self.keep_result(where, examples, [], [(name,)] * len(examples))
        self.loops.conditions[name], self.loops.rows[name] = node, where
        where.meta["results"] = result
        return result

    def _number_of(self, mask: fx.Node) -> int:
        """The number of the expert whose rows a mask selects. If the mask does not show it, masks are counted."""
        number = expert_number(mask)
        if number is not None:
            return number
        known = list(self.loops.conditions.values())
        return known.index(mask) if mask in known else len(known)

    def _column_of_rows(self, mask: Tensor) -> Tensor:
        """The rows as `mask.nonzero()` gives them, with the shape (rows, 1)."""
        (rows,) = self._rows_where(mask)
        column: Tensor = self.with_rows(torch.Tensor.unsqueeze, (rows, -1), {})
        self._columns[id(column)] = column, rows
        return column

    def _index_in_columns(self, x: Tensor) -> Tensor | None:
        """The index of rows that the matrix `x` repeats in each column; None if it does not."""
        base = repeated_index(self.node_of(x))
        found = (h.tensor for h in self.held.values() if base is not None and h.node is base)
        return next((t for t in found if self.rows_of(t)), None)

    def _is_chosen_row(self, x: Any) -> bool:
        """Whether `x` is an index that torch.where returned."""
        wheres = [where.meta["results"] for where in self.loops.rows.values()]
        return any(x is index for results in wheres for index in results)

    def _counts(self, name: str, first: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The experts that an index contains, or how many rows each has; NOT_HANDLED for any other operation."""
        if name in _UNIQUE and first.dim() and not any(args[2:]) and not any(kwargs[k] for k in {*kwargs} - {"sorted"}):
            index = flat_base(self.node_of(first))
            if (count := choices(index)) is not None:
                self.loops.hits.add(index)
                return self._hits_of(first, count, 1)
        if name == "bincount" and len(args) == 1 and first.dim() == 1 and {*kwargs} == {"minlength"}:
            if choices(flat_base(self.node_of(first))) == kwargs["minlength"]:
                with self.pause_recording():
                    example = torch.empty(kwargs["minlength"], dtype=torch.int64, device=first.device)
                node = self.annotate(self.graph.call_function(torch.bincount, (self.node_of(first),), kwargs), example)
                return self.keep_result(node, example, [], [(None,)])
        return NOT_HANDLED

    def _rows_of_flat_view(self, base: fx.Node) -> Any:
        """The rows of a flat view, computed from the rows of the mask itself."""
        mask: Tensor = next(h.tensor for h in self.held.values() if h.node is base)
        first, *others = self._rows_where(mask)
        for dim, index in enumerate(others, start=1):
            first = self.with_rows(torch.Tensor.mul, (first, self.length(mask, dim)), {})
            first = self.with_rows(torch.Tensor.add, (first, index), {})
        return (first,)

    def _experts_with_rows(self, has_rows: Tensor) -> Any:
        """The experts with rows: `(mask.sum(dim=(-1, -2)) > 0).nonzero()`."""
        mask = _mask_of_hits(self.node_of(has_rows))
        if mask is None:
            return NOT_HANDLED
        self.loops.hits.add(mask)
        if not _counts_classes(mask):
            self.length(has_rows, 0).int_()
        return self._hits_of(has_rows, int(has_rows.shape[0]), 2)

    def _hits_of(self, like: Tensor, count: int, rank: int) -> Tensor:
        """The numbers of the experts with rows. In the trace these are all experts."""
        with self.pause_recording():
            example = torch.empty((count, 1)[:rank], dtype=torch.int64, device=like.device)
        self._hits[id(example)] = example, count
        return example

    def _operation_on_hits(self, name: str, hits: Tensor, count: int, args: tuple[Any, ...]) -> Any:
        if name in ("__iter__", "unbind"):
            return self._expert_numbers(hits, count)
        if name in ("squeeze", "flatten", "view", "reshape", "tolist") and args[1:] in ((), (-1,), (1,)):
            flat = name != "squeeze" or args[1:] in ((-1,), (1,))
            if name == "tolist" and hits.dim() == 1:
                return self._expert_numbers(hits, count)
            if flat and name != "tolist":
                with self.pause_recording():
                    example = torch.empty(count, dtype=torch.int64, device=hits.device)
                self._hits[id(example)] = example, count
                return example
        self.refuse(because(forwards.NEEDS_NUMBERS, name="nonzero"))

    def _expert_numbers(self, hits: Tensor, count: int) -> list[Tensor]:
        return [self._number(hits, e, hits.dim() - 1) for e in range(count) if not self.is_empty_expert(e)]

    def _number(self, like: Tensor, e: int, rank: int) -> Tensor:
        with self.pause_recording():
            example = torch.empty((1,) * rank, dtype=torch.int64, device=like.device)
        self._numbers[id(example)] = example, e
        return example

    def _operation_on_number(self, name: str, number: Tensor, e: int, args: tuple[Any, ...]) -> Any:
        """The result of an operation on an expert's index, which is a known number in each turn."""
        if name in ("item", "__int__", "__index__", "tolist"):
            return e if name != "tolist" or number.dim() == 0 else [e]
        if name in ("squeeze", "__getitem__") and args[1:] in ((), (0,), (-1,)):
            return self._number(number, e, 0)
        compared = getattr(operator, name.strip("_"), None)
        if name.strip("_") in ("eq", "ne", "lt", "le", "gt", "ge") and len(args) == 2 and type(args[1]) is int:
            return compared(e, args[1]) if compared else NOT_HANDLED
        self.refuse(because(forwards.NEEDS_NUMBERS, name=name.strip("_")))

    # Tensors with the rows of an expert.

    def _index(self, index: Any) -> Any:
        """An index in which experts' numbers are ints and masks are rows; None if it contains neither."""
        parts = list(index if isinstance(index, tuple) else (index,))
        while len(parts) > 1 and isinstance(parts[-1], slice) and parts[-1] == slice(None):
            parts.pop()  # x[rows, :]
        if not any(isinstance(p, Tensor) and (id(p) in self._numbers or self._is_mask(p)) for p in parts):
            found = any(isinstance(p, Tensor) and self.rows_of(p) for p in parts)
            return (tuple(parts) if len(parts) > 1 else parts[0]) if found else None
        converted: list[Any] = []
        for part in parts:
            if isinstance(part, Tensor) and id(part) in self._numbers:
                number, e = self._numbers[id(part)]
                converted.append(e if number.dim() == 0 else slice(e, e + 1))
            elif isinstance(part, Tensor) and self._is_mask(part):
                converted += self._rows_where(part)
            else:
                converted.append(part)
        return tuple(converted) if len(converted) > 1 else converted[0]

    def _is_mask(self, x: Tensor) -> bool:
        return x.dtype is torch.bool and x.dim() > 0

    def rows_of(self, *values: Any) -> str | None:
        """The name of the number of rows that is a size of one of these values; None if there is none.

        Raises:
            Untraceable: there are two.
        """
        found = {str(s) for t in tensors(values) if id(t) in self.held for s in self.held[id(t)].sizes if is_rows(s)}
        if len(found) > 1:
            self.refuse(because(forwards.NEEDS_NUMBERS, name="where"))
        return next(iter(found), None)

    def sizes_with_names(self, name: str | None, results: list[Tensor], sizes: list[Any]) -> list[Any]:
        """The sizes of results, in which a number of rows is replaced by its name."""
        if name is None:
            return sizes
        found = []
        for result, named_sizes in zip(results, sizes, strict=True):
            actual = [int(n) for n in result.shape]
            if any(n > ROWS and n % ROWS == 0 for n in actual):
                self.refuse(because(forwards.NEEDS_NUMBERS, name="where"))
            found.append(tuple(name if n in (ROWS, 0) else k for n, k in zip(actual, named_sizes, strict=True)))
        return found

    # Tests for rows.

    def _any_rows(self, x: Tensor) -> Any:
        """True for `mask.any()` or `mask.sum() > 0`: an expert without rows adds nothing. Otherwise NOT_HANDLED."""
        mask = self._tested_mask(x)
        if mask is None:
            return NOT_HANDLED
        self.loops.tested.add(flat_base(mask))
        return not self.is_empty_expert(self._number_of(flat_base(mask)))

    def _tested_mask(self, x: Any) -> fx.Node | None:
        record = self.held.get(id(x)) if isinstance(x, Tensor) else None
        if record is None or x.dim():
            return None
        node = record.node if record.node is not None else self.node_of(x)
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        operand = node.args[0] if node.args else None
        if name in _REDUCTIONS and isinstance(operand, fx.Node) and len(node.args) == 1 and not node.kwargs:
            return (
                operand
                if _compares_index(flat_base(operand)) or flat_base(operand) in self.loops.conditions.values()
                else None
            )
        return None

    def remove_row_guards(self) -> None:
        """Remove the guards on numbers of rows.

        Raises:
            Untraceable: forward tests more than whether there are rows.
        """
        for test in [t for t in self.guards.tests if _ROWS_NAME.search(t)]:
            found = _HAS_ROWS.fullmatch(test)
            if found is None:
                self.refuse(because(forwards.NEEDS_NUMBERS, name="size"))
            del self.guards.tests[test]
            self.loops.tested.add(self.loops.conditions[found[1] or found[2]])


def _is_beginning(index: Any) -> bool:
    """Whether an index is `[:n]`."""
    return isinstance(index, slice) and index.start in (None, 0) and index.step is None and index.stop is not None


def _compares_index(node: fx.Node) -> bool:
    """Whether a mask compares an index with one number: `indices == 2`, `(indices == 2).any(dim=-1)`."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    if name == "any" and isinstance(node.args[0], fx.Node):
        return _compares_index(node.args[0])
    return name == "eq" and len(node.args) == 2 and type(node.args[1]) is int


def _is_same_comparison(one: fx.Node, other: fx.Node) -> bool:
    """Whether both nodes are the same comparison: `index == 2`, written twice."""
    name = getattr(one.target, "__name__", one.target)
    return name == "eq" and one.target == other.target and (one.args, one.kwargs) == (other.args, other.kwargs)


def _counts_classes(mask: fx.Node) -> bool:
    """Whether a mask comes from `one_hot` with `num_classes`, a guarded number, so that it has as many experts."""
    while mask.op == "call_method" and mask.target in ("permute", "bool", "to") and isinstance(mask.args[0], fx.Node):
        mask = mask.args[0]
    return getattr(mask.target, "__name__", "") == "one_hot" and "num_classes" in mask.kwargs


def is_rows(size: Any) -> bool:
    """Whether a size is the name of a number of rows."""
    return isinstance(size, str) and _ROWS_NAME.fullmatch(size) is not None


def _mask_of_hits(node: fx.Node) -> fx.Node | None:
    """The mask for which `node` tests, for each first index, whether any entry is set."""
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
    tested_dims = (
        {int(d) % rank for d in (dims if isinstance(dims, (tuple, list)) else [dims])} if dims is not None else set()
    )
    return mask if tested_dims == set(range(1, rank)) else None


__all__ = ["NOT_HANDLED", "ROWS", "ExpertRows", "Loops", "is_rows"]
