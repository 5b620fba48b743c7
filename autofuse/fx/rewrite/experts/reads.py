"""Checks that new nodes read what the replaced ones read, although they read it later."""

from __future__ import annotations

from torch import Tensor, fx

from autofuse.fx.rewrite.experts.row_values import NotByRow


def check_reads(graph: fx.Graph, before: set[fx.Node], end: fx.Node) -> None:
    """Check that nothing writes to what the new steps read, after it was computed.

    Raises:
        NotByRow: Something does.
    """
    places = {n: i for i, n in enumerate(graph.nodes)}
    writes = [n for n in graph.nodes if n.meta.get("writes") and places[n] < places[end]]
    for read in {r for n in graph.nodes if n not in before for r in n.all_input_nodes if r in before}:
        for write in writes:
            if places[write] > places[read] and any(_memory(w) == _memory(read) for w in write.meta["writes"]):
                raise NotByRow


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("v")
    return int(value.untyped_storage()._cdata) if isinstance(value, Tensor) else None


def erase_new(graph: fx.Graph, before: set[fx.Node]) -> None:
    """Erase all nodes but those of `before`."""
    for node in reversed(list(graph.nodes)):
        if node not in before:
            graph.erase_node(node)
