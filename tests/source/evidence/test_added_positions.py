"""An edit that rounds a bias of position numbers to the dtype of the query is unsafe.

Each bias for 300 positions is added to scores under autocast. Biases that count positions change by more than a
rounding error. The others do not, and their edits are safe.
"""

from __future__ import annotations

import pytest
import torch

from tests.source.evidence.mixed_dtypes import outcome
from tests.source.rewriting import findings, rewritten, source

COUNTS = (
    "0.37 * (p[None, :] - p[-1]).float()",
    "-(p[:, None] - p[None, :]).abs() * 0.3",
    "torch.where(p[:, None] >= p, 0.3 * p.float(), -1e9)",
    "torch.cumsum(torch.ones(300), 0)[None] * 0.3",
    "distances(300)",
    "self.slope * (p[None] - p[:, None])",
    "self.alibi",
    "self.made",
)
EXACT = (
    "torch.where(p[:, None] >= p, 0.0, float('-inf'))",
    "(0.37 * (p[None, :] - p[-1])).to(q.dtype)",
    "-torch.arange(300, dtype=q.dtype)[None] * 0.3",
    "self.table[(p[:, None] - p).abs()]",
    "self.emb((p[:, None] - p).abs())[..., 0]",
    "self.table[self.index]",
    "self.tri",
    "x.new_zeros(1, 1)",
)


def program(bias: str) -> str:
    return source(f"""
        import torch
        from torch import nn

        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.qkv = nn.Linear(16, 48)
                self.table = nn.Parameter(torch.linspace(-1, 1, 300))
                self.emb = nn.Embedding(300, 1)
                distance = torch.arange(300)[None] - torch.arange(300)[:, None]
                self.register_buffer("index", distance.abs())
                self.register_buffer("alibi", distance.float() * 0.3)
                self.register_buffer("made", distances(300))
                self.register_buffer("slope", torch.tensor([[0.3]]))
                self.register_buffer("tri", torch.triu(torch.full((300, 300), float("-inf")), 1))

            def forward(self, x):
                q, k, v = self.qkv(x).chunk(3, -1)
                p = torch.arange(x.size(1))
                s = q @ k.transpose(-2, -1) / 4 + {bias}
                return s.softmax(-1) @ v

        def distances(n):
            d = torch.arange(n)
            return 0.3 * (d[None] - d[:, None])
    """)


def run(names: dict[str, object]) -> torch.Tensor:
    torch.manual_seed(0)
    module = names["Attention"]()  # type: ignore[operator]
    return module(torch.randn(1, 300, 16, generator=torch.Generator().manual_seed(0)))  # type: ignore[no-any-return]


def error(before: str, after: str) -> float:
    """Returns the largest difference under autocast, relative to the largest number."""
    (_, (first, *_), _), (_, (second, *_), _) = (outcome(text, run, True) for text in (before, after))
    return float((first.float() - second.float()).abs().max() / first.float().abs().max())


@pytest.mark.parametrize("bias", COUNTS)
def test_an_edit_that_rounds_a_position_bias_is_unsafe(bias: str) -> None:
    (finding,) = findings(program(bias))
    assert finding.status == "unsafe" and "may be rounded to the dtype of query, key and value" in finding.message
    assert rewritten(program(bias), unsafe=False) == program(bias)


@pytest.mark.parametrize("bias", EXACT)
def test_other_biases_stay_safe(bias: str) -> None:
    before = program(bias)
    (finding,) = findings(before)
    assert finding.status == "safe", finding.message
    after = rewritten(before, unsafe=False)
    assert after != before and error(before, after) < 2e-2
