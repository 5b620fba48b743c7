"""Activations that whoever builds a module chooses: what shows that it is one, and how it is passed on."""

from __future__ import annotations

import ast

import pytest
import torch

from autofuse.source.capture.chosen_activations import is_activation
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


def shown(arguments: str, assigned: str, before: str = "pass") -> bool:
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
def test_a_default_or_a_table_shows_that_it_is_one(arguments: str, assigned: str, before: str) -> None:
    assert shown(arguments, assigned, before)


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
def test_anything_else_does_not(arguments: str, assigned: str) -> None:
    assert not shown(arguments, assigned)


@pytest.mark.parametrize("activation", [torch.nn.GELU, torch.nn.Tanh])
def test_it_is_passed_on_whichever_it_is(activation: type[torch.nn.Module]) -> None:
    text = rewritten(MLP)
    assert "activation=self.act" in text
    assert_same(MLP, text, "Mlp", [torch.randn(2, 3, dtype=torch.float64)], 3, activation)
