"""Whether a trace is a loop over experts: the turns of the loop differ in the expert's number only.

Each turn chooses rows, computes on them and adds them to a result. Nothing reads the result in between. So the turns
may
run in any order, and all at once. If this is not shown, the trace is refused.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from autofuse.fx.trace.expert_rows import Loops

_OF_FIRST = re.compile(r"(.*\D)?0")  # `0` or `expert_0`, the name of the first of several children


class NotALoop(Exception):
    """The trace is not known to be a loop over experts.

    Attributes:
        node: the node that prevents it.
    """

    def __init__(self, node: fx.Node | None) -> None:
        super().__init__()
        self.node = node


@dataclass
class Turn:
    """One turn of the loop.

    Attributes:
        where: the node that chooses the rows.
        end: the node that adds the rows to the result.
        out: the result.
    """

    where: fx.Node
    end: fx.Node
    out: fx.Node


def turns_of(graph: fx.Graph, loops: Loops) -> list[Turn]:
    """The turns of the loop, in their order.

    Raises:
        NotALoop: there are fewer than two, or one does not end with a single write to a result.
    """
    nodes = list(graph.nodes)
    wheres = [n for n in nodes if n in set(loops.rows.values())]
    if len(wheres) < 2:
        raise NotALoop(wheres[0] if wheres else None)
    turns = []
    for where, name in zip(wheres, loops.rows, strict=True):
        ends = [n for n in dependents(where) if adds_rows(n)]
        if len(ends) != 1 or loops.rows[name] is not where:
            raise NotALoop(where)
        turns.append(Turn(where, ends[0], ends[0].args[0]))  # type: ignore[arg-type]
    return turns


def dependents(node: fx.Node) -> list[fx.Node]:
    """The nodes that are computed from a node, up to the one that adds to a result."""
    todo, nodes = [node], dict[fx.Node, None]()
    while todo:
        for user in todo.pop().users:
            if user not in nodes and user.op != "output":
                nodes[user] = None
                todo += [] if adds_rows(user) else [user]
    return list(nodes)


def adds_rows(node: fx.Node) -> bool:
    """Whether a node adds rows to a result or stores them in it."""
    return target_name(node) in ("index_add_", "index_add") or node.target is operator.setitem


def check_turns(turns: list[Turn], pairs: list[dict[fx.Node, fx.Node]]) -> None:
    """Check that each turn is independent: no other code uses its values, and it has no node that the first lacks.

    Raises:
        NotALoop: a turn is not independent.
    """
    for turn, pair in zip(turns[1:], pairs, strict=True):
        later = {t.end for t in turns}
        for node in dependents(turn.where):
            if node not in pair:
                raise NotALoop(node)
        for node in pair:
            if node is not turn.end and any(u not in pair and u not in later for u in node.users):
                raise NotALoop(node)


def check_outside(turn: set[fx.Node], first: Turn) -> None:
    """Check that no other code uses the values of the first turn. Raises NotALoop."""
    for node in turn:
        if node is not first.end and any(u not in turn for u in node.users):
            raise NotALoop(node)


def check_result(graph: fx.Graph, turns: list[Turn], turn: set[fx.Node], pairs: list[dict[fx.Node, fx.Node]]) -> None:
    """Check that nothing reads the result, or writes anything, before all turns have added to it.

    Raises:
        NotALoop: something does.
    """
    first, nodes = turns[0], list(graph.nodes)
    in_turns = {*turn, *(b for pair in pairs for b in pair)}
    ends = {t.end for t in turns}
    memory = _storage(first.out)
    if first.out in turn or memory is None:
        raise NotALoop(first.end)
    added = {read for t in turns for read in _reads_to_add(t)}
    begin = min(nodes.index(n) for n in in_turns if n.op not in ("placeholder", "get_attr"))
    for node in nodes[begin : nodes.index(turns[-1].end)]:
        if node in ends:
            continue
        reads = any(n is first.out or n in ends or _storage(n) == memory for n in node.all_input_nodes)
        if reads and node not in added or node not in in_turns and node.meta.get("writes"):
            raise NotALoop(node)


def _reads_to_add(turn: Turn) -> list[fx.Node]:
    """The `out[rows]` in `out[rows] = out[rows] + y` that only the sum uses."""
    total = turn.end.args[2] if turn.end.target is operator.setitem else None
    if not isinstance(total, fx.Node) or target_name(total) not in ("add", "add_"):
        return []
    operands = [n for n in total.all_input_nodes if target_name(n) == "getitem" and n.args == turn.end.args[:2]]
    return [n for n in operands if len(n.users) == 1]


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("v")
    return int(value.untyped_storage()._cdata) if isinstance(value, Tensor) else None


@dataclass
class TurnMatch:
    """The comparison of a later turn with the first one.

    Attributes:
        number: the number of the later turn.
        before: the node that added the rows of the previous turn.
        out: the result before the first turn.
        first: node of the first turn -> node of the later turn.
        varying: node of the first turn -> its arguments that depend on the number of the expert.
    """

    number: int
    before: fx.Node
    out: fx.Node
    first: dict[fx.Node, fx.Node] = field(default_factory=dict)
    varying: dict[fx.Node, set[str]] = field(default_factory=dict)

    def nodes(self, a: fx.Node, b: fx.Node) -> bool:
        """Whether two nodes compute the same except for the number of the expert."""
        if a in self.first:
            return self.first[a] is b
        if a is b:
            return True
        # A later turn adds to the result of the previous one.
        if a is self.out and b is self.before:
            return True
        if a.op != b.op or a.op == "placeholder" or len(a.args) != len(b.args) or a.kwargs.keys() != b.kwargs.keys():
            return False
        if a.op in ("call_module", "get_attr"):
            if a.target != b.target:
                place = place_of_number(str(a.target), str(b.target), self.number)
                if place is None:
                    return False
                self.varying.setdefault(a, set()).add(f"target {place}")
        elif a.target != b.target:
            return False
        self.first[a] = b
        return self.values(a, a.args, b.args, "") and all(
            self.values(a, a.kwargs[k], b.kwargs[k], f".{k}") for k in a.kwargs
        )

    def values(self, owner: fx.Node, a: Any, b: Any, path: str) -> bool:
        """Whether two arguments of `owner`, at `path` in its arguments, are the same except for that number."""
        if isinstance(a, fx.Node) or isinstance(b, fx.Node):
            return isinstance(a, fx.Node) and isinstance(b, fx.Node) and self.nodes(a, b)
        if type(a) is not type(b):
            return False
        if isinstance(a, (tuple, list)):
            return len(a) == len(b) and all(
                self.values(owner, x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))
            )
        if isinstance(a, slice):
            return self.values(owner, (a.start, a.stop, a.step), (b.start, b.stop, b.step), f"{path}:")
        if type(a) is int and a != b:
            self.varying.setdefault(owner, set()).add(path)
            # 0 is the index of the first expert, 1 the end of the slice `[0:1]`.
            return b - a == self.number and a in (0, 1)
        return bool(a == b)


def place_of_number(first: str, other: str, number: int) -> int | None:
    """The part in which `other` has `number` where `first` has 0; None if they differ in another way."""
    parts, others = first.split("."), other.split(".")
    places = [i for i, (a, b) in enumerate(zip(parts, others, strict=False)) if a != b]
    if len(parts) != len(others) or len(places) != 1 or not _OF_FIRST.fullmatch(parts[places[0]]):
        return None
    return places[0] if with_number(first, number, places[0]) == other else None


def with_number(target: str, number: int, place: int) -> str:
    """`experts.0.w1` or `experts.expert_0` with another number in place of 0, in one of its parts."""
    parts = target.split(".")
    parts[place] = f"{parts[place][:-1]}{number}"
    return ".".join(parts)


def target_name(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
