"""Replaces a recorded loop over experts by one turn for all experts, on rows sorted by expert.

The products with each expert's matrices become `ops.expert_linear`, which the rules know.
"""

from __future__ import annotations

from torch import fx, nn

from autofuse.fx.trace.expert_rows import Loops
from autofuse.fx.trace.expert_turns import NotALoop, TurnMatch, check_outside, check_result, check_turns, turns_of
from autofuse.fx.trace.folded_turn import FoldedTurn
from autofuse.fx.trace.operation_names import erase_dead, replace_node
from autofuse.ops.experts import expert_rows
from autofuse.torch_private import FakeTensorMode


def fold(graph: fx.Graph, loops: Loops, root: nn.Module, mode: FakeTensorMode) -> tuple[fx.Node, ...]:
    """Fold the loop over experts in `graph`, if there is one.

    Args:
        graph: the recorded forward. It is changed in place.
        loops: what the trace recorded about rows of experts.
        root: the module.
        mode: the mode of the trace's fake tensors.

    Returns:
        The nodes that sort the rows.

    Raises:
        NotALoop: the trace is not known to be a loop over experts.
    """
    if not (loops.conditions or loops.tested or loops.hits):
        return ()
    erase_dead(graph)
    turns = turns_of(graph, loops)
    first = turns[0]
    varying: dict[fx.Node, set[str]] = {}
    pairs: list[dict[fx.Node, fx.Node]] = []
    for number, turn in enumerate(turns[1:], start=1):
        match = TurnMatch(number, turns[number - 1].end, first.out)
        if not match.nodes(first.end, turn.end) or match.first.get(first.where) is not turn.where:
            raise NotALoop(turn.where)
        if number > 1 and match.varying != varying:
            raise NotALoop(turn.where)
        varying = match.varying
        pairs.append({b: a for a, b in match.first.items() if a is not b})
    check_turns(turns, pairs)
    first_nodes = set(pairs[0].values())
    check_outside(first_nodes, first)
    check_result(graph, turns, first_nodes, pairs)
    FoldedTurn(graph, loops, root, mode, turns, first_nodes, varying).write()
    last = turns[-1].end
    if last.users:
        replace_node(last, first.end)
    later_nodes = {b for pair in pairs for b in pair}
    # In reverse order, because fx erases a node only after its users.
    for node in reversed(list(graph.nodes)):
        if node in later_nodes:
            graph.erase_node(node)
    erase_dead(graph)
    return tuple(n for n in graph.nodes if n.target is expert_rows)


__all__ = ["NotALoop", "fold"]
