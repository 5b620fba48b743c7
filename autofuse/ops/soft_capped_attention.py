"""Attention with soft-capped scores: cap * tanh(scores / cap).

Of torch's kernels only FlexAttention supports it. On a CPU, blocks limit the memory. Elsewhere the formula forms all
scores, unless a measurement selects FlexAttention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.kernels import flex
from autofuse.kernels.attention_layouts import Window
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import FLEX, TORCH
from autofuse.kernels.provider import Provider
from autofuse.ops.attention_blocks import attention_by_blocks
from autofuse.ops.attention_operands import compute_dtype, dtypes_of, is_square_mask, operands, with_heads
from autofuse.ops.attention_thresholds import CAPPED, scores
from autofuse.ops.finite_fills import UNDERFLOWS, for_each_head, is_exact_as_sum, vanishes
from autofuse.ops.kernel_masks import as_kernels_mask, window_of
from autofuse.ops.masks import causal, masked
from autofuse.ops.softmax import masked_softmax
from autofuse.torch_private import functional as F


def soft_capped_attention(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    mask_is_causal: bool = False, kept: Tensor | None = None, repeats: int = 1,
) -> Tensor:  # fmt: skip
    """softmax(cap * tanh(query @ key.mT * scale), masked) @ value.

    Scores that a finite `fill` replaced still take part in the program's softmax. If they may have a weight there, or a
    row contains nothing else, the whole score matrix is formed, as the program does.

    Args:
        query: shape (..., T, d).
        key: shape (..., S, d); leading dimensions broadcast as in matmul, or keys and values have fewer heads.
        value: shape (..., S, dv).
        cap: the bound of the scores.
        scale: includes the division by the cap; a number or a tensor.
        mask: broadcasts to (..., T, S).
        fill: as in `masked_softmax`: without it, a row that keeps nothing is nan.
        dropout_p: the probability with which weights are dropped while `training`.
        training: whether dropout is active.
        is_causal: as in `attention`.
        mask_is_causal: as in `attention`.
        kept: as in `attention`.
        repeats: as in `attention`.

    Returns:
        A tensor of shape (..., T, dv).

    Source: Gemma 2, arXiv:2408.00118, section 2.
    """
    if repeats > 1:
        key, value = with_heads(query, key, value, repeats)
    dtype = dtypes_of(query, key, value)[0]
    # Few scores: the formula is chosen, which treats every mask as the program does. No further checks are needed.
    if query.is_cpu and kept is None and min(query.ndim, key.ndim) >= 2 and scores(query, key) < CAPPED:
        small_result: Tensor = _OP(
            query, key, value, cap=cap, scale=scale, mask=mask, fill=fill, dropout_p=dropout_p, training=training,
            is_causal=is_causal,
        )  # fmt: skip
        return small_result

    def negligible(fill: float | None) -> bool:
        # Capped scores are between -cap and cap. Next to any of them, a fill as low as this has the weight 0.
        return vanishes(fill, dtype) or fill is not None and -fill > 2 * abs(cap) + UNDERFLOWS

    if mask is not None and kept is None and not is_causal:
        if mask_is_causal and is_square_mask(mask, query.shape[-2], key.shape[-2]) and negligible(fill):
            mask, is_causal = None, True
        else:
            mask, is_causal, fill = as_kernels_mask(query, key, mask, fill, negligible)
    if _forms_scores(query, key, value, scale, mask, kept, fill, negligible(fill), dtype):
        return _by_formula(
            query, key, value, cap=cap, scale=scale, mask=mask, fill=fill, dropout_p=dropout_p, training=training,
            is_causal=is_causal, kept=kept,
        )  # fmt: skip
    result: Tensor = _OP(
        query, key, value, cap=cap, scale=scale, mask=mask, fill=fill, dropout_p=dropout_p, training=training,
        is_causal=is_causal, **window_of(query, key, mask, is_causal, negligible),
    )  # fmt: skip
    return result


def _forms_scores(
    query: Tensor, key: Tensor, value: Tensor, scale: float | Tensor, mask: Tensor | None, kept: Tensor | None,
    fill: float | None, negligible: bool, dtype: torch.dtype,
) -> bool:  # fmt: skip
    """Whether a kernel, which leaves out dropped scores, would compute something else than the program."""
    if kept is not None or min(query.ndim, key.ndim, value.ndim) < 2 or key.shape[-2] != value.shape[-2]:
        return True
    if mask is None or mask.dtype is torch.bool:
        return not negligible
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, mask))
    return not is_exact_as_sum(query, key, scale, mask, None, fill, dtype, gradients)


def _by_formula(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    kept: Tensor | None = None, window: Window | None = None,
) -> Tensor:  # fmt: skip
    key, value = (for_each_head(x, query) for x in (key, value))
    scores = torch.tanh(torch.matmul(query, key.mT) * scale) * cap
    if is_causal:
        mask = causal(mask, query.shape[-2], key.shape[-2], query.device)
    if scores.dtype in (torch.float32, torch.float64):  # half precision is normalised in float32
        weights = torch.softmax(masked(scores, mask, fill, kept=kept), -1)
    else:
        weights = masked_softmax(scores, mask, fill=fill, kept=kept)
    return torch.matmul(F.dropout(weights, dropout_p, training).to(value.dtype), value)


def _by_blocks(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    window: Window | None = None,
) -> Tensor:  # fmt: skip
    inputs = operands(query, key, value, mask, scale, is_causal, fill, False)
    p = dropout_p if training else 0.0
    return inputs.restore(
        attention_by_blocks(inputs.query, inputs.key, inputs.value, inputs.mask, p, inputs.is_causal, inputs.scale, cap)
    )


def _blocks_refusal(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    window: Window | None = None,
) -> str:  # fmt: skip
    dtype = compute_dtype(query, key, value)
    if dtype not in (torch.float32, torch.bfloat16):
        return f"It computes in float32 and bfloat16, not in {dtype}."
    if cap <= 0:
        return "It needs a cap above 0."
    if isinstance(scale, Tensor) and scale.ndim and scale.shape[-1] != 1:
        return "It needs one scale for all keys of a query."
    return "" if scores(query, key) >= CAPPED else f"Below {CAPPED} scores the formula is as fast."


def _by_flex(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    window: Window | None = None,
) -> Tensor:  # fmt: skip
    inputs = operands(query, key, value, mask, scale, is_causal, fill, False)
    return inputs.restore(
        flex.attend(inputs.query, inputs.key, inputs.value, inputs.mask, inputs.is_causal, inputs.scale, cap, window)
    )


def _flex_refusal(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    window: Window | None = None,
) -> str:  # fmt: skip
    if cap <= 0:
        return "It needs a cap above 0."
    return flex.refusal(query, key, value, mask, dropout_p if training else 0.0)


_OP = Operation(
    "soft_capped_attention",
    (
        Provider(
            "soft_capped_attention", "torch", TORCH, _by_formula, "Matrix products, tanh and softmax in steps.",
            "torch's own.",
        ),
        Provider(
            "soft_capped_attention", "blocks", TORCH, _by_blocks,
            "Blocks of scores that stay in the cache; dropout is drawn from a seed.",
            "Our own, in the same blocks: capped scores are saved if they are few, else computed again.",
            _blocks_refusal, devices=("cpu",), dtypes=(torch.float32, torch.bfloat16), default=True,
        ),
        Provider(
            "soft_capped_attention", "flex", FLEX, _by_flex, "FlexAttention, compiled, with the cap as its score_mod.",
            "FlexAttention's own; none on a CPU.", _flex_refusal,
        ),
    ),
    least=1,
)  # fmt: skip
