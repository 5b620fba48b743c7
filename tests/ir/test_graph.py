"""Graphs: equal computations, memory writes, validity."""

import pytest

from autofuse.ir.graph import ARITY, ATTRIBUTE, CALL, PARAMETER, Graph, GraphError, Value, check


def test_the_same_pure_computation_is_the_same_value() -> None:
    graph = Graph()
    x = graph.value(PARAMETER, data="x")
    assert graph.value("exp", x) is graph.value("exp", x)
    assert graph.fresh(CALL, x, data=("f", ())) is not graph.fresh(CALL, x, data=("f", ()))


def test_true_and_one_are_different_constants() -> None:
    graph = Graph()
    assert graph.const(True) is not graph.const(1)
    assert graph.const(1.0) is not graph.const(1)


def test_a_read_before_a_write_is_not_the_read_after_it() -> None:
    graph = Graph()
    owner = graph.value(PARAMETER, data="self")
    before = graph.read(ATTRIBUTE, owner, data="cache")
    assert graph.read(ATTRIBUTE, owner, data="cache") is before
    graph.write(before, graph.fresh("add", before, graph.const(1), graph.const(1)))
    assert graph.read(ATTRIBUTE, owner, data="cache") is not before


def test_an_attribute_read_after_a_store_is_a_new_value() -> None:
    graph = Graph()
    owner = graph.value(PARAMETER, data="self")
    before = graph.read(ATTRIBUTE, owner, data="scale")
    graph.forget("self.scale = ...")
    assert graph.read(ATTRIBUTE, owner, data="scale") is not before


def test_a_graph_built_by_its_methods_is_valid() -> None:
    graph = Graph()
    x = graph.value(PARAMETER, data="x")
    graph.write(x, graph.fresh("exp", x))
    check(graph, {**ARITY, "exp": 1})


@pytest.mark.parametrize(
    ("op", "inputs", "said"),
    [("exp", 0, "has 0 inputs"), ("no such op", 1, "unknown operation"), (ATTRIBUTE, 2, "has 2 inputs")],
)
def test_the_error_names_the_invalid_value(op: str, inputs: int, said: str) -> None:
    graph = Graph()
    x = graph.value(PARAMETER, data="x")
    graph.fresh(op, *[x] * inputs)
    with pytest.raises(GraphError, match=said):
        check(graph, {**ARITY, "exp": 1})


def test_a_value_of_another_graph_is_rejected() -> None:
    graph = Graph()
    graph.fresh("exp", Value(PARAMETER, (), "x", 7))
    with pytest.raises(GraphError, match="does not compute before it"):
        check(graph, {**ARITY, "exp": 1})
