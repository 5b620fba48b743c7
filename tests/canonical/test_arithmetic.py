"""Products and sums: every order of evaluation has the same form, and the form computes the same as the program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from autofuse.canonical import View
from autofuse.ir.facts import Facts
from autofuse.ir.graph import PARAMETER, Graph, Value

Expression = tuple[object, ...]
NAMES = {"a": 0.7, "b": 1.3, "c": 2.1}

leaves = st.one_of(
    st.sampled_from(sorted(NAMES)).map(lambda n: ("name", n)),
    st.sampled_from([0.5, 2.0, 3.0, -1.0]).map(lambda c: ("const", c)),
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("mul"), inner, inner),
        st.tuples(st.just("add"), inner, inner),
        st.tuples(st.just("sub"), inner, inner),
        st.tuples(st.sampled_from(["exp", "tanh", "erf", "sigmoid", "neg", "square"]), inner),
    ),
    max_leaves=8,
)


@dataclass
class Program:
    """Adds expressions to a graph, each in a spelling that `flip` chooses."""

    flip: Callable[[], bool]
    graph: Graph = field(default_factory=Graph)

    def value(self, e: Expression) -> Value:
        kind, *parts = e
        if kind == "name":
            return self.graph.value(PARAMETER, data=str(parts[0]))
        if kind == "const":
            return self.graph.const(float(str(parts[0])))
        inputs = [self.value(p) for p in parts]  # type: ignore[arg-type]
        return self.spelled(str(kind), inputs)

    def spelled(self, kind: str, inputs: list[Value]) -> Value:
        one = self.graph.const(1)
        if kind in ("mul", "add") and self.flip():
            inputs = inputs[::-1]
        if kind == "add":
            return self.graph.value("add", *inputs, one)
        if kind == "sub":
            return self.difference(*inputs)
        if kind == "square" and self.flip():
            return self.graph.value("pow", inputs[0], self.graph.const(2))
        if kind == "neg" and self.flip():
            return self.graph.value("mul", self.graph.const(-1), inputs[0])
        return self.graph.value(kind, *inputs)

    def difference(self, x: Value, y: Value) -> Value:
        one = self.graph.const(1)
        if self.flip():
            return self.graph.value("sub", x, y, one)
        return self.graph.value("add", self.graph.value("neg", y), x, one)


def meaning(e: Expression) -> float:
    kind, *parts = e
    if kind == "name":
        return NAMES[str(parts[0])]
    if kind == "const":
        return float(str(parts[0]))
    return FUNCTIONS[str(kind)](*[meaning(p) for p in parts])  # type: ignore[arg-type]


def canonical_meaning(v: Value) -> float:
    if v.op == PARAMETER:
        return NAMES[str(v.data)]
    if v.op == "const":
        return float(str(v.data))
    inputs = [canonical_meaning(i) for i in v.inputs] if v.op != "activation" else [canonical_meaning(v.inputs[0])]
    name = f"activation {v.inputs[1].data}" if v.op == "activation" else v.op
    return FUNCTIONS[name](*inputs)


def gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x * math.sqrt(0.5)))


FUNCTIONS: dict[str, Callable[..., float]] = {
    "mul": lambda *xs: math.prod(xs),
    "add": lambda *xs: math.fsum(xs),
    "sub": lambda x, y: x - y,
    "neg": lambda x: -x,
    "square": lambda x: x * x,
    "pow": lambda x, n: x**n,
    "exp": math.exp,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "activation silu": lambda x: x / (1 + math.exp(-x)),
    "activation gelu": gelu,
}


@settings(max_examples=300, deadline=None)
@given(expressions, st.data())
def test_every_order_and_spelling_is_one_form(e: Expression, data: st.DataObject) -> None:
    program = Program(lambda: data.draw(st.booleans()))
    first, second = program.value(e), program.value(e)
    view = View(Facts())
    assert view.of(first) is view.of(second)


@settings(max_examples=300, deadline=None)
@given(expressions, st.data())
def test_the_form_computes_the_same_as_the_program(e: Expression, data: st.DataObject) -> None:
    try:
        wanted = meaning(e)
    except OverflowError:
        return
    if abs(wanted) > 1e12:
        return
    program = Program(lambda: data.draw(st.booleans()))
    found = canonical_meaning(View(Facts()).of(program.value(e)))
    assert math.isclose(found, wanted, rel_tol=1e-6, abs_tol=1e-6)


def test_three_factors_are_one_product_with_any_parentheses() -> None:
    graph, view = Graph(), View(Facts())
    a, b, c = (graph.value(PARAMETER, data=n) for n in "abc")
    left = graph.value("mul", graph.value("mul", a, b), c)
    right = graph.value("mul", a, graph.value("mul", c, b))
    assert view.of(left) is view.of(right)


def test_every_spelling_of_a_cube_is_one_form() -> None:
    graph, view = Graph(), View(Facts())
    x = graph.value(PARAMETER, data="x")
    square = graph.value("mul", x, x)
    forms = [
        graph.value("mul", square, x),
        graph.value("pow", x, graph.const(3)),
        graph.value("pow", x, graph.const(3.0)),
        graph.value("mul", x, graph.value("square", x)),
    ]
    assert len({view.of(f) for f in forms}) == 1
