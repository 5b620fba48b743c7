"""The facts that are read from an expression agree with the tensor that the expression creates."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
import torch

from autofuse.source.capture.scope import file_scope
from autofuse.source.evidence.tensor_expressions import TensorFacts, TensorReader

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
EXPRESSIONS = (
    "torch.arange(8)", "torch.arange(8.0)", "torch.arange(0, 1, 0.25)", "torch.arange(8).view(2, 4)[0]",
    "torch.arange(8).view(2, 4)[:, 1]", "torch.arange(8).view(2, 4)[None, 0]", "torch.ones(2, 3)", "torch.ones((2, 3))",
    "torch.ones(2, 3, dtype=torch.long)", "torch.ones(2, 3).bool()", "torch.ones(2, 3) > 0",
    "torch.ones(2, 3).argmax(-1)",
    "torch.ones(2, 3).long().float()", "torch.ones(2, 3).to(torch.int32)", "torch.tensor([1, 2])",
    "torch.tensor([1.0, 2])",
    "torch.tensor([[1, 2], [3, 4]])", "torch.tensor(0.5)", "torch.randint(0, 5, (2, 3))", "torch.full((2, 3), 0.5)",
    "torch.full((2,), 1)", "torch.ones(2, 3).mean(0)", "torch.ones(2, 3).mean()", "torch.ones(2, 3).sum(dim=1)",
    "torch.ones(2, 3).mean(1, keepdim=True)", "torch.ones(2, 3).unsqueeze(1)", "torch.ones(2, 3).unsqueeze(-1)",
    "torch.ones(2, 3).t()", "torch.ones(2, 3).T", "torch.ones(2, 3, 4).transpose(0, 2)", "torch.ones(2, 3).flatten()",
    "torch.ones(5, 5).bool().expand(2, 5, 5)", "torch.ones(2, 3) * torch.arange(3)", "torch.arange(3) + 1",
    "torch.arange(3) / 2", "torch.arange(3) * 0.5", "torch.arange(3) * 1j", "torch.ones(3, dtype=torch.complex64)",
    "torch.complex(torch.ones(2), torch.ones(2))", "torch.fft.fft(torch.ones(4))", "torch.sigmoid(torch.arange(3))",
    "torch.zeros_like(torch.arange(3))", "torch.where(torch.ones(2) > 0, 0.0, -1.0)",
    "torch.cat([torch.ones(2), torch.ones(3)])",
    "nn.Parameter(torch.ones(2, 3))", "torch.ones(2, 3)[..., None]", "torch.ones(2, 3)[..., 0]", "torch.ones(2, 3)[1:]",
    "torch.linspace(-1, 1, 60).view(3, 5, 4)", "torch.randn(2, 3).softmax(-1)", "torch.ones(2).new_tensor(0.5)",
    "torch.ones(2, 3).std()", "~torch.ones(2).bool()", "-torch.arange(3)", "torch.LongTensor([1, 2])",
    "torch.ones(3, 4)[0] @ torch.ones(4, 2)", "torch.ones(2, 3).permute(1, 0)", "torch.ones(2, 3).repeat(2, 2)",
)  # fmt: skip


def read(expression: str) -> TensorFacts | None:
    def values_of(node: ast.expr) -> Iterator[ast.expr | TensorFacts]:
        return iter(())

    scope = file_scope(ast.parse(HEAD))
    return TensorReader(scope, values_of).read(ast.parse(expression, mode="eval").body)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_facts_of_a_tensor_are_true(expression: str) -> None:
    facts = read(expression)
    tensor = eval(expression, {"torch": torch, "nn": torch.nn})
    assert facts is not None and not facts.number
    assert facts.floating in (None, tensor.is_floating_point()), facts
    if facts.sizes is not None:
        assert len(facts.sizes) == tensor.dim(), facts
        assert all(known in (None, size) for known, size in zip(facts.sizes, tensor.shape, strict=True)), facts


@pytest.mark.parametrize("expression", ["width ** -0.5", "f(3)", "x", "'text'", "None", "[1, 2]", "len(x)", "True"])
def test_an_unknown_value_has_no_facts(expression: str) -> None:
    assert read(expression) is None


@pytest.mark.parametrize("expression", ["2", "0.5", "-1", "1 / 2", "4 ** -0.5"])
def test_a_number_is_marked_as_a_number(expression: str) -> None:
    facts = read(expression)
    assert facts is not None and facts.number
