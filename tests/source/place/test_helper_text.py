"""The expression of a helper is written before its call in the caller, if it means the same there."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import assert_same, rewritten, source

PROGRAM = """
    import torch
    from torch import nn

    SIZE = 5


    def spread(t):
        return t.permute(2, 0, 1).unsqueeze(0)


    class Attention(nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.to_qkv, self.table, self.scale = nn.Linear(8, 24), nn.Embedding(SIZE * SIZE, 2), 0.5
            self.register_buffer("index", torch.arange(SIZE * SIZE).view(SIZE, SIZE))
            self.other = Counted()

        def biased(self, scores, factor=1.0):
            BODY

        def forward(self, x):
            q, k, v = (t.view(2, 5, 2, 4).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
            scores = q @ k.transpose(-2, -1) * self.scale
            CALL
            weights = scores.softmax(-1)
            return (weights @ v).transpose(1, 2).reshape(2, 5, 8)


    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(SIZE, SIZE))

        def forward(self):
            Attention.calls += 1
            return self.weight * Attention.calls
"""
CALL = "scores = self.biased(scores)"
LOOKED_UP = "bias = self.table(self.index)\n"
WRITTEN = {
    "a lookup": (LOOKED_UP + "bias = spread(bias)\nreturn scores + bias", CALL),
    "steps under one name": (LOOKED_UP + "bias = bias.permute(2, 0, 1)\nreturn scores + bias / self.scale", CALL),
    "one expression": ("return scores + self.table(self.index).permute(2, 0, 1)", CALL),
    "an argument": (LOOKED_UP + "return scores + bias.permute(2, 0, 1) * factor", "scores = self.biased(scores, 2.0)"),
    "a name that is read twice": (LOOKED_UP + "bias = bias - bias[:, :1]\nreturn scores + bias.permute(2, 0, 1)", CALL),
    "one module of the file's own": ("bias = self.other()\nreturn scores + bias.view(1, 1, 5, 5)", CALL),
}
LEFT = {
    "another call": (LOOKED_UP + "seen = self.other()\nreturn scores + bias.permute(2, 0, 1)", CALL),
    "two calls": ("bias = self.other()\nbias = self.other() - bias\nreturn scores + bias", CALL),
    "random numbers": ("noise = torch.rand(5, 5)\nbias = self.other()\nreturn scores + bias * noise", CALL),
    "a name of the caller's": (
        LOOKED_UP + "return scores + spread(bias)",
        "spread = self.scale\n            scores = self.biased(scores) * spread / spread",
    ),
    "a call that may not happen": (
        LOOKED_UP + "return scores + spread(bias)",
        "scores = self.biased(scores) if self.training else scores",
    ),
    "a result that is read elsewhere": (
        "bias = self.other()\nreturn scores + bias",
        "scores = self.biased(scores)\n            print(scores.sum().item() > 1e9)",
    ),
}


def program(body: str, call: str) -> str:
    return (
        source(PROGRAM).replace("BODY", body.replace("\n", "\n        ")).replace("CALL", call.replace("\n    ", "\n"))
    )


def x() -> list[torch.Tensor | None]:
    return [torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("case", WRITTEN)
def test_the_expression_of_a_helper_is_written_before_its_call(case: str) -> None:
    before = program(*WRITTEN[case])
    after = rewritten(before)
    forward = after.partition("def forward")[2].partition("class Counted")[0]
    assert "scaled_dot_product_attention" in forward and "self.biased" not in forward
    assert forward.count("self.table(") + forward.count("self.other(") == 1
    assert_same(before, after, "Attention", x())


@pytest.mark.parametrize("case", LEFT)
def test_code_stays_if_the_expression_means_something_else_in_the_caller(case: str) -> None:
    before = program(*LEFT[case])
    after = rewritten(before)
    assert "self.biased(scores)" in after
    assert_same(before, after, "Attention", x())
