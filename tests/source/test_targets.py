"""What each target prints, and that it computes what the original computed."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import assert_same, findings, rewritten, source

HEAD = "import math\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\n"
CAUSAL = HEAD + source("""
    class Attention(nn.Module):
        def __init__(self, dim, heads):
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(dim, 3 * dim)
            self.drop = nn.Dropout(0.0)
            self.register_buffer("tril", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            scores = q @ k.transpose(-2, -1) / math.sqrt(C // self.heads)
            scores = scores.masked_fill(self.tril[:, :, :T, :T] == 0, float("-inf"))
            weights = self.drop(F.softmax(scores, dim=-1))
            return (weights @ v).transpose(1, 2).contiguous().view(B, T, C)
""")
OPTIONAL = HEAD + source("""
    class Attend(nn.Module):
        def forward(self, q, k, v, mask=None):
            scores = q @ k.mT / math.sqrt(q.size(-1))
            if mask is not None:
                scores = scores.masked_fill(mask == 0, -1e9)
            return F.softmax(scores, dim=-1) @ v
""")
FLAT = HEAD + source("""
    class Attend(nn.Module):
        def forward(self, q, k, v):
            return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1), v)
""")
MLP = HEAD + source("""
    class Mlp(nn.Module):
        def __init__(self, dim: int):
            super().__init__()
            self.gate, self.up = nn.Linear(dim, dim), nn.Linear(dim, dim)

        def forward(self, x):
            return F.silu(self.gate(x)) * self.up(x)
""")


def tensors(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)]


@pytest.mark.parametrize("target", ["torch", "autofuse"])
def test_a_causal_mask_becomes_is_causal_if_the_sizes_prove_it(target: str) -> None:
    text = rewritten(CAUSAL, unsafe=False, target=target)
    assert "is_causal=True" in text and "attn_mask" not in text and "mask=" not in text
    assert_same(CAUSAL, text, "Attention", tensors(2, 8, 12)[:1], 12, 3)


def test_a_mask_stays_a_mask_if_the_lengths_may_differ() -> None:
    text = rewritten(
        HEAD
        + source("""
        class A(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("tril", torch.tril(torch.ones(16, 16)))

            def forward(self, q, k, v):
                t = q.size(-2)
                return (q @ k.mT).masked_fill(self.tril[:t, :t] == 0, float("-inf")).softmax(-1) @ v
    """)
    )
    assert "attn_mask=self.tril[:t, :t] != 0" in text


@pytest.mark.parametrize("rows", ["kept", "dropped", "none"])
def test_a_finite_fill_gives_equal_weights_and_no_gradient_in_rows_without_kept_entries(rows: str) -> None:
    text = rewritten(OPTIONAL, unsafe=False)
    mask = torch.ones(2, 1, 5, 5, dtype=torch.long)
    mask[..., 3:] = 0
    if rows == "dropped":
        mask[:, :, 2] = 0
    assert text != OPTIONAL
    assert_same(OPTIONAL, text, "Attend", [*tensors(2, 3, 5, 4), None if rows == "none" else mask])


def test_operands_with_three_dimensions_get_a_head_dimension() -> None:
    text = rewritten(FLAT)
    assert "q.unsqueeze(1)" in text and ".squeeze(1)" in text
    assert_same(FLAT, text, "Attend", tensors(2, 5, 4))


def test_the_default_scale_is_left_out() -> None:
    assert "scale" not in rewritten(OPTIONAL).split("scaled_dot_product_attention(")[1]


def test_an_operation_that_torch_lacks_is_declined_for_the_target_torch() -> None:
    (found,) = findings(MLP, target="torch")
    assert found.status == "report" and "a `--target` that has one" in found.reason


def test_by_default_an_operation_that_torch_lacks_uses_autofuse_and_is_unsafe() -> None:
    (found,) = findings(MLP)
    assert found.status == "unsafe" and "needs autofuse where it runs" in found.reason
    assert rewritten(MLP, unsafe=False) == MLP
    text = rewritten(MLP)
    assert "from autofuse import ops\n" in text and "ops.gated_mlp(" in text
    assert_same(MLP, text, "Mlp", tensors(2, 6)[:1], 6)


def test_a_safe_edit_inside_an_unsafe_one_is_made_if_the_unsafe_one_is_not() -> None:
    text = MLP.replace("F.silu(self.gate(x))", "(g := self.gate(x)) * torch.sigmoid(g)")
    assert sorted((f.code, f.status) for f in findings(text)) == [("AF302", "safe"), ("AF303", "unsafe")]
    assert "F.silu(" in rewritten(text, unsafe=False) and "ops" not in rewritten(text, unsafe=False)
    assert "ops.gated_mlp(" in rewritten(text) and "silu(" not in rewritten(text)
