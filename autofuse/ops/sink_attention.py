"""Attention with a sink: an additional score for each query, which takes part in the softmax and has no value.

On a CPU torch's flash kernel computes it. The kernel returns the logarithm of each row's sum, with which a sink only
scales the row. The kernel's backward pass gives the right gradients if it gets the scaled result and the larger sum.
Elsewhere the sink is a key of its own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels import operators
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import TORCH
from autofuse.kernels.provider import Provider
from autofuse.ops.attention import attention
from autofuse.ops.attention_operands import dtypes_of, is_square_mask, operands, with_heads
from autofuse.ops.attention_thresholds import SUNK, scores
from autofuse.ops.finite_fills import UNDERFLOWS, for_each_head, vanishes, weighs_nothing
from autofuse.ops.kernel_masks import as_kernels_mask
from autofuse.ops.masks import causal, masked
from autofuse.ops.readable import can_look
from autofuse.torch_private import CPU_FLASH_ATTENTION, CPU_FLASH_ATTENTION_BACKWARD
from autofuse.torch_private import functional as F


def sink_attention(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *, mask: Tensor | None = None,
    scale: float | Tensor = 1.0, fill: float | None = None, dropout_p: float = 0.0, training: bool = False,
    is_causal: bool = False, mask_is_causal: bool = False, kept: Tensor | None = None, repeats: int = 1,
) -> Tensor:  # fmt: skip
    """softmax over (query @ key.mT * scale, masked) and `sinks`; the weights of the keys @ value.

    With S = exp(sink) and L the sum of a row, out = flash * L / (L + S). The gradients of query, key and value are
    those of flash attention (Dao et al., arXiv:2205.14135, appendix B) with L + S in place of L. That of the sink is -S
    / (L + S) * sum(d out * out).

    Args:
        query: shape (..., T, d).
        key: shape (..., S, d); leading dimensions broadcast as in matmul, or keys and values have fewer heads.
        value: shape (..., S, dv).
        sinks: broadcasts to (..., T, 1) and gets its gradient.
        mask: broadcasts to (..., T, S).
        scale: as in `attention`.
        fill: as in `attention`.
        dropout_p: as in `attention`.
        training: as in `attention`.
        is_causal: as in `attention`.
        mask_is_causal: as in `attention`.
        kept: as in `attention`.
        repeats: as in `attention`.

    Returns:
        A tensor of shape (..., T, dv). A row that keeps no key gives 0.

    Sources: gpt-oss, arXiv:2508.10925; Xiao et al., arXiv:2309.17453.
    """
    if repeats > 1:
        key, value = with_heads(query, key, value, repeats)
    if _is_small(query, key) and kept is None and fill is None and not (training and dropout_p):
        small_result: Tensor = _OP(query, key, value, sinks, mask=mask, scale=scale, is_causal=is_causal)
        return small_result
    if _is_small(query, key):
        return _in_steps(
            query, key, value, sinks, mask=mask, scale=scale, fill=fill, dropout_p=dropout_p, training=training,
            is_causal=is_causal, kept=kept,
        )  # fmt: skip
    dtype = dtypes_of(query, key, value)[0]

    def negligible(fill: float | None) -> bool:
        return weighs_nothing(fill, query, key, scale, dtype)

    if mask is not None and kept is None and not is_causal:
        if mask_is_causal and is_square_mask(mask, query.shape[-2], key.shape[-2]) and negligible(fill):
            mask, is_causal, fill = None, True, None
        else:
            mask, is_causal, fill = as_kernels_mask(query, key, mask, fill, negligible)
    fits = kept is None and _fits(query, key, value, sinks, mask)
    inputs: dict[str, Any] = {"scale": scale, "dropout_p": dropout_p, "training": training, "is_causal": is_causal}
    if not fits or not _is_exact(sinks, mask, fill, negligible(fill), dtype):
        return _in_steps(query, key, value, sinks, mask=mask, fill=fill, kept=kept, **inputs)
    result: Tensor = _OP(query, key, value, sinks, mask=mask, **inputs)
    return result


def _is_small(query: Tensor, key: Tensor) -> bool:
    return min(query.ndim, key.ndim) < 2 or query.is_cpu and scores(query, key) < SUNK or not query.numel()


def _fits(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, mask: Tensor | None) -> bool:
    """Whether there are four dimensions, a sink for each query, as many values as keys, and no larger mask."""
    if query.ndim != 4 or value.ndim < 2 or key.shape[-2] != value.shape[-2]:
        return False
    sizes = (*query.shape[:-1], key.shape[-2])
    inputs = [(sinks, (*sizes[:-1], 1))] if mask is None else [(sinks, (*sizes[:-1], 1)), (mask, sizes)]
    return sinks.ndim > 0 and all(
        x.ndim <= 4 and all(size in (1, expected) for size, expected in zip(x.shape, wanted[4 - x.ndim :], strict=True))
        for x, wanted in inputs
    )


def _is_exact(sinks: Tensor, mask: Tensor | None, fill: float | None, negligible: bool, dtype: torch.dtype) -> bool:
    """Whether a dropped score has no weight, even next to the sink alone."""
    if mask is not None and mask.dtype is not torch.bool:
        return mask.dtype is dtype
    if fill is None:
        return True
    if can_look(sinks):
        return negligible and sinks.numel() > 0 and float(sinks.detach().min()) - fill > UNDERFLOWS
    return vanishes(fill, dtype)


def _in_steps(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *, mask: Tensor | None = None,
    scale: float | Tensor = 1.0, fill: float | None = None, dropout_p: float = 0.0, training: bool = False,
    is_causal: bool = False, kept: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The computation as programs write it. It has every derivative."""
    key, value = (for_each_head(x, query) for x in (key, value))
    scores_or_masked = torch.matmul(query, key.mT) * scale
    if is_causal:
        mask = causal(mask, query.shape[-2], key.shape[-2], query.device)
    scores_or_masked = masked(scores_or_masked, mask, fill, kept=kept)
    sink_scores = sinks.expand(*scores_or_masked.shape[:-1], sinks.shape[-1])
    weights = torch.softmax(torch.cat((scores_or_masked, sink_scores.to(scores_or_masked.dtype)), -1), -1)[..., :-1]
    return torch.matmul(F.dropout(weights, dropout_p, training).to(value.dtype), value)


# Attention without sinks, with one more key.


def _with_a_key(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *, mask: Tensor | None = None,
    scale: float | Tensor = 1.0, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
) -> Tensor:  # fmt: skip
    """Turns the sink into a key.

    Each head gets a new entry: the sink in queries, 0 in keys, and 1 in one more key, whose value is 0. If attention is
    causal, that key is the first one. Then a first query is added, which sees only this key, and its result is
    discarded.
    """
    if query.is_cpu and not (training and dropout_p):
        return _in_steps(query, key, value, sinks, mask=mask, scale=scale, is_causal=is_causal)
    inputs = operands(query, key, value, None, scale, is_causal, None, False)
    query, key, value, _, is_causal, factor = inputs[:6]
    if is_causal and query.shape[-2] != key.shape[-2]:
        mask, is_causal = causal(None, query.shape[-2], key.shape[-2], query.device), False
    entries = (sinks.reshape((1,) * (4 - sinks.ndim) + sinks.shape) if sinks.ndim < 4 else sinks).to(query.dtype)
    wide = -query.shape[-1] % _WIDTH or _WIDTH  # at least one new entry, for the sink
    query = torch.cat((query * factor, entries.expand(*query.shape[:-1], 1)), -1)
    key = F.pad(key, (0, wide, 1, 0) if is_causal else (0, wide, 0, 1))
    place = torch.zeros(key.shape[-2], wide, dtype=key.dtype, device=key.device)
    place[0 if is_causal else -1, 0] = 1.0
    key = key + F.pad(place, (key.shape[-1] - wide, 0))
    query = F.pad(query, (0, wide - 1, 1, 0) if is_causal else (0, wide - 1))
    value = F.pad(value, (0, 0, 1, 0) if is_causal else (0, 0, 0, 1))
    if mask is not None:
        mask = mask[(None,) * (2 - mask.ndim)]
        mask = mask.expand(*mask.shape[:-1], key.shape[-2] - 1)
        mask = F.pad(mask, (0, 1), value=mask.dtype is torch.bool)
    made = attention(query, key, value, mask=mask, dropout_p=dropout_p, training=training, is_causal=is_causal)
    return inputs.restore(made[..., 1:, :] if is_causal else made)


_WIDTH = 8  # kernels need a head_dim that is a multiple of this


# torch's flash kernel for CPUs.


def _by_flash(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *, mask: Tensor | None = None,
    scale: float | Tensor = 1.0, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
) -> Tensor:  # fmt: skip
    inputs = operands(query, key, value, None, scale, is_causal, None, False)
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in inputs[:3])
    if mask is not None:
        mask = mask if mask.dtype is not torch.bool else torch.where(mask, 0.0, -math.inf).to(query.dtype)
        mask = mask[(None,) * (4 - mask.ndim)].expand(-1, -1, query.shape[-2], key.shape[-2])
    sink_scores = sinks.reshape((1,) * (4 - sinks.ndim) + sinks.shape)[..., 0]
    return inputs.restore(_FORWARD(query, key, value, sink_scores, mask, inputs.is_causal, inputs.scale)[0])


def _flash_refusal(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *, mask: Tensor | None = None,
    scale: float | Tensor = 1.0, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
) -> str:  # fmt: skip
    if training and dropout_p:
        return "It has no dropout."
    if _is_small(query, key):
        return f"Below {SUNK} scores, matrix products and a softmax are as fast."
    if query.ndim != 4 or key.shape[:-3] != query.shape[:-3] or value.shape[:-1] != key.shape[:-1]:
        return "It takes (batch, heads, length, head_dim)."
    if key.shape[1] == 0 or query.shape[1] % key.shape[1] or query.shape[-1] != value.shape[-1]:
        return "The query's heads must be a multiple of the key's, and values as wide as keys."
    if mask is not None and (mask.requires_grad or mask.ndim not in (2, 4)):
        return "It takes masks of two or four dimensions that require no gradient."
    has_kernel = callable(CPU_FLASH_ATTENTION) and callable(CPU_FLASH_ATTENTION_BACKWARD)
    return "" if has_kernel else "This version of torch has no flash attention for CPUs."


def _flash(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The result, and the logarithm of each row's sum with its sink. sinks has shape (1 or B, 1 or H, 1 or T)."""
    made, of_keys = CPU_FLASH_ATTENTION(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)
    both = torch.logaddexp(of_keys, sinks.to(of_keys.dtype))
    # L / (L + S) from the logarithms: L and S themselves may be infinite.
    return made.mul_((of_keys - both).exp_().unsqueeze(-1)), both


def _fake(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    sums = torch.promote_types(query.dtype, torch.float32)
    return torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=sums)


def _flash_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, mask: Tensor | None, result: Tensor,
    both: Tensor, is_causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    # The kernel divides by the sums that it gets, so sums with the sink give the gradients of the scaled rows.
    made = CPU_FLASH_ATTENTION_BACKWARD(
        gradient, query, key, value, result, both, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    share = (sinks.to(both.dtype) - both).exp_()
    to_sinks = (gradient * result).sum(-1, dtype=both.dtype).mul_(share).neg_().sum_to_size(sinks.shape)
    return (*made, to_sinks.to(sinks.dtype))


def _fake_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *others: Any) -> Any:
    return tuple(torch.empty_like(x) for x in (query, key, value, sinks))


def _flops(query: Any, key: Any, value: Any, *others: Any, **named: Any) -> int:
    """Two matrix products. The arguments are shapes."""
    return int(2 * math.prod(query[:3]) * key[2] * (query[3] + value[3]))


def _flops_of_gradients(gradient: Any, query: Any, key: Any, value: Any, *others: Any, **named: Any) -> int:
    """Five matrix products."""
    return int(2 * math.prod(query[:3]) * key[2] * (3 * query[3] + 2 * value[3]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, sinks, mask, *ctx.settings = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, sinks, mask, *output)


def _backward(ctx: Any, gradient: Tensor | None, of_sums: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, sinks, mask, result, both = ctx.saved_tensors
    nothing = (None,) * 3
    if gradient is None:
        return (None,) * 4 + nothing
    wanted = ctx.needs_input_grad[:4]
    if torch.is_grad_enabled():
        inputs = (query, key, value, sinks, mask, *ctx.settings)
        return (*operators.formula_gradients(_formula, inputs, (gradient,), (*wanted, *(False,) * 3))[:4], *nothing)
    made = _BACKWARD(gradient, query, key, value, sinks, mask, result, both, *ctx.settings)
    return (*(g if w else None for g, w in zip(made, wanted, strict=True)), *nothing)


def _formula(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    return _in_steps(query, key, value, sinks.unsqueeze(-1), mask=mask, scale=scale, is_causal=is_causal)


_FORWARD = operators.define(_flash, _fake, _flops)
_BACKWARD = operators.define(_flash_backward, _fake_backward, _flops_of_gradients)
operators.differentiate(_FORWARD, _backward, _save)

_OP = Operation(
    "sink_attention",
    (
        Provider(
            "sink_attention", "torch", TORCH, _with_a_key,
            "On a CPU, matrix products and a softmax in steps; elsewhere attention with one more key.", "torch's own.",
        ),
        Provider(
            "sink_attention", "flash", TORCH, _by_flash,
            "torch's flash kernel for CPUs; its rows are scaled for the sink.",
            "The kernel's own, with sums that include the sink.", _flash_refusal, devices=("cpu",),
            dtypes=(torch.float32, torch.float64, torch.bfloat16, torch.float16), default=True,
        ),
    ),
    least=1,
)  # fmt: skip
