"""A bias that the query's own module learns is passed without a cast; any other is cast if necessary."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import assert_same, rewritten, source

HEAD = source("""
    import torch
    import torch.nn.functional as F
    from torch import nn


    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)
            self.bias = nn.Embedding(25, 2)
            self.table = nn.Parameter(torch.randn(25, 2))
            self.wide = nn.Parameter(torch.randn(2, 5, 5, dtype=torch.float64))
            self.register_buffer("index", torch.arange(25).view(5, 5))
            self.register_buffer("counts", torch.arange(25).view(5, 5))

        def forward(self, x):
            q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            attn = q @ k.transpose(-2, -1) * 0.5
""")
END = "        attn = attn.softmax(dim=-1)\n        return attn @ v\n"
BIASES = {
    "attn = attn + self.bias(self.index).permute(2, 0, 1)": False,
    "attn = attn + self.table[self.index.view(-1)].view(5, 5, 2).permute(2, 0, 1).contiguous()": False,
    "attn = attn + self.table[self.index].permute(2, 0, 1).unsqueeze(0)": False,
    "attn = attn + self.counts": True,
    "attn = attn + self.wide": True,
    "attn = (attn + self.table[self.index].permute(2, 0, 1)).float().to(v.dtype)": True,
}


@pytest.mark.parametrize("line", BIASES)
def test_a_learned_bias_is_not_cast(line: str) -> None:
    before = HEAD + f"        {line}\n" + END
    after = rewritten(before)
    assert (".to(" in after.partition("attn_mask=")[2]) is BIASES[line] or "float()" in line
    if "float()" not in line:
        assert_same(before, after, "Attend", [torch.randn(2, 5, 8, dtype=torch.float64)])
