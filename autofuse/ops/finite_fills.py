"""Finite fills: when kernels may leave out the scores that a program filled with a finite number.

A score that is filled with -1e9 still takes part in the softmax. Next to much higher scores its weight is 0. In a row
of fills only, its weight equals that of the others. Kernels leave out dropped scores, which is correct only in the
first case. On a CPU the operands show which case it is, because reading them needs no synchronization. Elsewhere the
fill must be so low that rounding loses the scores near it. If neither holds, attention is computed in steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autofuse.ops.known_masks import keeps_in_each_row
from autofuse.ops.masks import causal, masked
from autofuse.ops.readable import can_look
from autofuse.torch_private import functional as F

UNDERFLOWS = 746.0  # exp(-746) is 0 in float64, and so in every dtype
_BIAS = -512.0  # a row of an added mask whose greatest entry is below this contains fills only
_SPACING = 4.0  # the distance of neighbouring numbers near the fill: one step changes a weight by exp(4)


def vanishes(fill: float | None, dtype: torch.dtype) -> bool:
    """Whether numbers near `fill` are so far apart in `dtype` that rounding loses any score added to it."""
    return fill is None or -fill * torch.finfo(dtype).eps >= _SPACING


@torch.no_grad()
def weighs_nothing(fill: float | None, query: Tensor, key: Tensor, scale: float | Tensor, dtype: torch.dtype) -> bool:
    """Whether a dropped score has no weight next to a kept one, if `fill` replaced it or was added to it."""
    if vanishes(fill, dtype):
        return True
    if fill is None or not can_look(query, key, scale if isinstance(scale, Tensor) else None):
        return False
    return -fill > 2 * _greatest_score(query, key, scale) + UNDERFLOWS


def _greatest_score(query: Tensor, key: Tensor, scale: float | Tensor) -> float:
    """An upper bound of all scores (Cauchy-Schwarz inequality); nan if an operand contains nan."""
    if not query.numel() or not key.numel():
        return 0.0
    factor = float(scale.abs().max()) if isinstance(scale, Tensor) else abs(scale)
    return factor * float(torch.linalg.vector_norm(query, dim=-1).amax() * torch.linalg.vector_norm(key, dim=-1).amax())


@torch.no_grad()
def is_exact_as_sum(
    query: Tensor, key: Tensor, scale: float | Tensor, mask: Tensor, kept: Tensor | None, fill: float | None,
    dtype: torch.dtype, gradients: bool,
) -> bool:  # fmt: skip
    """Whether a kernel that adds `mask` to all scores computes what the program computes, results and gradients.

    If the operands cannot be read, rows of fills only get the weights that the program's own rounding gives them. Their
    queries and keys then get no gradient, although the program may give them one.

    Args:
        query: shape (..., T, d).
        key: shape (..., S, d).
        scale: the factor of the scores.
        mask: the mask that is added.
        kept: where it is False, the program overwrote the score before it added `mask`.
        fill: the number that overwrote those scores, if it is one number.
        dtype: the dtype in which attention is computed.
        gradients: whether gradients are needed.
    """
    if not mask.dtype.is_floating_point or not mask.numel():
        return kept is None
    if not can_look(query, key, mask, kept, scale if isinstance(scale, Tensor) else None):
        return kept is None or fill is not None and vanishes(fill, dtype)
    if kept is None and keeps_in_each_row(mask):
        return True
    greatest = mask.amax(-1)
    if kept is None and float(greatest.min()) >= _BIAS:  # the usual case
        return True
    of_fills = (greatest < _BIAS) & (greatest > -math.inf)
    if kept is None:
        if gradients:
            return not bool(of_fills.any())
        # Rounding loses scores next to the lowest numbers; kernels and the program both give such rows even weights.
        return not bool((of_fills & (greatest > torch.finfo(mask.dtype).min / 4)).any())
    kept = kept.expand(torch.broadcast_shapes(kept.shape, mask.shape))  # type: ignore[no-untyped-call]
    overwritten = mask.masked_fill(kept, -math.inf).amax(-1)
    counted = mask.masked_fill(~kept, -math.inf).amax(-1)
    least = 2 * _greatest_score(query, key, scale) + UNDERFLOWS
    return bool((((counted - overwritten > least) | (overwritten == -math.inf)) & ~of_fills).all())


def attention_step_by_step(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | Tensor, p: float, is_causal: bool,
    fill: float | None, kept: Tensor | None, dtypes: tuple[torch.dtype, torch.dtype],
) -> Tensor:  # fmt: skip
    """softmax(query @ key.mT * scale, masked) @ value, with dropped scores as the program has them.

    `dtypes` holds the dtype to compute in and that of the result. Rows that contain only -inf give 0.
    """
    query, key, value = (t.to(dtypes[0]) for t in (query, key, value))
    key, value = (for_each_head(t, query) for t in (key, value))
    scores = torch.matmul(query, key.mT) * scale
    if is_causal:
        mask = causal(mask, query.shape[-2], key.shape[-2], query.device)
    if kept is not None:
        scores = scores.masked_fill(~kept, 0.0)
    scores = masked(scores, mask, fill)
    empty = (scores.detach() == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    return torch.matmul(F.dropout(weights, p).to(value.dtype), value).to(dtypes[1])


def for_each_head(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values, repeated if several heads of the query share each of them."""
    if min(x.ndim, query.ndim) < 3 or not 1 < x.shape[-3] < query.shape[-3]:
        return x
    return x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)
