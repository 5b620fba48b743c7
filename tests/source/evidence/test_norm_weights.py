"""The message of a residual add with a norm says that the weight has the dtype of the sum."""

from __future__ import annotations

import torch
from torch import nn

from tests.source.rewriting import findings, module_of, rewritten

BLOCK = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x, residual):
        x = x + residual
        return self.norm(x), x
"""


def test_a_weight_of_another_dtype_is_named() -> None:
    (finding,) = findings(BLOCK)
    assert finding.status == "unsafe" and "the weight of the norm has the dtype of the sum" in finding.message


def test_the_assumption_matters() -> None:
    x = torch.linspace(-1, 1, 16).view(2, 8)
    before, after = (module_of(text).Block() for text in (BLOCK, rewritten(BLOCK)))
    assert isinstance(before, nn.Module) and torch.allclose(before(x, x)[0], after(x, x)[0], atol=1e-6)
    assert before(x.bfloat16(), x.bfloat16())[0].dtype != after(x.bfloat16(), x.bfloat16())[0].dtype
