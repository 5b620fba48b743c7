"""Attention whose scores a tanh keeps below a cap.

Torch's kernels have none but FlexAttention. On a CPU, blocks bound the memory; elsewhere the formula forms all scores
unless FlexAttention was measured to be better. Must not know where operands come from.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels import flex
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import FLEX, TORCH
from autofuse.kernels.provider import Provider
from autofuse.ops.attention_blocks import attention_by_blocks
from autofuse.ops.attention_operands import computed_in, operands
from autofuse.ops.attention_thresholds import CAPPED, scores
from autofuse.ops.softmax import masked_softmax


def soft_capped_attention(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(cap * tanh(query @ key.mT * scale), masked) @ value.

    Shapes: query (..., T, d), key (..., S, d), value (..., S, dv); leading dimensions broadcast as in matmul; mask
    broadcasts to (..., T, S); the result is (..., T, dv). `scale` holds what divides by the cap; it may be a tensor.
    fill: as in masked_softmax: a row that keeps nothing is nan without one. Source: Gemma 2, arXiv:2408.00118, 2.
    """
    result: Tensor = _OP(
        query, key, value, cap=cap, scale=scale, mask=mask, fill=fill, dropout_p=dropout_p, training=training
    )
    return result


def _by_formula(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    scores = torch.tanh(torch.matmul(query, key.mT) * scale) * cap
    return torch.matmul(F.dropout(masked_softmax(scores, mask, fill=fill), dropout_p, training), value)


def _by_blocks(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    given = operands(query, key, value, mask, scale, False, fill, False)
    p = dropout_p if training else 0.0
    return given.restored(
        attention_by_blocks(given.query, given.key, given.value, given.mask, p, False, given.scale, cap)
    )


def _unsuited_to_blocks(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    dtype = computed_in(query, key, value)
    if dtype not in (torch.float32, torch.bfloat16):
        return f"It computes in float32 and bfloat16, not in {dtype}."
    if cap <= 0:
        return "It takes a cap above 0."
    if isinstance(scale, Tensor) and scale.ndim and scale.shape[-1] != 1:
        return "It takes one scale for all keys of a query."
    return "" if scores(query, key) >= CAPPED else f"Below {CAPPED} scores the formula is as fast."


def _by_flex(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    given = operands(query, key, value, mask, scale, False, fill, False)
    return given.restored(
        flex.attend(given.query, given.key, given.value, given.mask, given.is_causal, given.scale, cap)
    )


def _unsuited_to_flex(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: float | Tensor = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    if cap <= 0:
        return "It takes a cap above 0."
    return flex.misfit(query, key, value, mask, dropout_p if training else 0.0)


_OP = Operation(
    "soft_capped_attention",
    (
        Provider(
            "soft_capped_attention", "torch", TORCH, _by_formula, "Matrix products, tanh, softmax, one by one.",
            "Torch's own.",
        ),
        Provider(
            "soft_capped_attention", "blocks", TORCH, _by_blocks,
            "Blocks of scores that stay in the cache; dropout is drawn from a seed.",
            "Our own, by the same blocks: capped scores are kept where they are small, else computed again.",
            _unsuited_to_blocks, devices=("cpu",), dtypes=(torch.float32, torch.bfloat16), default=True,
        ),
        Provider(
            "soft_capped_attention", "flex", FLEX, _by_flex, "FlexAttention, compiled, with the cap as its score_mod.",
            "FlexAttention's own; none on a CPU.", _unsuited_to_flex,
        ),
    ),
    least=1,
)  # fmt: skip
