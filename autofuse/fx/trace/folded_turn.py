"""Rewrites the first turn of a loop over experts for the rows of all experts.

The turns are known to be equal (expert_turns.py). Each step must compute its rows independently (row_operations.py) and
read an expert's matrices in a known way. Any other step is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse.fx.trace.expert_rows import ROWS, Loops
from autofuse.fx.trace.expert_segments import is_joined, is_segment
from autofuse.fx.trace.expert_spellings import example_of_call, index_under
from autofuse.fx.trace.expert_turns import NotALoop, Turn, dependents, target_name, with_number
from autofuse.fx.trace.operation_names import replace_node
from autofuse.fx.trace.row_counts import counted_index
from autofuse.fx.trace.row_operations import is_row_wise
from autofuse.ops.experts import (
    add_expert_rows,
    all_rows,
    chosen_experts,
    counted_ends,
    each_expert,
    expert_linear,
    expert_rows,
    experts_of_rows,
    first_rows,
    rows_in_order,
)
from autofuse.torch_private import FakeTensorMode


@dataclass(frozen=True)
class _ExpertEntry:
    """The stand-in for `stack[e]` in a turn.

    Attributes:
        stack: the tensor with one entry for each expert.
        rank: the number of dimensions of an entry.
        transposed: whether the entry is transposed.
    """

    stack: fx.Node
    rank: int
    transposed: bool = False


class FoldedTurn:
    """Rewrites the first turn for the rows of all experts."""

    def __init__(
        self, graph: fx.Graph, loops: Loops, root: nn.Module, mode: FakeTensorMode, turns: list[Turn],
        turn: set[fx.Node], varying: dict[fx.Node, set[str]],
    ) -> None:  # fmt: skip
        self.graph, self.loops, self.root, self.mode = graph, loops, root, mode
        self.turns, self.turn, self.varying = turns, turn, varying
        self.first, self.experts = turns[0], len(turns)
        self.owned: dict[fx.Node, _ExpertEntry] = {}
        self.read_late: set[fx.Node] = set()  # steps without rows that differ between experts
        self.with_rows = {self.first.where, *dependents(self.first.where)}

    def write(self) -> None:
        """Rewrite the turn in the graph. Raises NotALoop if a step cannot be rewritten."""
        self.condition = self.first.where.args[0]
        self.check_row_tests()
        removed = self.take_segments() if is_segment(self.first.where) else self.take_chosen()
        for node in [n for n in self.graph.nodes if n in self.turn and n not in removed]:
            self.rewrite_step(node)
        self.add()

    def take_segments(self) -> set[fx.Node]:
        """Take all rows of tensors that are sorted by expert. Returns the nodes that chose one expert's rows."""
        where = self.first.where
        counts: Any = where.args[0]
        index = counted_index(counts)
        if index is None or counts.meta["v"].shape[0] != self.experts or self.varying.get(where) != {"[1]"}:
            raise NotALoop(where)
        self.check_counts(index)
        self.disjoint, example = True, where.meta["v"][0]
        with self.graph.inserting_before(where), self.mode:
            self.ends = self.new_node(counted_ends, (counts,), torch.empty(self.experts, dtype=torch.int64))
            self.expert = self.new_node(experts_of_rows, (counts,), example)
            place = self.new_node(rows_in_order, (self.expert,), example)
        self.entries, self.places = None, [place]
        self.with_rows |= {self.expert, place}
        for user in list(where.users):
            for read in [n for n in user.users if n in self.turn and n.args[1:] == (user,)]:
                if target_name(read) != "getitem" or read in self.varying:
                    continue
                with self.graph.inserting_before(read):
                    self.replace(read, all_rows, (read.args[0],))
            user.replace_all_uses_with(place)
        return {where, *where.users}

    def take_chosen(self) -> set[fx.Node]:
        """Sort the rows that conditions choose. Returns the nodes that chose one expert's rows."""
        chain, start = self.chain(self.condition)
        self.disjoint = self.puts_disjoint(start, chain)
        capacity = self.capacity()
        with self.graph.inserting_before(self.first.where):
            conditions = self.stacked_conditions(chain, start)
            given = (conditions,) if capacity is None else (conditions, capacity)
            rows = self.new_node(expert_rows, given, self.first.where.meta["v"])
            rank = len(self.first.where.meta["v"])
            example: Tensor = self.first.where.meta["v"][0]
            self.expert = self.item(rows, 0, example)
            self.with_rows.add(self.expert)
            self.entries = conditions.meta["v"].shape[1:]
            self.places = places = [self.item(rows, 1 + d, example) for d in range(rank)]
            with self.mode:
                ends = torch.empty(self.experts, dtype=torch.int64)
            self.ends = self.item(rows, 1 + rank, ends)
        for user in list(self.first.where.users):
            if user.target is not operator.getitem:
                raise NotALoop(user)
            place = places[int(user.args[1])]  # type: ignore[arg-type]
            for beginning in [n for n in user.users if n.target is first_rows]:
                beginning.replace_all_uses_with(place)
                self.graph.erase_node(beginning)
                self.turn.discard(beginning)
            user.replace_all_uses_with(place)
            self.with_rows |= {place}
        return {self.first.where, *self.first.where.users, *chain, start}

    def check_row_tests(self) -> None:
        """Check that forward tests whether an expert has rows for all experts or for none."""
        if self.loops.tested and self.loops.tested != set(self.loops.conditions.values()):
            raise NotALoop(self.first.where)
        if any(tested != set(range(self.experts)) for tested in self.loops.counted.values()):
            raise NotALoop(self.first.where)

    @property
    def calls_empty(self) -> bool:
        """Whether forward also calls an expert that has no rows."""
        return not (self.loops.tested or self.loops.hits or self.loops.counted)

    def capacity(self) -> Any:
        """n, if each turn takes only the first n of its rows: `rows[:n]`. None if it takes all."""
        reads = [user for read in self.first.where.users for user in read.users]
        beginnings = [n for n in reads if n.target is first_rows]
        if not beginnings:
            return None
        capacity = beginnings[0].args[1]
        is_one = all(n.args[1] is capacity and n not in self.varying for n in beginnings)
        if len(beginnings) < len(reads) or not is_one:
            raise NotALoop(beginnings[0])
        if isinstance(capacity, fx.Node) and capacity in self.turn:
            raise NotALoop(beginnings[0])
        return capacity

    # The rows of all experts.

    def chain(self, node: Any) -> tuple[list[fx.Node], fx.Node]:
        """The steps from the node that depends on the number of the expert to the condition, and that node."""
        steps: list[fx.Node] = []
        while isinstance(node, fx.Node) and node in self.turn:
            if node in self.varying:
                return steps[::-1], node
            steps.append(node)
            node = node.args[0] if node.args else None
        raise NotALoop(self.first.where)

    def stacked_conditions(self, chain: list[fx.Node], start: fx.Node) -> fx.Node:
        """The conditions of all experts, stacked in the first dimension."""
        name, of = target_name(start), start.args[0]
        if not isinstance(of, fx.Node) or not self.is_same_in_each_turn(of) or len(start.args) != 2 or start.kwargs:
            raise NotALoop(start)
        self.check_counts(index_under(of))
        if target_name(of) == "unbind" and of.args[1:] in ((), (0,)) and not of.kwargs and start.args[1] == 0:
            of = of.all_input_nodes[0]
        if name == "getitem" and (start.args[1] == 0 or start.args[1] == slice(0, 1)):
            if self.loops.hits and of not in self.loops.hits:
                raise NotALoop(start)
            stacked = self.computed_node(
                "call_function", operator.getitem, (self.stack(of, start), slice(0, self.experts))
            )
            mask_only = start.args[1] != 0
        elif name == "getitem" and _is_last_index(start, of) and not self.loops.hits:
            last_first = self.computed_node("call_method", "movedim", (of, -1, 0))
            stacked = self.computed_node(
                "call_function", operator.getitem, (self.stack(last_first, start), slice(0, self.experts))
            )
            mask_only = False
        elif name == "eq" and start.args[1] == 0 and self.loops.hits <= {of}:
            with self.mode:
                example = of.meta["v"].new_empty((self.experts, *of.meta["v"].shape), dtype=torch.bool)
            stacked, mask_only = self.new_node(chosen_experts, (of, self.experts), example), False
        else:
            raise NotALoop(start)
        for step in chain:
            if mask_only and target_name(step) == "squeeze" and step.args[1:] == (0,):
                mask_only = False
            elif target_name(step) == "any" and not mask_only and (dim := _dim(step)) is not None and dim < 0:
                stacked = self.computed_node("call_method", "any", (stacked, dim))
            elif target_name(step) in ("bool", "long", "int") and len(step.args) == 1:
                stacked = self.computed_node("call_method", target_name(step), (stacked,))
            else:
                raise NotALoop(step)
        if mask_only:
            raise NotALoop(start)
        return stacked

    def check_counts(self, index: fx.Node) -> None:
        """Check that the counts that forward tested are those of the loop's own index."""
        if any(counted is not index for counted in self.loops.counted):
            raise NotALoop(self.first.where)

    def puts_disjoint(self, start: fx.Node, chain: list[fx.Node]) -> bool:
        """Whether no two experts take the same entry: each entry has one number, or one number in `one_hot`."""
        of = start.args[0]
        if target_name(start) == "eq":
            return not chain
        return isinstance(of, fx.Node) and _is_last_index(start, of) and _has_one_choice(of)

    def is_same_in_each_turn(self, node: fx.Node) -> bool:
        """Whether a node does not depend on the number of the expert, nor on its rows."""
        todo, seen = [node], {node}
        while todo:
            node = todo.pop()
            if node in self.turn:
                if node in self.varying or node in self.with_rows or node.meta.get("writes"):
                    return False
                todo += [n for n in node.all_input_nodes if n not in seen]
                seen.update(node.all_input_nodes)
        return True

    def stack(self, of: fx.Node, owner: fx.Node) -> fx.Node:
        """The tensor `of`, which has one entry for each expert.

        Raises:
            NotALoop: it has fewer entries than there are experts.
        """
        example = of.meta.get("v")
        if not isinstance(example, Tensor) or example.shape[0] < self.experts:
            raise NotALoop(owner)
        return of

    # The steps of the turn.

    def rewrite_step(self, node: fx.Node) -> None:
        """Rewrite one step of the turn, if it depends on the expert."""
        if node is self.first.end or node in self.with_rows and self.is_read_of_result(node):
            return
        if self.is_owned(node):
            return
        if node not in self.with_rows:
            if self.varies(node):
                if not self.only_rows_are_read(node):
                    raise NotALoop(node)
                self.read_late.add(node)
                return
            if node.op not in ("call_function", "call_method", "get_attr"):
                raise NotALoop(node)
            return  # the same in each turn
        with self.graph.inserting_before(node):
            self.rows(node)

    # Values of all entries that differ between experts. Only the rows are read: `(weights * (chosen == e))[rows]`.

    def varies(self, node: fx.Node) -> bool:
        """Whether a step without rows depends on the number of the expert."""
        return node in self.varying or any(n in self.read_late for n in node.all_input_nodes)

    def only_rows_are_read(self, node: fx.Node) -> bool:
        """Whether each use of a step without rows leads to an index that selects the rows."""
        return bool(node.users) and all(
            self.selects_rows(user, node) or user in self.turn and user not in self.with_rows for user in node.users
        )

    def selects_rows(self, node: fx.Node, source: fx.Node) -> bool:
        """Whether a step is `source[rows]`, with an index for each dimension of the condition."""
        if target_name(node) != "getitem" or node.args[0] is not source or node.kwargs:
            return False
        index = node.args[1]
        return list(index if isinstance(index, tuple) else (index,)) == self.places

    def rows_of_entry(self, node: fx.Node) -> fx.Node:
        """The rows of a value of all entries, computed from the rows of what it is computed from. Raises NotALoop."""
        value, rank = node.meta.get("v"), len(self.places)
        if not isinstance(value, Tensor) or value.shape[:rank] != self.entries:
            raise NotALoop(node)
        if node not in self.turn or not self.varies(node):
            index = tuple(self.places) if rank > 1 else self.places[0]
            return self.computed_node("call_function", operator.getitem, (node, index), rows=True)
        name, of = target_name(node), node.args[0] if node.args else None
        if name == "eq" and self.varying.get(node) == {"[1]"} and isinstance(of, fx.Node) and not node.kwargs:
            rows = self.rows_of_entry(of)
            shape = (-1, *[1] * (rows.meta["v"].dim() - 1))
            expert = self.computed_node("call_method", "view", (self.expert, *shape), rows=True)
            return self.computed_node("call_function", torch.eq, (rows, expert), rows=True)
        if name == "getitem" and rank == 1 and node.args[1:] == ((slice(None), 0),) and isinstance(of, fx.Node):
            if self.varying.get(node) != {"[1][1]"} or of in self.turn and self.varies(of):
                raise NotALoop(node)
            return self.computed_node("call_function", operator.getitem, (of, (self.places[0], self.expert)), rows=True)
        if node in self.varying or node.op not in ("call_function", "call_method") or node.meta.get("writes"):
            raise NotALoop(node)
        replaced = {n: self.rows_of_entry(n) for n in node.all_input_nodes if n.meta["v"].dim()}
        made = self.graph.node_copy(node, lambda n: replaced.get(n, n))
        made.meta["v"] = self.value_of(made)
        self.with_rows.add(made)
        if value.dim() != made.meta["v"].dim() + rank - 1 or not is_row_wise(made, self.with_rows, self.root):
            raise NotALoop(node)
        return made

    def is_owned(self, node: fx.Node) -> bool:
        """Whether a node is one expert's entry of a tensor, or the transposed entry."""
        of = node.args[0] if node.args else None
        if target_name(node) == "getitem" and isinstance(of, fx.Node) and of not in self.turn and node.args[1:] == (0,):
            if node in self.with_rows or self.varying.get(node) != {"[1]"}:
                return False
            self.owned[node] = _ExpertEntry(self.stack(of, node), node.meta["v"].dim())
            return True
        if isinstance(of, fx.Node) and of in self.owned and self.owned[of].rank == 2:
            transposes = target_name(node) in ("t", "mT", "T") or node.target is getattr and node.args[1] in ("T", "mT")
            transposes = (
                transposes
                or target_name(node) == "transpose"
                and {int(d) % 2 for d in node.args[1:] if isinstance(d, int)} == {0, 1}
            )
            if transposes:
                self.owned[node] = _ExpertEntry(self.owned[of].stack, 2, not self.owned[of].transposed)
                return True
        return False

    def is_read_of_result(self, node: fx.Node) -> bool:
        """Whether a node is the `out[rows]` in `out[rows] += ...`, or the sum."""
        return node in (self.sum_and_read() or ())

    def sum_and_read(self) -> tuple[fx.Node, fx.Node, fx.Node] | None:
        """The sum, `out[rows]` and y in `out[rows] = out[rows] + y`; None if the turn ends in another way."""
        end = self.first.end
        if end.target is not operator.setitem or not isinstance(end.args[2], fx.Node):
            return None
        total = end.args[2]
        if target_name(total) not in ("add", "add_") or len(total.args) != 2 or total.kwargs or len(total.users) != 1:
            return None
        for read, addend in (total.args, total.args[::-1]):
            if (
                isinstance(read, fx.Node) and isinstance(addend, fx.Node) and target_name(read) == "getitem"
                and read.args[0] is end.args[0] and read.args[1] == end.args[1] and len(read.users) == 1
                and read.meta["v"].shape == addend.meta["v"].shape
            ):  # fmt: skip
                return total, read, addend
        return None

    def rows(self, node: fx.Node) -> None:
        """Rewrite a step on the rows of one expert as a step on the rows of all."""
        name, operands = target_name(node), list(node.args)
        source = operands[0] if operands else None
        if isinstance(source, fx.Node) and source in self.read_late and self.selects_rows(node, source):
            made = self.rows_of_entry(source)
            replace_node(node, made)
            self.graph.erase_node(node)
            self.turn.discard(node)
            return
        if node in self.varying and node.op == "call_module":
            self.each(node)
            return
        owned = [a for a in operands if isinstance(a, fx.Node) and a in self.owned]
        if name == "linear" and owned and operands[0] not in self.owned:
            self.linear(
                node, operands[0], operands[1], node.kwargs.get("bias", operands[2] if len(operands) > 2 else None)
            )
        elif name in ("matmul", "mm") and owned == operands[1:2]:
            self.product(node, operands[0], operands[1])
        elif name in ("add", "mul") and len(owned) == 1 and self.owned[owned[0]].rank == 1:
            stack = self.owned[owned[0]].stack
            entry = self.computed_node("call_function", operator.getitem, (stack, self.expert), rows=True)
            node.args = tuple(entry if a is owned[0] else a for a in operands)
            self.check_by_row(node)
        elif name == "getitem" and node in self.varying and isinstance(operands[1], tuple):
            places = [i for i, p in enumerate(operands[1]) if type(p) is int]
            if owned or self.varying[node] != {f"[1][{i}]" for i in places} or len(places) != 1:
                raise NotALoop(node)
            node.args = (operands[0], tuple(self.expert if i == places[0] else p for i, p in enumerate(operands[1])))
            self.check_by_row(node)
        elif owned or node in self.varying:
            raise NotALoop(node)
        else:
            self.check_by_row(node)

    def check_by_row(self, node: fx.Node) -> None:
        """Check that a step computes its rows independently. Raises NotALoop."""
        if not is_row_wise(node, self.with_rows, self.root):
            raise NotALoop(node)
        if not all(n in self.with_rows and self.is_fresh(n) for n in node.meta.get("writes") or ()):
            raise NotALoop(node)

    def linear(self, node: fx.Node, x: Any, weight: Any, bias: Any) -> None:
        """Rewrite `F.linear(x, weight[e], bias[e])`."""
        if weight not in self.owned or self.owned[weight].rank != 2 or x.meta["v"].dim() != 2:
            raise NotALoop(node)
        if bias is not None and (bias not in self.owned or self.owned[bias].rank != 1):
            raise NotALoop(node)
        of = self.owned[weight]
        shift = None if bias is None else self.owned[bias].stack
        self.replace(node, expert_linear, (x, of.stack, shift, self.ends, of.transposed))

    def product(self, node: fx.Node, x: Any, weight: Any) -> None:
        """Rewrite `x @ weight[e]`."""
        of = self.owned[weight]
        if of.rank != 2 or x.meta["v"].dim() != 2:
            raise NotALoop(node)
        self.replace(node, expert_linear, (x, of.stack, None, self.ends, not of.transposed))

    def each(self, node: fx.Node) -> None:
        """Rewrite the call of one expert's module."""
        result, (place, *others) = node.meta.get("v"), sorted(self.varying[node])
        if len(node.args) != 1 or node.kwargs or not isinstance(result, Tensor) or others:
            raise NotALoop(node)
        if not place.startswith("target "):
            raise NotALoop(node)
        x: Any = node.args[0]
        if x.meta["v"].dim() < 1 or result.dim() < 1 or result.shape[0] != x.meta["v"].shape[0]:
            raise NotALoop(node)
        modules: list[Any] = []
        for e in range(self.experts):
            target = with_number(str(node.target), e, int(place.removeprefix("target ")))
            reads = self.graph.get_attr(target)
            reads.meta["v"] = self.root.get_submodule(target)
            modules.append(reads)
        if x.target is each_expert and len(x.users) == 1:  # the layers of a Sequential: one after the other
            before, x = x, x.args[1]
            modules = [
                (*b, m) if isinstance(b, tuple) else (b, m) for b, m in zip(before.args[0], modules, strict=True)
            ]
            self.replace(node, each_expert, (tuple(modules), x, self.ends, self.calls_empty))
            self.graph.erase_node(before)
            self.turn.discard(before)
            return
        self.replace(node, each_expert, (tuple(modules), x, self.ends, self.calls_empty))

    # The result.

    def add(self) -> None:
        """Add the rows of all experts to the result, at the end of the first turn."""
        end = self.first.end
        places: tuple[Any, ...]
        addend: Any
        out: Any = end.args[0]
        if target_name(end) in ("index_add_", "index_add"):
            if end.args[1] != 0 or len(end.args) != 4 or end.kwargs:
                raise NotALoop(end)
            places, addend = (end.args[2],), end.args[3]
            removed: tuple[fx.Node, ...] = (end,)
        elif (sum_parts := self.sum_and_read()) is not None:
            if not self.adds_each_once():
                raise NotALoop(end)
            total, read, addend = sum_parts
            places = end.args[1] if isinstance(end.args[1], tuple) else (end.args[1],)
            removed = (end, total, read)
        elif self.puts_each_once():
            if isinstance(out, fx.Node) and is_joined(out):
                self.join(out, end.args[2])
            return
        else:
            raise NotALoop(end)
        if not all(p in self.with_rows for p in (*places, addend)) or addend.meta["v"].shape[:1] != (ROWS,):
            raise NotALoop(end)
        dtype = out.meta["v"].dtype
        with self.graph.inserting_before(end):
            if addend.meta["v"].dtype != dtype:
                addend = self.computed_node("call_method", "to", (addend, dtype))
            if target_name(end) == "index_add":  # forward does not write to `out`
                out = self.computed_node("call_method", "clone", (out,))
            addition = self.graph.call_function(add_expert_rows, (out, places, addend, self.ends))
        addition.meta = dict(end.meta)
        if target_name(end) == "index_add":
            addition.meta["writes"] = [out]
        addition.meta["v"] = out.meta["v"]
        replace_node(end, addition)
        for node in removed:
            self.graph.erase_node(node)
            self.turn.discard(node)
        self.first.end = addition

    def join(self, out: fx.Node, rows: Any) -> None:
        """Let the results of all experts be the joined result."""
        end = self.first.end
        if not self.is_fresh(rows):
            raise NotALoop(end)
        self.graph.erase_node(end)
        self.turn.discard(end)
        out.target, out.args = all_rows, (rows,)
        rows.append(out)

    def is_fresh(self, node: fx.Node) -> bool:
        """Whether no tensor of which a turn takes rows has the memory of this one."""
        memory = _storage(node)
        shared = {_storage(n) for n in self.graph.nodes if n not in self.with_rows or n.target is all_rows}
        return memory is not None and memory not in shared

    def puts_each_once(self) -> bool:
        """Whether `out[rows] = y` writes each entry for only one expert, whose number is the index of the entry."""
        end = self.first.end
        index, value = end.args[1:]
        parts = index if isinstance(index, tuple) else (index,)
        fits = isinstance(value, fx.Node) and value in self.with_rows and value.meta["v"].shape[:1] == (ROWS,)
        return fits and self.disjoint and list(parts) == self.places

    def adds_each_once(self) -> bool:
        """Whether no expert has an entry of the result twice. `out[rows] += y` would add such an entry only once."""
        index = self.first.end.args[1]
        parts = index if isinstance(index, tuple) else (index,)
        rank = len(self.places)
        return set(parts) == set(self.places) or len(parts) == rank == 1 or _from_topk(self.condition)

    # Nodes.

    def new_node(self, function: Callable[..., Any], args: tuple[Any, ...], value: Any) -> fx.Node:
        node = self.graph.call_function(function, args)
        node.meta["v"], node.meta["place"] = value, self.first.where.meta.get("place")
        return node

    def item(self, rows: fx.Node, index: int, example: Tensor) -> fx.Node:
        return self.new_node(operator.getitem, (rows, index), example)

    def replace(self, node: fx.Node, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Replace a node by a call of another function, whose result has rows."""
        new = self.graph.call_function(function, args)
        new.meta = dict(node.meta)
        replace_node(node, new)
        self.with_rows.add(new)
        self.graph.erase_node(node)
        self.turn.discard(node)

    def computed_node(self, op: str, target: Any, args: tuple[Any, ...], rows: bool = False) -> fx.Node:
        node = self.graph.create_node(op, target, args)
        node.meta["v"], node.meta["place"] = self.value_of(node), self.first.where.meta.get("place")
        if rows:
            self.with_rows.add(node)
        return node

    def value_of(self, node: fx.Node) -> Any:
        """The example of a call of a function or method."""
        return example_of_call(node, self.mode)


_KEEPS_CHOICES = frozenset("eq getitem one_hot permute to long int bool unbind unsqueeze".split())


def _is_last_index(node: fx.Node, of: fx.Node) -> bool:
    """Whether a node reads the entry of expert 0 along the last dimension: `mask[:, 0]` or `mask[..., 0]`."""
    index, value = node.args[1], of.meta.get("v")
    if not isinstance(index, tuple) or not isinstance(value, Tensor) or index[-1] != 0 or type(index[-1]) is not int:
        return False
    return index == (..., 0) or index == (*(slice(None),) * (value.dim() - 1), 0)


def _has_one_choice(node: fx.Node) -> bool:
    """Whether at most one entry along the last dimension is set: `one_hot(index)`, or a part of these entries."""
    while target_name(node) in ("bool", "long", "int", "to") and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    if target_name(node) in ("mul", "and_"):
        return any(_has_one_choice(n) for n in node.all_input_nodes)
    return target_name(node) == "one_hot"


def _from_topk(node: Any) -> bool:
    """Whether a condition compares indices from torch.topk, which are distinct in each row."""
    for _ in range(12):  # a bound on the length of the chain
        if not isinstance(node, fx.Node) or not node.args:
            return False
        if target_name(node) == "getitem" and isinstance(node.args[0], fx.Node) and target_name(node.args[0]) == "topk":
            return bool(node.args[1] == 1)
        if target_name(node) not in _KEEPS_CHOICES:
            return False
        if target_name(node) == "eq" and isinstance(node.args[1], fx.Node) and target_name(node.args[1]) != "arange":
            return False
        node = node.args[0]
    return False


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("v")
    return int(value.untyped_storage()._cdata) if isinstance(value, Tensor) else None


def _dim(node: fx.Node) -> int | None:
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    return dim if type(dim) is int else None
