"""Finite fills: when a kernel may leave out what a program dropped by one, and attention step by step where it may not.

A score that is filled with -1e9 takes part in the softmax like any other. It weighs nothing beside scores far above it,
and as much as the others in a row that was filled whole. Kernels leave dropped scores out, which is the same only in
the first case. Whether it is one can be read in the operands where reading is no wait, on a CPU; elsewhere the fill
has to be so low that scores near it are themselves lost to rounding. Must not know which kernel is called.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.ops.known_masks import keeps_in_each_row
from autofuse.ops.masks import causal, masked
from autofuse.ops.readable import can_look

UNDERFLOWS = 746.0  # exp(-746) is 0 in float64, and so in every dtype
_BIAS = -512.0  # a row in which nothing that is added reaches this is one of fills
_SPACING = 4.0  # of scores as low as the fill: one step changes a weight by a factor of exp(4)


def vanishes(fill: float | None, dtype: torch.dtype) -> bool:
    """Whether numbers of the size of `fill` lie so far apart in `dtype` that no score beside them means anything."""
    return fill is None or -fill * torch.finfo(dtype).eps >= _SPACING


@torch.no_grad()
def weighs_nothing(fill: float | None, query: Tensor, key: Tensor, scale: float | Tensor, dtype: torch.dtype) -> bool:
    """Whether a dropped score has no weight beside one that is kept, be it filled with `fill` or the sum with it."""
    if vanishes(fill, dtype):
        return True
    if fill is None or not can_look(query, key, scale if isinstance(scale, Tensor) else None):
        return False
    return -fill > 2 * _greatest_score(query, key, scale) + UNDERFLOWS


def _greatest_score(query: Tensor, key: Tensor, scale: float | Tensor) -> float:
    """No score is larger (Cauchy and Schwarz); nan where an operand is."""
    if not query.numel() or not key.numel():
        return 0.0
    factor = float(scale.abs().max()) if isinstance(scale, Tensor) else abs(scale)
    return factor * float(torch.linalg.vector_norm(query, dim=-1).amax() * torch.linalg.vector_norm(key, dim=-1).amax())


@torch.no_grad()
def is_exact_as_sum(
    query: Tensor, key: Tensor, scale: float | Tensor, mask: Tensor, kept: Tensor | None, fill: float | None,
    dtype: torch.dtype, gradients: bool,
) -> bool:  # fmt: skip
    """Whether a kernel that adds `mask` to all scores gives what the program gives, in its results and its gradients.

    Where `kept` is False the program had overwritten the score before `mask` was added; `fill` is what with, where that
    is one number; `gradients`, whether any are wanted. Where the operands cannot be read, rows in which only fills are
    left come out with the weights that the program's own rounding gives them, and their queries and keys without the
    gradient that it lets through.
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
        # beside the lowest numbers scores are rounded away, and kernels give such rows even weights as the program does
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
    """softmax(query @ key.mT * scale, masked) @ value with dropped scores where the program had them.

    dtypes: to compute in, and of the result. Rows that hold nothing but -inf give 0.
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
    """Keys or values repeated where several heads of the query share each."""
    if min(x.ndim, query.ndim) < 3 or not 1 < x.shape[-3] < query.shape[-3]:
        return x
    return x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)
