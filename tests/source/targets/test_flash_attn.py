"""The target `flash-attn`: the printed call computes the same, and an unsupported call is left with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.source.rewriting import assert_same, findings, rewritten, source
from tests.source.targets.programs import HEAD, NORMS, stand_in

TARGET = "flash-attn"
PLAIN = HEAD + source("""
    class Attend(nn.Module):
        def forward(self, q, k, v):
            # of every head
            scores = q @ k.mT / math.sqrt(q.size(-1))
            return F.softmax(scores, dim=-1) @ v
""")
FLAT = HEAD + source("""
    class Attend(nn.Module):
        def forward(self, q, k, v):
            return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1), v)
""")
CAUSAL = HEAD + source("""
    class Attend(nn.Module):
        def __init__(self, dim, heads, p):
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(dim, 3 * dim)
            self.drop = nn.Dropout(p)
            self.register_buffer("tril", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            scores = q @ k.transpose(-2, -1) * 0.3
            scores = scores.masked_fill(self.tril[:, :, :T, :T] == 0, float("-inf"))
            return (self.drop(F.softmax(scores, dim=-1)) @ v).transpose(1, 2).reshape(B, T, C)
""")
MASKED = HEAD + source("""
    class Attend(nn.Module):
        def forward(self, q, k, v, mask):
            scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(mask == 0, float("-inf"))
            return F.softmax(scores, dim=-1) @ v
""")
LONGER_KEYS = HEAD + source("""
    class Attend(nn.Module):
        def forward(self, q, k, v):
            t, s = q.size(-2), k.size(-2)
            mask = torch.ones(t, s, dtype=torch.bool).tril()
            scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~mask, float("-inf"))
            return F.softmax(scores, dim=-1) @ v
""")


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    **others: Any,
) -> Tensor:  # fmt: skip
    """Operands are (batch, length, heads, head_dim); the causal mask is aligned at the last query and the last key."""
    assert not others and q.ndim == 4
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(k.shape[-2] - q.shape[-2]) if causal else None
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, scale=softmax_scale).transpose(1, 2)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "flash_attn", flash_attn_func=flash_attn_func)


def tensors(*shape: int) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)]


def test_heads_are_in_the_dimension_that_the_library_needs() -> None:
    text = rewritten(PLAIN, target=TARGET)
    assert text.count("from flash_attn import flash_attn_func\n") == 1
    assert "q.transpose(1, 2)" in text and "softmax_scale" not in text and "# of every head" in text
    assert_same(PLAIN, text, "Attend", tensors(2, 3, 5, 4))


def test_operands_without_heads_get_one_head() -> None:
    text = rewritten(FLAT, target=TARGET)
    assert "q.unsqueeze(2)" in text and ".squeeze(2)" in text and "softmax_scale=1.0" in text
    assert_same(FLAT, text, "Attend", tensors(2, 5, 4))


def test_a_proved_causal_mask_becomes_causal_true() -> None:
    text = rewritten(CAUSAL, target=TARGET)
    assert (
        "causal=True" in text and "softmax_scale=0.3" in text and "dropout_p=self.drop.p if self.drop.training" in text
    )
    assert_same(CAUSAL, text, "Attend", tensors(2, 8, 12)[:1], 12, 3, 0.0)


def test_every_edit_states_its_assumptions_and_is_made_only_if_unsafe_edits_are_allowed() -> None:
    (found,) = findings(PLAIN, target=TARGET)
    assert found.status == "unsafe"
    assert "float16 or bfloat16 on CUDA" in found.reason and "(batch, heads, length, head_dim)" in found.reason
    assert rewritten(PLAIN, unsafe=False, target=TARGET) == PLAIN


def test_a_second_run_finds_nothing_to_do() -> None:
    text = rewritten(CAUSAL, target=TARGET)
    assert rewritten(text, target=TARGET) == text


@pytest.mark.parametrize(
    "text, why",
    [
        (MASKED, "has no mask argument"),
        (LONGER_KEYS, "has no mask argument; only a causal mask with as many queries as keys"),
        (NORMS, "the target flash-attn writes attention, not"),
    ],
)
def test_an_unsupported_call_is_left_with_a_reason(text: str, why: str) -> None:
    assert rewritten(text, target=TARGET) == text
    found = findings(text, target=TARGET)
    assert found and {f.status for f in found} <= {"report", "declined"}
    assert any(why in f.reason for f in found)
