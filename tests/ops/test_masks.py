"""autofuse.ops.masked, and the conversion of masks that a kernel does not support."""

from __future__ import annotations

import math

import torch

from autofuse import ops
from autofuse.ops.masks import additive, causal, even_where_nothing_is_kept

T, S = 3, 4


def test_masked_keeps_where_true_adds_otherwise_and_does_nothing_without_a_mask() -> None:
    scores, keep = torch.randn(2, T, S), torch.rand(T, S) > 0.5
    assert ops.masked(scores) is scores
    assert torch.equal(ops.masked(scores, keep), torch.where(keep, scores, -math.inf))
    assert torch.equal(ops.masked(scores, keep, fill=-1e9), torch.where(keep, scores, -1e9))
    assert torch.equal(ops.masked(scores, torch.ones(S)), scores + 1)


def test_causal_joins_a_mask_of_either_kind() -> None:
    triangle = torch.ones(T, S, dtype=torch.bool).tril()
    padding = torch.tensor([True, True, False, True])
    device = torch.device("cpu")
    assert torch.equal(causal(None, T, S, device), triangle)
    assert torch.equal(causal(padding, T, S, device), triangle & padding)
    assert torch.equal(causal(torch.ones(S), T, S, device), torch.where(triangle, 1.0, -math.inf))


def test_only_rows_that_keep_nothing_attend_to_everything() -> None:
    query, mask = torch.randn(T, 2), torch.tensor([[True] * S, [False] * S, [False, True, False, False]])
    opened, open_mask = even_where_nothing_is_kept(query, mask)
    assert torch.equal(opened, query * torch.tensor([[1.0], [0.0], [1.0]]))
    assert torch.equal(open_mask, mask | torch.tensor([[False], [True], [False]]))


def test_a_narrower_additive_mask_keeps_infinities_and_the_steps_of_a_row() -> None:
    query = torch.randn(T, 2, dtype=torch.float16)
    rows = torch.tensor([[1e6, 1e6 + 1, 1e6 + 2, -math.inf], [-math.inf] * S, [torch.finfo(torch.float32).min] * S])
    same, mask = additive(query, rows)
    assert mask.dtype is torch.float16
    assert torch.equal(mask[0], torch.tensor([-2.0, -1.0, 0.0, -math.inf], dtype=torch.float16))
    assert mask[1].isneginf().all() and torch.equal(same[:2], query[:2])
    assert not mask[2].any() and not same[2].any()
