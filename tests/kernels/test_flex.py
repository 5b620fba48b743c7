"""FlexAttention: its function of each score, refused calls, and its forward pass on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autofuse.kernels import flex
from autofuse.kernels.packages import COMPILER
from autofuse.ops import reference

B, H, G, T, S, D = 2, 4, 2, 16, 16, 16


@pytest.fixture
def operands() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(B, H, T, D), torch.randn(B, G, S, D), torch.randn(B, G, S, D)


@pytest.mark.parametrize("mask", [None, (S,), (T, S), (B, 1, 1, S), (B, H, T, S)])
@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("is_causal", [False, True])
def test_its_function_of_a_score_equals_the_formula(
    operands: tuple[Tensor, ...], mask: tuple[int, ...] | None, cap: float, is_causal: bool
) -> None:
    query, key, _value = operands
    for given in (None,) if mask is None else (torch.rand(mask) > 0.3, torch.randn(mask)):
        modified = flex.score_mod(given, is_causal, 0.3, cap)
        scores = query @ key.repeat_interleave(H // G, 1).mT
        found = modified(scores, *torch.meshgrid(*(torch.arange(n) for n in (B, H, T, S)), indexing="ij"))
        expected = scores * 0.3
        expected = torch.tanh(expected) * cap if cap else expected
        if is_causal:
            expected = expected.masked_fill(torch.ones(T, S, dtype=torch.bool).triu(1), -torch.inf)
        torch.testing.assert_close(found, reference.masked(expected, given))


@pytest.mark.skipif(bool(COMPILER.missing()), reason="there is no C++ compiler")
def test_it_computes_attention_on_a_cpu(operands: tuple[Tensor, ...]) -> None:
    query, key, value = operands
    window = (torch.arange(T)[:, None] - torch.arange(S)).abs() < 4
    found = flex.attend(query, key, value, window, False, 0.3, 2.0)
    key, value = (x.repeat_interleave(H // G, 1) for x in (key, value))
    expected = reference.soft_capped_attention(query, key, value, cap=2.0, scale=0.3, mask=window)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_refused_calls_have_a_reason(operands: tuple[Tensor, ...]) -> None:
    query, key, value = operands
    assert "dropout" in flex.refusal(query, key, value, None, 0.1)
    assert "empty" in flex.refusal(query[:0], key, value, None, 0.0)
    assert "backward" in flex.refusal(query.requires_grad_(), key, value, None, 0.0)
    assert "gradient" in flex.refusal(query.detach(), key, value, torch.zeros(T, S, requires_grad=True), 0.0)
