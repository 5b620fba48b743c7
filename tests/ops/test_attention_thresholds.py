"""Which way attention goes on a CPU, by size, dtype and what is asked of it."""

from __future__ import annotations

import pytest
import torch

from autofuse.ops import attention_thresholds as thresholds
from autofuse.ops.attention_thresholds import DROPPED, HALF, LEARNED, STEPS, blocks_are_slower, steps_are_slower
from autofuse.torch_private import names


def chosen(dtype: torch.dtype, size: int, drops: bool = False, learned: bool = False, width: int = 1) -> str:
    query, key = torch.empty(1, 1, 1, width, device="meta"), torch.empty(1, 1, size, width, device="meta")
    if not steps_are_slower(query, key, dtype, drops, learned):
        return "steps"
    return "torch" if blocks_are_slower(query, key, dtype, drops, learned) else "blocks"


@pytest.mark.parametrize("unfused", [False, True])
def test_single_precision_leaves_the_flash_kernel_for_what_it_does_not_take(
    unfused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "flash_is_slow_in_half", lambda: unfused)
    single = torch.float32
    assert chosen(single, 2**30) == "torch"
    assert [chosen(single, n, drops=True) for n in (DROPPED - 1, DROPPED)] == ["torch", "blocks"]
    assert [chosen(single, n, learned=True) for n in (LEARNED - 1, LEARNED)] == ["torch", "blocks"]


def test_half_precision_goes_by_the_formula_then_by_blocks_where_the_flash_kernel_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half, sizes = torch.bfloat16, (HALF // 4, HALF, STEPS, STEPS + 1)
    monkeypatch.setattr(thresholds, "flash_is_slow_in_half", lambda: True)
    assert [chosen(half, n) for n in sizes] == ["torch", "steps", "steps", "blocks"]
    assert chosen(half, HALF // 16, width=64) == "steps", "one query of many keys"
    monkeypatch.setattr(thresholds, "flash_is_slow_in_half", lambda: False)
    assert {chosen(half, n) for n in sizes} == {"torch"}


def test_a_cpu_that_says_nothing_of_itself_is_taken_for_one_with_a_good_flash_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("is_avx512_bf16_supported", "is_amx_tile_supported"):
        monkeypatch.setattr(thresholds, name, names.NAMES[name].instead("it is not there"))
    assert thresholds.flash_is_slow_in_half.__wrapped__() is False
