"""Replaces each recorded loop over experts by one turn for all experts, on rows sorted by expert.

The products with each expert's matrices become `ops.expert_linear`, which the rules know.
"""

from __future__ import annotations

from torch import fx, nn

from autofuse.fx.trace.expert_rows import Loops
from autofuse.fx.trace.expert_turns import (
    NotALoop,
    Turn,
    TurnMatch,
    check_outside,
    check_result,
    check_turns,
    turns_of,
)
from autofuse.fx.trace.folded_turn import FoldedTurn
from autofuse.fx.trace.operation_names import erase_dead, replace_node
from autofuse.ops.experts import counted_ends, expert_rows, experts_of_rows, rows_in_order
from autofuse.torch_private import FakeTensorMode


def fold(graph: fx.Graph, loops: Loops, root: nn.Module, mode: FakeTensorMode) -> tuple[fx.Node, ...]:
    """Fold the loops over experts in `graph`, if there are any.

    `for k in range(choices): for e in range(experts): ...` is one loop over experts for each choice.

    Args:
        graph: the recorded forward. It is changed in place.
        loops: what the trace recorded about rows of experts.
        root: the module.
        mode: the mode of the trace's fake tensors.

    Returns:
        The nodes that sort the rows.

    Raises:
        NotALoop: the trace is not known to consist of loops over experts.
    """
    if not loops.assumes_rows:
        return ()
    if not loops.rows:
        raise NotALoop(None)
    erase_dead(graph)
    while loops.rows:
        turns, matches = _first_loop(turns_of(graph, loops))
        _fold_loop(graph, loops.split(len(turns)), root, mode, turns, matches)
        erase_dead(graph, {n for n in graph.nodes if n.target in (experts_of_rows, rows_in_order)})
    return tuple(n for n in graph.nodes if n.target in (expert_rows, counted_ends))


def _first_loop(turns: list[Turn]) -> tuple[list[Turn], list[TurnMatch]]:
    """The turns of the first loop, and the comparisons of the later ones with the first one.

    Raises:
        NotALoop: the second turn differs from the first one in more than the number of the expert.
    """
    first, matches = turns[0], list[TurnMatch]()
    for number, turn in enumerate(turns[1:], start=1):
        match = TurnMatch(number, turns[number - 1].end, first.out)
        if not match.nodes(first.end, turn.end) or match.first.get(first.where) is not turn.where:
            break
        if number > 1 and match.varying != matches[0].varying:
            break
        matches.append(match)
    if not matches:
        raise NotALoop(turns[1].where)
    return turns[: len(matches) + 1], matches


def _fold_loop(
    graph: fx.Graph, loops: Loops, root: nn.Module, mode: FakeTensorMode, turns: list[Turn], matches: list[TurnMatch]
) -> None:
    """Fold one loop. Raises NotALoop if its turns depend on each other."""
    first = turns[0]
    pairs = [{b: a for a, b in match.first.items() if a is not b} for match in matches]
    check_turns(turns, pairs)
    first_nodes = set(pairs[0].values())
    check_outside(first_nodes, first)
    check_result(graph, turns, first_nodes, pairs)
    FoldedTurn(graph, loops, root, mode, turns, first_nodes, matches[-1].varying).write()
    last = turns[-1].end
    if last.users:
        replace_node(last, first.end)
    later_nodes = {b for pair in pairs for b in pair}
    # In reverse order, because fx erases a node only after its users.
    for node in reversed(list(graph.nodes)):
        if node in later_nodes:
            graph.erase_node(node)


__all__ = ["NotALoop", "fold"]
