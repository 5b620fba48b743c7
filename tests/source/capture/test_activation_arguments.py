"""Activations that are arguments of a constructor: how they are recognized and passed to fused operations."""

from __future__ import annotations

import ast

import pytest
import torch

from autofuse.source.capture.activation_arguments import is_activation
from autofuse.source.capture.scope import file_scope
from tests.source.rewriting import assert_same, rewritten, source

HEAD = "from torch import nn\nimport torch.nn.functional as F\nfrom transformers.activations import ACT2FN\n\n\n"
MLP = "import torch\nfrom torch import nn\n\n\n" + source("""
    class Mlp(nn.Module):
        def __init__(self, dim, act_layer=nn.GELU):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(dim, 8), nn.Linear(8, dim)
            self.act = act_layer()

        def forward(self, x):
            return self.fc2(self.act(self.fc1(x)))
""")


def is_proved(arguments: str, assigned: str, before: str = "pass") -> bool:
    text = (
        f"class A(nn.Module):\n    def __init__(self, {arguments}):\n        {before}\n        self.act = {assigned}\n"
    )
    scope = file_scope(ast.parse(HEAD + text))
    owner = scope.classes["A"]
    return is_activation(scope, owner, scope.attribute(owner, "act"))


@pytest.mark.parametrize(
    ("arguments", "assigned", "before"),
    [
        ("act_layer=nn.GELU", "act_layer()", "pass"),
        ("activation=None", "activation()", "activation = activation or nn.SiLU"),
        ("activation=None", "activation()", "activation = default(activation, nn.GELU)"),
        ("activation=F.relu", "activation", "pass"),
        ("config", "ACT2FN[config.hidden_act]", "pass"),
        ("fast", "nn.ReLU() if fast else nn.GELU()", "pass"),
        ("name", "{'relu': nn.ReLU(), 'gelu': nn.GELU()}[name]", "pass"),
    ],
)
def test_a_default_or_a_table_proves_an_activation(arguments: str, assigned: str, before: str) -> None:
    assert is_proved(arguments, assigned, before)


@pytest.mark.parametrize(
    ("arguments", "assigned"),
    [
        ("norm_layer=nn.LayerNorm", "norm_layer(4)"),
        ("act", "act()"),
        ("gate=nn.Sigmoid", "gate()"),
        ("fast", "nn.ReLU() if fast else nn.Dropout(0.1)"),
        ("name", "TABLE[name]"),
    ],
)
def test_anything_else_proves_nothing(arguments: str, assigned: str) -> None:
    assert not is_proved(arguments, assigned)


@pytest.mark.parametrize("activation", [torch.nn.GELU, torch.nn.Tanh])
def test_any_activation_is_passed_to_the_fused_operation(activation: type[torch.nn.Module]) -> None:
    text = rewritten(MLP)
    assert "activation=self.act" in text
    assert_same(MLP, text, "Mlp", [torch.randn(2, 3, dtype=torch.float64)], 3, activation)
