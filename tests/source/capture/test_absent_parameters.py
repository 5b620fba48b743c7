"""A layer that is made without a parameter: an edit does not pass what is None."""

from __future__ import annotations

import ast

import pytest
import torch

from tests.source.rewriting import assert_same, rewritten, source

# How the layers are made, and what the edit must and must not write.
GATED = {
    "no bias": ("nn.Linear(8, 6, bias=False)", "nn.Linear(8, 6, False)", [], ["bias"]),
    "both": ("nn.Linear(8, 6)", "nn.Linear(8, 6, bias=True)", ["gate_bias=self.gate.bias, up_bias=self.up.bias"], []),
    "one": ("nn.Linear(8, 6, bias=False)", "nn.Linear(8, 6)", ["up_bias=self.up.bias"], ["gate_bias"]),
    "unknown": ("nn.Linear(8, 6, bias=bias)", "nn.Linear(8, 6, bias)", ["gate_bias=", "up_bias="], []),
    "unknown positions": ("nn.Linear(*size, bias=False)", "nn.Linear(*size)", ["up_bias="], ["gate_bias"]),
}
NORMS = {
    "no parameters": ("nn.LayerNorm(8, elementwise_affine=False)", [], ["weight", "bias"]),
    "no parameters, by position": ("nn.LayerNorm(8, 1e-5, False)", [], ["weight", "bias"]),
    "no bias": ("nn.LayerNorm(8, bias=False)", ["self.norm.weight"], ["bias"]),
    "all": ("nn.LayerNorm(8)", ["self.norm.weight", "self.norm.bias"], []),
    "unknown": ("nn.LayerNorm(8, elementwise_affine=bias)", ["self.norm.weight", "self.norm.bias"], []),
}


@pytest.mark.parametrize("name", GATED)
def test_a_gated_mlp_passes_only_the_biases_that_its_layers_have(name: str) -> None:
    gate, up, written, absent = GATED[name]
    text = source(f"""
        import torch
        import torch.nn.functional as F
        from torch import nn

        class Gated(nn.Module):
            def __init__(self, size=(8, 6), bias=False):
                super().__init__()
                self.gate, self.up, self.down = {gate}, {up}, nn.Linear(6, 8)

            def forward(self, x):
                return self.down(F.silu(self.gate(x)) * self.up(x))
    """)
    _check(text, "ops.gated_mlp", written, absent, "Gated")


@pytest.mark.parametrize("name", NORMS)
def test_a_residual_norm_passes_only_the_parameters_that_the_norm_has(name: str) -> None:
    made, written, absent = NORMS[name]
    text = source(f"""
        import torch
        from torch import nn

        class Block(nn.Module):
            def __init__(self, bias=True):
                super().__init__()
                self.first, self.second, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), {made}

            def forward(self, x):
                x = x + self.first(x)
                return x + self.second(self.norm(x))
    """)
    _check(text, "ops.dropout_add_norm", written, absent, "Block")


def _check(text: str, call: str, written: list[str], absent: list[str], name: str) -> None:
    after = rewritten(text)
    found = next(n for n in ast.walk(ast.parse(after)) if isinstance(n, ast.Call) and ast.unparse(n.func) == call)
    arguments = ast.unparse(found)
    assert all(w in arguments for w in written) and not any(a in arguments for a in absent), arguments
    assert "None" not in arguments
    assert_same(text, after, name, [torch.randn(2, 3, 8).double()])
