"""A loop over experts that was written down turn by turn -> one turn for all of them, on rows sorted by expert.

The products with each expert's matrices become `ops.expert_linear`, which the rules know.
"""

from __future__ import annotations

from torch import fx, nn

from autofuse.fx.trace.expert_rows import Loops
from autofuse.fx.trace.expert_turns import Match, NotALoop, check_outside, check_result, check_turns, turns_of
from autofuse.fx.trace.folded_turn import FoldedTurn
from autofuse.fx.trace.operation_names import erase_dead, replace_node
from autofuse.ops.experts import expert_rows
from autofuse.torch_private import FakeTensorMode


def fold(graph: fx.Graph, loops: Loops, root: nn.Module, mode: FakeTensorMode) -> tuple[fx.Node, ...]:
    """Fold the loop over experts in `graph`, if there is one; what sorts its rows. Raises NotALoop."""
    if not (loops.conditions or loops.asked or loops.hits):
        return ()
    erase_dead(graph)
    turns = turns_of(graph, loops)
    first = turns[0]
    varying: dict[fx.Node, set[str]] = {}
    pairs: list[dict[fx.Node, fx.Node]] = []
    for number, turn in enumerate(turns[1:], start=1):
        match = Match(number, turns[number - 1].end, first.out)
        if not match.nodes(first.end, turn.end) or match.first.get(first.where) is not turn.where:
            raise NotALoop(turn.where)
        if number > 1 and match.varying != varying:
            raise NotALoop(turn.where)
        varying = match.varying
        pairs.append({b: a for a, b in match.first.items() if a is not b})
    check_turns(turns, pairs)
    of_first = set(pairs[0].values())
    check_outside(of_first, first)
    check_result(graph, turns, of_first, pairs)
    FoldedTurn(graph, loops, root, mode, turns, of_first, varying).write()
    last = turns[-1].end
    if last.users:
        replace_node(last, first.end)
    gone = {b for pair in pairs for b in pair}
    for node in reversed(list(graph.nodes)):
        if node in gone:
            graph.erase_node(node)
    erase_dead(graph)
    return tuple(n for n in graph.nodes if n.target is expert_rows)


__all__ = ["NotALoop", "fold"]
