"""Calls of a submodule that is either a dropout or None."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import findings, module_of, rewritten, source

PROGRAM = """
    import torch
    from torch import nn
    import torch.nn.functional as F


    class Attention(nn.Module):
        def __init__(self, p=0.0):
            super().__init__()
            self.to_qkv, self.p = nn.Linear(8, 24), p
            MADE

        def forward(self, x):
            q, k, v = (t.view(2, 5, 2, 4).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
            attn = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)
            DROPPED
            return (attn @ v).transpose(1, 2).reshape(2, 5, 8)
"""
OR_NONE = "self.drop = nn.Dropout(p) if p > 0 else None"
MADE = {
    "in one expression": OR_NONE,
    "the other way round": "self.drop = None if p == 0 else nn.Dropout(p)",
    "in two branches": (
        "if p > 0:\n                self.drop = nn.Dropout(p)\n            else:\n                self.drop = None"
    ),
    "None first": "self.drop = None\n            if p > 0:\n                self.drop = nn.Dropout(p)",
}
DROPPED = {
    "if": "if self.drop is not None:\n                attn = self.drop(attn)",
    "if true": "if self.drop:\n                attn = self.drop(attn)",
    "else": "attn = attn if self.drop is None else self.drop(attn)",
}
ALWAYS_MADE = {
    "if it is more than one": "if self.to_qkv.in_features > 1:\n                attn = self.drop(attn)",
    "if p": "if self.p > 0:\n                attn = self.drop(attn)",
    "if p, by function": "if self.p > 0:\n                attn = F.dropout(attn, self.p, self.training)",
    "unless p": "if self.p == 0:\n                pass\n            else:\n                attn = self.drop(attn)",
}
CASES = {f"{m}, {d}": (MADE[m], DROPPED[d]) for m in MADE for d in DROPPED}
CASES |= {d: ("self.drop = nn.Dropout(p)", text) for d, text in ALWAYS_MADE.items()}


def program_text(made: str, dropped: str) -> str:
    return (
        source(PROGRAM)
        .replace("MADE", made.replace("\n    ", "\n"))
        .replace("DROPPED", dropped.replace("\n    ", "\n"))
    )


def result(text: str, p: float, train: bool) -> torch.Tensor:
    torch.manual_seed(0)
    model = module_of(text).Attention(p).double().train(train)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.manual_seed(1)
    found = model(x)
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_dropout_that_may_be_none_is_applied_as_before(case: str) -> None:
    before = program_text(*CASES[case])
    after = rewritten(before)
    assert "scaled_dot_product_attention" in after and "softmax" not in after
    for p in (0.0, 1e-3, 0.5, 1.0):
        torch.testing.assert_close(result(after, p, False), result(before, p, False))
    torch.testing.assert_close(result(after, 0.0, True), result(before, 0.0, True))
    assert result(after, 1.0, True).abs().max() == result(before, 1.0, True).abs().max() == 0
    kept = [(result(text, 0.5, True) == result(text, 0.5, False)).all().item() for text in (before, after)]
    assert kept == [False, False]


@pytest.mark.parametrize(
    "dropped", ["attn = self.drop(attn)", "if self.p > 0.1:\n                attn = self.drop(attn)"]
)
def test_a_call_of_a_module_that_may_be_none_stays_if_nothing_tests_for_none(dropped: str) -> None:
    assert rewritten(program_text(OR_NONE, dropped)) == program_text(OR_NONE, dropped)


def test_only_a_dropout_may_be_none() -> None:
    before = program_text("self.drop = nn.Tanh() if p > 0 else None", DROPPED["if"])
    assert "tanh" not in rewritten(before) and not any(f.status == "safe" for f in findings(before))
