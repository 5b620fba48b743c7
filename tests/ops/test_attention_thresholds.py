"""Which way attention takes on a CPU, by size, dtype and options."""

from __future__ import annotations

import pytest
import torch

from autofuse.ops import attention_thresholds as thresholds
from autofuse.ops.attention_thresholds import DROPPED, HALF, LEARNED, STEPS, blocks_are_slower, steps_are_slower
from autofuse.torch_private import names


def chosen_way(
    dtype: torch.dtype, size: int, has_dropout: bool = False, mask_gets_gradient: bool = False, width: int = 1
) -> str:
    query, key = torch.empty(1, 1, 1, width, device="meta"), torch.empty(1, 1, size, width, device="meta")
    if not steps_are_slower(query, key, dtype, has_dropout, mask_gets_gradient):
        return "steps"
    return "torch" if blocks_are_slower(query, key, dtype, has_dropout, mask_gets_gradient) else "blocks"


@pytest.mark.parametrize("unfused", [False, True])
def test_single_precision_uses_another_way_only_for_calls_that_the_flash_kernel_does_not_support(
    unfused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "flash_is_slow_in_half", lambda: unfused)
    single = torch.float32
    assert chosen_way(single, 2**30) == "torch"
    assert [chosen_way(single, n, has_dropout=True) for n in (DROPPED - 1, DROPPED)] == ["torch", "blocks"]
    assert [chosen_way(single, n, mask_gets_gradient=True) for n in (LEARNED - 1, LEARNED)] == ["torch", "blocks"]


def test_half_precision_uses_the_formula_and_then_blocks_if_the_flash_kernel_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half, sizes = torch.bfloat16, (HALF // 4, HALF, STEPS, STEPS + 1)
    monkeypatch.setattr(thresholds, "flash_is_slow_in_half", lambda: True)
    assert [chosen_way(half, n) for n in sizes] == ["torch", "steps", "steps", "blocks"]
    assert chosen_way(half, HALF // 16, width=64) == "steps", "one query of many keys"
    monkeypatch.setattr(thresholds, "flash_is_slow_in_half", lambda: False)
    assert {chosen_way(half, n) for n in sizes} == {"torch"}


def test_an_unknown_cpu_counts_as_one_with_a_fast_flash_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("is_avx512_bf16_supported", "is_amx_tile_supported"):
        monkeypatch.setattr(thresholds, name, names.NAMES[name].replacement("it is missing"))
    assert thresholds.flash_is_slow_in_half.__wrapped__() is False
