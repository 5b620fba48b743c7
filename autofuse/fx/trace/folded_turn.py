"""The first turn of a loop over experts, written anew for the rows of all of them.

Knows that the turns are equal (expert_turns.py). Each step has to compute its rows one by one (row_operations.py) and
to read an expert's own matrices in a way that is known; what does not is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse.fx.trace.expert_rows import ROWS, Loops
from autofuse.fx.trace.expert_turns import NotALoop, Turn, dependents, name_of, numbered
from autofuse.fx.trace.operation_names import replace_node
from autofuse.fx.trace.row_operations import is_row_wise
from autofuse.ops.experts import add_expert_rows, chosen_experts, each_expert, expert_linear, expert_rows
from autofuse.torch_private import FakeTensorMode


@dataclass(frozen=True)
class _OfExpert:
    """What stands for `stack[e]` in a turn."""

    stack: fx.Node
    rank: int
    turned: bool = False


class FoldedTurn:
    """Writes the first turn anew, for the rows of all experts."""

    def __init__(
        self, graph: fx.Graph, loops: Loops, root: nn.Module, mode: FakeTensorMode, turns: list[Turn],
        turn: set[fx.Node], varying: dict[fx.Node, set[str]],
    ) -> None:  # fmt: skip
        self.graph, self.loops, self.root, self.mode = graph, loops, root, mode
        self.turns, self.turn, self.varying = turns, turn, varying
        self.first, self.experts = turns[0], len(turns)
        self.owned: dict[fx.Node, _OfExpert] = {}
        self.with_rows = {self.first.where, *dependents(self.first.where)}

    def write(self) -> None:
        self.condition = self.first.where.args[0]
        chain, start = self.chain(self.condition)
        self.check_asked()
        self.disjoint = name_of(start) == "eq" and not chain
        with self.graph.inserting_before(self.first.where):
            stacked = self.stacked(chain, start)
            rows = self.made(expert_rows, (stacked,), self.first.where.meta["v"])
            rank = len(self.first.where.meta["v"])
            example: Tensor = self.first.where.meta["v"][0]
            self.expert = self.item(rows, 0, example)
            self.with_rows.add(self.expert)
            self.places = places = [self.item(rows, 1 + d, example) for d in range(rank)]
            with self.mode:
                ends = torch.empty(self.experts, dtype=torch.int64)
            self.ends = self.item(rows, 1 + rank, ends)
        for user in list(self.first.where.users):
            if user.target is not operator.getitem:
                raise NotALoop(user)
            user.replace_all_uses_with(places[int(user.args[1])])  # type: ignore[arg-type]
            self.with_rows |= {places[int(user.args[1])]}  # type: ignore[arg-type]
        gone = {self.first.where, *self.first.where.users, *chain, start}
        for node in [n for n in self.graph.nodes if n in self.turn and n not in gone]:
            self.one(node)
        self.add()

    def check_asked(self) -> None:
        """Forward asks for nothing but whether an expert has rows, of all experts or of none."""
        if self.loops.asked and self.loops.asked != set(self.loops.conditions.values()):
            raise NotALoop(self.first.where)

    @property
    def calls_empty(self) -> bool:
        """Whether an expert without rows is called, with none."""
        return not (self.loops.asked or self.loops.hits)

    # Which rows.

    def chain(self, node: Any) -> tuple[list[fx.Node], fx.Node]:
        """The steps from what depends on the number of the expert to the condition, and that."""
        steps: list[fx.Node] = []
        while isinstance(node, fx.Node) and node in self.turn:
            if node in self.varying:
                return steps[::-1], node
            steps.append(node)
            node = node.args[0] if node.args else None
        raise NotALoop(self.first.where)

    def stacked(self, chain: list[fx.Node], start: fx.Node) -> fx.Node:
        """The conditions of all experts, one upon the other."""
        name, of = name_of(start), start.args[0]
        if not isinstance(of, fx.Node) or of in self.turn or len(start.args) != 2 or start.kwargs:
            raise NotALoop(start)
        if name == "getitem" and (start.args[1] == 0 or start.args[1] == slice(0, 1)):
            if self.loops.hits and of not in self.loops.hits:
                raise NotALoop(start)
            held = self.computed("call_function", operator.getitem, (self.stack(of, start), slice(0, self.experts)))
            mask_only = start.args[1] != 0
        elif name == "eq" and start.args[1] == 0 and not self.loops.hits:
            with self.mode:
                example = of.meta["v"].new_empty((self.experts, *of.meta["v"].shape), dtype=torch.bool)
            held, mask_only = self.made(chosen_experts, (of, self.experts), example), False
        else:
            raise NotALoop(start)
        for step in chain:
            if mask_only and name_of(step) == "squeeze" and step.args[1:] == (0,):
                mask_only = False
            elif name_of(step) == "any" and not mask_only and (dim := _dim(step)) is not None and dim < 0:
                held = self.computed("call_method", "any", (held, dim))
            elif name_of(step) in ("bool", "long", "int") and len(step.args) == 1:
                held = self.computed("call_method", name_of(step), (held,))
            else:
                raise NotALoop(step)
        if mask_only:
            raise NotALoop(start)
        return held

    def stack(self, of: fx.Node, owner: fx.Node) -> fx.Node:
        """The first experts' part of a tensor of which each expert has one entry."""
        example = of.meta.get("v")
        if not isinstance(example, Tensor) or example.shape[0] < self.experts:
            raise NotALoop(owner)
        return of

    # What is computed of them.

    def one(self, node: fx.Node) -> None:
        if node is self.first.end or node in self.with_rows and self.is_read_of_result(node):
            return
        if self.is_owned(node):
            return
        if node not in self.with_rows:
            if node in self.varying or node.op not in ("call_function", "call_method", "get_attr"):
                raise NotALoop(node)
            return  # the same in each turn
        with self.graph.inserting_before(node):
            self.rows(node)

    def is_owned(self, node: fx.Node) -> bool:
        """Whether a node is one expert's entry of a tensor, or that transposed."""
        of = node.args[0] if node.args else None
        if name_of(node) == "getitem" and isinstance(of, fx.Node) and of not in self.turn and node.args[1:] == (0,):
            if node in self.with_rows or self.varying.get(node) != {"[1]"}:
                return False
            self.owned[node] = _OfExpert(self.stack(of, node), node.meta["v"].dim())
            return True
        if isinstance(of, fx.Node) and of in self.owned and self.owned[of].rank == 2:
            turns = name_of(node) in ("t", "mT", "T") or node.target is getattr and node.args[1] in ("T", "mT")
            turns = (
                turns
                or name_of(node) == "transpose"
                and {int(d) % 2 for d in node.args[1:] if isinstance(d, int)} == {0, 1}
            )
            if turns:
                self.owned[node] = _OfExpert(self.owned[of].stack, 2, not self.owned[of].turned)
                return True
        return False

    def is_read_of_result(self, node: fx.Node) -> bool:
        """Whether a node is the `out[rows]` of `out[rows] += ...`, or that sum."""
        return node in (self.sum_and_read() or ())

    def sum_and_read(self) -> tuple[fx.Node, fx.Node, fx.Node] | None:
        """Of `out[rows] = out[rows] + y`: the sum, `out[rows]`, and y."""
        end = self.first.end
        if end.target is not operator.setitem or not isinstance(end.args[2], fx.Node):
            return None
        made = end.args[2]
        if name_of(made) not in ("add", "add_") or len(made.args) != 2 or made.kwargs or len(made.users) != 1:
            return None
        for read, given in (made.args, made.args[::-1]):
            if (
                isinstance(read, fx.Node) and isinstance(given, fx.Node) and name_of(read) == "getitem"
                and read.args[0] is end.args[0] and read.args[1] == end.args[1] and len(read.users) == 1
                and read.meta["v"].shape == given.meta["v"].shape
            ):  # fmt: skip
                return made, read, given
        return None

    def rows(self, node: fx.Node) -> None:
        """A step on the rows of one expert, made one on the rows of all."""
        name, given = name_of(node), list(node.args)
        if node in self.varying and node.op == "call_module":
            self.each(node)
            return
        owned = [a for a in given if isinstance(a, fx.Node) and a in self.owned]
        if name == "linear" and owned and given[0] not in self.owned:
            self.linear(node, given[0], given[1], node.kwargs.get("bias", given[2] if len(given) > 2 else None))
        elif name in ("matmul", "mm") and owned == given[1:2]:
            self.product(node, given[0], given[1])
        elif name in ("add", "mul") and len(owned) == 1 and self.owned[owned[0]].rank == 1:
            stack = self.owned[owned[0]].stack
            entry = self.computed("call_function", operator.getitem, (stack, self.expert), rows=True)
            node.args = tuple(entry if a is owned[0] else a for a in given)
            self.check_by_row(node)
        elif name == "getitem" and node in self.varying and isinstance(given[1], tuple):
            places = [i for i, p in enumerate(given[1]) if type(p) is int]
            if owned or self.varying[node] != {f"[1][{i}]" for i in places} or len(places) != 1:
                raise NotALoop(node)
            node.args = (given[0], tuple(self.expert if i == places[0] else p for i, p in enumerate(given[1])))
            self.check_by_row(node)
        elif owned or node in self.varying:
            raise NotALoop(node)
        else:
            self.check_by_row(node)

    def check_by_row(self, node: fx.Node) -> None:
        if not is_row_wise(node, self.with_rows, self.root) or node.meta.get("writes"):
            raise NotALoop(node)

    def linear(self, node: fx.Node, x: Any, weight: Any, bias: Any) -> None:
        if weight not in self.owned or self.owned[weight].rank != 2 or x.meta["v"].dim() != 2:
            raise NotALoop(node)
        if bias is not None and (bias not in self.owned or self.owned[bias].rank != 1):
            raise NotALoop(node)
        of = self.owned[weight]
        shift = None if bias is None else self.owned[bias].stack
        self.become(node, expert_linear, (x, of.stack, shift, self.ends, of.turned))

    def product(self, node: fx.Node, x: Any, weight: Any) -> None:
        of = self.owned[weight]
        if of.rank != 2 or x.meta["v"].dim() != 2:
            raise NotALoop(node)
        self.become(node, expert_linear, (x, of.stack, None, self.ends, not of.turned))

    def each(self, node: fx.Node) -> None:
        """The call of one expert's module."""
        result = node.meta.get("v")
        if len(node.args) != 1 or node.kwargs or not isinstance(result, Tensor) or self.varying[node] != {"target"}:
            raise NotALoop(node)
        given: Any = node.args[0]
        if given.meta["v"].dim() < 1 or result.dim() < 1 or result.shape[0] != given.meta["v"].shape[0]:
            raise NotALoop(node)
        held = []
        for e in range(self.experts):
            target = str(node.target) if e == 0 else numbered(str(node.target), e)
            reads = self.graph.get_attr(target)
            reads.meta["v"] = self.root.get_submodule(target)
            held.append(reads)
        self.become(node, each_expert, (tuple(held), given, self.ends, self.calls_empty))

    # Where they go.

    def add(self) -> None:
        """Add all rows to the result, in place of the first turn's."""
        end = self.first.end
        places: tuple[Any, ...]
        given: Any
        if name_of(end) == "index_add_":
            if end.args[1] != 0 or len(end.args) != 4 or end.kwargs:
                raise NotALoop(end)
            places, given = (end.args[2],), end.args[3]
            gone: tuple[fx.Node, ...] = (end,)
        elif (found := self.sum_and_read()) is not None:
            if not self.adds_each_once():
                raise NotALoop(end)
            made, read, given = found
            places = end.args[1] if isinstance(end.args[1], tuple) else (end.args[1],)
            gone = (end, made, read)
        elif self.puts_each_once():
            return
        else:
            raise NotALoop(end)
        if not all(p in self.with_rows for p in (*places, given)) or given.meta["v"].shape[:1] != (ROWS,):
            raise NotALoop(end)
        dtype = end.args[0].meta["v"].dtype  # type: ignore[union-attr]
        with self.graph.inserting_before(end):
            if given.meta["v"].dtype != dtype:
                given = self.computed("call_method", "to", (given, dtype))
            put = self.graph.call_function(add_expert_rows, (end.args[0], places, given, self.ends))
        put.meta = dict(end.meta)
        put.meta["v"] = end.args[0].meta["v"]  # type: ignore[union-attr]
        replace_node(end, put)
        for node in gone:
            self.graph.erase_node(node)
            self.turn.discard(node)
        self.first.end = put

    def puts_each_once(self) -> bool:
        """Whether `out[rows] = y` fills entries that belong to one expert each: those whose index is its number."""
        end = self.first.end
        index, given = end.args[1:]
        parts = index if isinstance(index, tuple) else (index,)
        fits = isinstance(given, fx.Node) and given in self.with_rows and given.meta["v"].shape[:1] == (ROWS,)
        return fits and self.disjoint and list(parts) == self.places

    def adds_each_once(self) -> bool:
        """Whether no expert has an entry of the result twice, for `out[rows] += y` adds such but once."""
        index = self.first.end.args[1]
        parts = index if isinstance(index, tuple) else (index,)
        rank = len(self.places)
        return set(parts) == set(self.places) or len(parts) == rank == 1 or _from_topk(self.condition)

    # Nodes.
    def made(self, function: Callable[..., Any], args: tuple[Any, ...], value: Any) -> fx.Node:
        node = self.graph.call_function(function, args)
        node.meta["v"], node.meta["place"] = value, self.first.where.meta.get("place")
        return node

    def item(self, rows: fx.Node, place: int, example: Tensor) -> fx.Node:
        return self.made(operator.getitem, (rows, place), example)

    def become(self, node: fx.Node, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        new = self.graph.call_function(function, args)
        new.meta = dict(node.meta)
        replace_node(node, new)
        self.with_rows.add(new)
        self.graph.erase_node(node)
        self.turn.discard(node)

    def computed(self, op: str, target: Any, args: tuple[Any, ...], rows: bool = False) -> fx.Node:
        node = self.graph.create_node(op, target, args)
        given: Any = fx.node.map_arg(args, lambda n: n.meta["v"])
        with self.mode, torch.enable_grad():
            value = getattr(given[0], target)(*given[1:]) if op == "call_method" else target(*given)
        node.meta["v"], node.meta["place"] = value, self.first.where.meta.get("place")
        if rows:
            self.with_rows.add(node)
        return node


def _from_topk(node: Any) -> bool:
    """Whether a condition compares indices that torch.topk gave, which are distinct in each row."""
    for _ in range(12):
        if not isinstance(node, fx.Node) or not node.args:
            return False
        if name_of(node) == "getitem" and isinstance(node.args[0], fx.Node) and name_of(node.args[0]) == "topk":
            return bool(node.args[1] == 1)
        if name_of(node) not in ("eq", "getitem", "one_hot", "permute", "to", "long", "int", "bool"):
            return False
        node = node.args[0]
    return False


def _dim(node: fx.Node) -> int | None:
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    return dim if type(dim) is int else None
