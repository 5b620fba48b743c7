"""What an expression says of the tensor that it makes agrees with the tensor that it makes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
import torch

from autofuse.source.capture.scope import file_scope
from autofuse.source.evidence.made_tensors import Made, Reader

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


def read(expression: str) -> Made | None:
    def holds(node: ast.expr) -> Iterator[ast.expr | Made]:
        return iter(())

    scope = file_scope(ast.parse(HEAD))
    return Reader(scope, holds).read(ast.parse(expression, mode="eval").body)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_is_said_of_a_tensor_is_true(expression: str) -> None:
    found = read(expression)
    tensor = eval(expression, {"torch": torch, "nn": torch.nn})
    assert found is not None and not found.number
    assert found.floating in (None, tensor.is_floating_point()), found
    if found.sizes is not None:
        assert len(found.sizes) == tensor.dim(), found
        assert all(said in (None, size) for said, size in zip(found.sizes, tensor.shape, strict=True)), found


@pytest.mark.parametrize("expression", ["width ** -0.5", "f(3)", "x", "'text'", "None", "[1, 2]", "len(x)", "True"])
def test_nothing_is_said_of_what_is_not_known(expression: str) -> None:
    assert read(expression) is None


@pytest.mark.parametrize("expression", ["2", "0.5", "-1", "1 / 2", "4 ** -0.5"])
def test_a_number_is_told_from_a_tensor(expression: str) -> None:
    found = read(expression)
    assert found is not None and found.number
