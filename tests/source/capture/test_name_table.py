"""Snapshots of names and the history that they share."""

from __future__ import annotations

from autofuse.ir.graph import Graph
from autofuse.source.capture.name_table import NameTable


def test_a_snapshot_keeps_the_values_of_names() -> None:
    graph, table = Graph(), NameTable()
    one, two = graph.const(1), graph.const(2)
    table.set("x", one)
    before = table.snapshot()
    table.set("x", two)
    table.set("y", one)
    assert dict(before) == {"x": one} and dict(table.snapshot()) == {"x": two, "y": one}


def test_restoring_undoes_bindings_and_deletions() -> None:
    graph, table = Graph(), NameTable()
    table.set("x", graph.const(1))
    mark = table.mark
    table.set("x", None)
    table.set("y", graph.const(2))
    assert table.changed_since(mark) == ["x", "y"]
    table.restore(mark)
    assert dict(table.snapshot()) == {"x": graph.const(1)}


def test_all_values_of_a_name_since_a_time_are_known() -> None:
    graph, table = Graph(), NameTable()
    values = [graph.const(i) for i in range(4)]
    table.set("x", values[0])
    table.set("x", values[1])
    mark = table.mark
    table.set("x", values[2])
    table.set("x", values[3])
    assert table.values_since("x", mark) == values[1:]
