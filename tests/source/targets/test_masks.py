"""Masks of attention without heads. torch's fused kernels need heads, so operands and mask get a dimension for them."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import assert_same, module_of, rewritten, source

HEAD = "import torch\nimport torch.nn.functional as F\nfrom einops import repeat\n\n\n"
SCORES = "scores = torch.bmm(q, k.transpose(1, 2)) * q.size(-1) ** -0.5"
KEEP = torch.ones(4, 5).tril().bool()
PAIR = torch.stack([KEEP, ~KEEP]).logical_or(torch.arange(5) == 0)  # no row is empty

# The signature, what happens to the scores, the masks to call it with, and the mask that the edit must write.
MASKS = {
    "a bias of unknown rank": ("bias", "scores = scores + bias", [KEEP.float(), PAIR.float()], ".unsqueeze(-3)"),
    "an optional mask of unknown rank": (
        "mask=None",
        "if mask is not None:\n        scores = scores.masked_fill(mask, float('-inf'))",
        [None, ~KEEP, ~PAIR],
        "(~mask).unsqueeze(-3) if mask is not None else None",
    ),
    "an optional bias of unknown rank": (
        "bias=None",
        "if bias is not None:\n        scores = scores + bias",
        [None, KEEP.double(), PAIR.double()],
        ".unsqueeze(-3)",
    ),
    "a mask of three dimensions": (
        "mask",
        "scores = scores.masked_fill(mask.view(2, 4, 5), float('-inf'))",
        [~PAIR],
        ".unsqueeze(1)",
    ),
    "a mask of two dimensions": (
        "mask",
        "scores = scores.masked_fill(mask.view(4, 5), float('-inf'))",
        [~KEEP],
        "attn_mask=~mask.view(4, 5)",
    ),
    "a finite fill, and a row without keys": (
        "mask",
        "scores = scores.masked_fill(repeat(mask, 'i j -> b i j', b=2), -1e9)",
        [~KEEP, torch.ones(4, 5).bool()],
        ".unsqueeze(-3)",
    ),
    "an optional finite fill, and a row without keys": (
        "mask=None",
        "if mask is not None:\n        scores = scores.masked_fill(mask, -1e9)",
        [None, ~KEEP, ~PAIR, torch.ones(2, 4, 5).bool()],
        ".unsqueeze(-3)",
    ),
}


def program(argument: str, change: str) -> str:
    lines = (f"def f(q, k, v, {argument}):", SCORES, change, "w = torch.softmax(scores, dim=-1)")
    return HEAD + "\n    ".join((*lines, "return torch.bmm(w, v)")) + "\n"


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_attention_without_heads_gets_a_dimension_for_them(name: str) -> None:
    argument, change, masks, expected = MASKS[name]
    text = program(argument, change)
    after = rewritten(source(text))
    assert expected in after and after.count("scaled_dot_product_attention") == 1, after
    functions = [module_of(t).f for t in (text, after)]
    for mask in masks:
        results = [_with_gradients(f, mask) for f in functions]
        torch.testing.assert_close(*results, atol=1e-12, rtol=1e-10)


def _with_gradients(function: object, mask: torch.Tensor | None) -> list[torch.Tensor]:
    assert callable(function)
    generator = torch.Generator().manual_seed(0)
    operands = [torch.randn(2, n, 8, dtype=torch.float64, generator=generator) for n in (4, 5, 5)]
    operands = [o.requires_grad_() for o in operands]
    result = function(*operands, mask)
    result.mul(torch.arange(8)).sum().backward()
    gradients = [o.grad for o in operands]
    return [result, *(g for g in gradients if g is not None)]


RELATIVE = source("""
    import torch
    from torch import nn

    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias, self.drop = nn.Parameter(torch.ones(1, 2, 1, 4)), nn.Dropout(0.0)
            self.scale = 2.0

        def forward(self, q, k, v, positions, mask=None):
            content = torch.matmul(q + self.bias, k.transpose(-2, -1))
            score = (content + positions) / self.scale
            if mask is not None:
                score.masked_fill_(mask > 0, -1e9)
            weights = self.drop(score.softmax(-1))
            return torch.matmul(weights, v)
""")


def test_a_query_without_a_name_gets_one_if_a_mask_is_cast_to_its_dtype() -> None:
    after = rewritten(RELATIVE)
    assert "query = q + self.bias\n" in after and after.count("q + self.bias") == 1
    assert ".masked_fill(mask > 0, -1e9).to(query.dtype)" in after and "torch.where" not in after
    operands = [torch.randn(2, 2, n, 4).double() for n in (3, 5, 5)]
    for mask in (None, torch.eye(3, 5).double()):
        assert_same(RELATIVE, after, "Attend", [*operands, torch.randn(2, 2, 3, 5).double(), mask])
