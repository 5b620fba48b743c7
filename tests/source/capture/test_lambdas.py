"""Lambdas and comprehensions are captured as functions, and edits of them are correct for every value."""

from __future__ import annotations

import ast
import textwrap

import pytest

from autofuse.loading.registry import load_rules
from autofuse.source.capture.lambdas import expression_functions
from autofuse.source.capture.scope import file_scope, functions
from autofuse.source.find.check import proposals
from tests.source.rewriting import rewritten

GELU = "0.5 * {0} * (1.0 + torch.erf({0} / math.sqrt(2.0)))"


def symbols(source: str) -> list[str]:
    scope = file_scope(ast.parse(textwrap.dedent(source)))
    return [inner.symbol for d in functions(scope) for inner in expression_functions(d)]


def test_lambdas_and_comprehensions_with_operators_are_functions() -> None:
    assert symbols(
        """
        def f(q, k):
            q, k = map(lambda t: t * 2, (q, k))
            q, k = [t + 1 for t in (q, k)]
            q, k = map(lambda t: t.float(), (q, k))
            return q, k
        """
    ) == ["f.<lambda>", "f.<lambda>"]


def test_a_comprehension_with_an_assignment_is_left_out() -> None:
    assert symbols("def f(xs):\n    return [(y := x + 1) for x in xs]\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "a, b = map(lambda t: {}, (a, b))",
        "a, b = [{} for t in (a, b)]",
        "a, b = ({} for t in (a, b))",
    ],
)
def test_an_expression_is_rewritten_once_for_all_values(line: str) -> None:
    source = f"import math\nimport torch\n\ndef f(a, b):\n    {line.format(GELU.format('t'))}\n    return a, b\n"
    text = rewritten(source)
    assert line.format("torch.nn.functional.gelu(t)") in text or line.format("F.gelu(t)") in text, text


def test_a_name_of_the_enclosing_function_is_not_a_constant_of_the_file() -> None:
    """`half` is a number at module level, and another value inside the function."""
    source = """
        import math
        import torch

        half = 0.5

        def f(a, b, half):
            a, b = map(lambda t: half * t * (1.0 + torch.erf(t / math.sqrt(2.0))), (a, b))
            return a, b
    """
    assert not proposals(textwrap.dedent(source).encode(), "", rules=load_rules())
