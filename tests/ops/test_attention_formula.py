"""Attention in steps against its reference: rows without keys, shared keys, scales that are powers of two or not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autofuse.ops import reference
from autofuse.ops.attention_formula import attention_in_steps

B, H, S, D, DV = 2, 4, 7, 8, 6
Agree = Callable[..., None]
MASKS: dict[str, Callable[[int], Any]] = {
    "none": lambda t: None,
    "keys": lambda t: torch.rand(B, 1, 1, S) > 0.3,
    "rows without keys": lambda t: torch.rand(B, H, t, S) > 0.8,
    "nothing": lambda t: torch.zeros(1, S, dtype=torch.bool),
    "a bias with rows of -inf": lambda t: torch.randn(t, S).masked_fill(torch.rand(t, 1) > 0.5, -math.inf),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("groups", [H, 2, 1])
@pytest.mark.parametrize("t", [1, 5])
@pytest.mark.parametrize("scale", [0.25, 0.3])
def test_results_and_gradients_agree(assert_agree: Agree, mask: Any, groups: int, t: int, scale: float) -> None:
    given = mask(t)
    query, key, value = (torch.randn(B, h, n, w) for h, n, w in ((H, t, D), (groups, S, D), (groups, S, DV)))
    steps = lambda q, k, v: attention_in_steps(q, k, v, given, False, scale)
    exact = lambda q, k, v: reference.attention(q, k, v, mask=given, scale=scale)
    assert_agree(steps, exact, query, key, value, terms=S + D)


def test_causal_and_a_bias_that_learns_agree(assert_agree: Agree) -> None:
    query, key, value = (torch.randn(B, H, 5, D) for _ in range(3))
    causal = lambda q, k, v: attention_in_steps(q, k, v, None, True, 0.3)
    assert_agree(causal, lambda *x: reference.attention(*x, scale=0.3, is_causal=True), query, key, value, terms=13)
    biased = lambda q, k, v, m: attention_in_steps(q, k, v, m, False, 0.3)
    exact = lambda q, k, v, m: reference.attention(q, k, v, mask=m, scale=0.3)
    assert_agree(biased, exact, query, key, value, torch.randn(H, 5, 5), terms=5 * B * H)
