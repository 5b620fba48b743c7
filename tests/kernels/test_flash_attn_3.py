"""FlashAttention 3's attention as a provider: like flash-attn 2's, without dropout, on Hopper only."""

from __future__ import annotations

import pytest
import torch

from autofuse.kernels.flash_attn_3 import PROVIDERS
from tests.kernels.agreement import assert_agrees, assert_has_second_derivatives
from tests.kernels.operands import scattered_tensor, tensor
from tests.kernels.test_flash_attn import WINDOWS, grouped_attention, packed_attention, window_mask, windowed_attention

BY_NAME = {provider.operation: provider for provider in PROVIDERS}
pytestmark = pytest.mark.usefixtures("others")


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("operation", ["attention", "soft_capped_attention"])
def test_a_mask_that_is_known_to_be_a_window_is_one(operation: str, window: tuple[int, int]) -> None:
    operands = (scattered_tensor(2, 4, 5, 8), tensor(2, 2, 5, 8), scattered_tensor(2, 2, 5, 8, seed=5))
    given = {"mask": window_mask(5, window), "scale": 0.3} | ({"cap": 2.0} if operation != "attention" else {})
    assert_agrees(BY_NAME[operation], *operands, **given, window=window, formula=windowed_attention)
    assert "windows only" in BY_NAME[operation].check(*operands, **given)
    assert_has_second_derivatives(BY_NAME[operation], *(tensor(1, 2, 5, 8, seed=i) for i in range(3)), **given)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("heads", "keys"), [(4, 5), (2, 7)])
def test_attention_agrees(is_causal: bool, heads: int, keys: int) -> None:
    operands = (scattered_tensor(2, 4, 5, 8), tensor(2, heads, keys, 8), scattered_tensor(2, heads, keys, 8, seed=5))
    assert_agrees(BY_NAME["attention"], *operands, scale=0.3, is_causal=is_causal, formula=grouped_attention)
    assert_has_second_derivatives(BY_NAME["attention"], *(tensor(1, 2, 3, 8, seed=i) for i in range(3)), scale=0.3)


def test_soft_capping_and_packed_sequences_agree() -> None:
    operands = tuple(tensor(2, 3, 5, 8, seed=i) for i in range(3))
    assert_agrees(BY_NAME["soft_capped_attention"], *operands, cap=2.0, scale=0.3)
    starts = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    packed_operands = (tensor(9, 4, 8), tensor(9, 2, 8), tensor(9, 2, 8, seed=3), starts, starts, 5, 5)
    assert_agrees(BY_NAME["varlen_attention"], *packed_operands, scale=0.3, is_causal=False, formula=packed_attention)


def test_dropout_odd_widths_and_wide_heads_are_refused() -> None:
    check = BY_NAME["attention"].check
    q = tensor(2, 3, 5, 8)
    assert "no dropout" in check(q, q, q, dropout_p=0.1, training=True)
    assert check(q, q, q, dropout_p=0.1) == ""
    assert "multiples of 8" in check(*(tensor(2, 3, 5, 12),) * 3)
    assert "at most 256" in check(*(tensor(1, 1, 2, 264),) * 3)
    assert not any(provider.deterministic or provider.default for provider in PROVIDERS)
