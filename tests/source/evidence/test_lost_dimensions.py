"""A query or value that is a vector prevents an edit, and one that has lost a dimension makes it unsafe."""

from __future__ import annotations

import pytest

from tests.source.rewriting import findings

MODULE = """
    import math
    import torch
    from torch import nn


    class M(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.weights = nn.Parameter(torch.ones(6))
            self.table = nn.Parameter(torch.ones(n, 4))
            self.register_buffer("bins", torch.linspace(0, 1, 6))

        def forward(self, x, y):
            q, v = {operands}
            w = torch.softmax(q @ y.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
            return w @ v
"""
LOST = "have two dimensions or more"
# The operands, and the status or a part of the message.
OPERANDS = {
    "matrices": ("x, y", "safe"),
    "numbers in a row": ("x, torch.arange(y.size(-2), dtype=x.dtype)", "has one dimension"),
    "a row of the constructor": ("x, self.bins.to(x.dtype)", "has one dimension"),
    "a parameter of one dimension": ("x, self.weights", "has one dimension"),
    "a parameter of two dimensions": ("x, self.table", "safe"),
    "an entry": ("x, y[:, 0]", LOST),
    "a mean": ("x.mean(0), y", LOST),
    "a mean that keeps its dimension": ("x.mean(0, keepdim=True), y", "safe"),
    "a dimension that is removed and added": ("x[0].unsqueeze(0), y", "safe"),
    "the entry of a query": ("x[0] * 2, y", LOST),
    "a slice": ("x[:1], y[:, :2]", "safe"),
}


@pytest.mark.parametrize("operands, expected", OPERANDS.values(), ids=OPERANDS)
def test_operands_of_one_dimension_are_no_matrices(operands: str, expected: str) -> None:
    (finding,) = (f for f in findings(MODULE.format(operands=operands)) if f.code == "AF101")
    expected = expected.replace("have two", "has two")
    assert finding.status == expected or expected in finding.message, finding.message


def test_operands_that_lose_a_dimension_together_fit() -> None:
    text = MODULE.replace("def forward(self, x, y)", "def forward(self, qkv)").replace("y.trans", "k.trans")
    (finding,) = findings(text.replace("q, v = {operands}", "q, k, v = qkv[0], qkv[1], qkv[2]"))
    assert finding.status == "safe", finding.message
