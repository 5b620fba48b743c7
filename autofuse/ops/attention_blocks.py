"""The operator torch.ops.autofuse.attention_blocks, attention in blocks on a CPU, and its gradient.

autofuse/kernels/compiled/attention.py defines a block and computes it. This file connects it to autograd.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels import operators
from autofuse.kernels.compiled import attention as kernel
from autofuse.kernels.compiled import blocks
from autofuse.kernels.dropout_bits import bits, draw_seed, least_kept

_NOTHING = nullcontext()
KEPT_BYTES = 2**25
"""Up to this size, the weights of a call are saved for its backward pass, which is then 17 to 25 % faster. Hand-written
code saves at least twice as much. Larger weights are computed again."""


def attention_by_blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float,
    cap: float = 0.0,
) -> Tensor:  # fmt: skip
    """softmax(cap * tanh(scale * query @ key.mT), masked), with dropout, @ value. A cap of 0 means no capping.

    Needs memory for blocks of one or two MiB, and for the weights if they are small (`KEPT_BYTES`).

    Args:
        query: shape (B, H, T, d).
        key: shape (B, G, S, d), G a divisor of H.
        value: shape (B, G, S, dv).
        mask: broadcasts to (B, H, T, S); boolean, or added and then with a gradient. Excludes `is_causal`.
        dropout_p: the probability with which weights are dropped.
        is_causal: query i attends to keys 0 to i.
        scale: the factor of the scores.
        cap: the bound of the scores, 0 for none.

    Returns:
        A tensor of shape (B, H, T, dv). Rows that keep no key are 0, or nan with a cap.
    """
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
        if mask.shape[-1] != key.shape[-2]:  # the mask has one entry for all keys of a query
            mask = mask.expand(*mask.shape[:-1], key.shape[-2])
    seed = draw_seed(query.device) if dropout_p else None
    elements = blocks.ELEMENTS[query.element_size() <= 2]
    settings = (float(dropout_p), is_causal, float(scale), float(cap), elements)
    inputs = (query, key, value) if mask is None else (query, key, value, mask)
    # Without gradients the dispatcher is not needed.
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in inputs):
        return _attention_blocks(query, key, value, mask, seed, *settings, False)[0]
    keep = query.shape[:-1].numel() * key.shape[-2] * query.element_size() <= KEPT_BYTES
    result: Tensor = _FORWARD(query, key, value, mask, seed, *settings, keep)[0]
    return result


def _attention_blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor | None, dropout_p: float,
    is_causal: bool, scale: float, cap: float, elements: int, keep: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    settings = kernel.AttentionSettings(dropout_p, is_causal, scale, cap, elements)
    # The operands were cast before. Autocast must not cast the kernel's own products, too.
    with _NOTHING if not torch.is_autocast_enabled("cpu") else torch.autocast("cpu", enabled=False):
        return kernel.forward(query, key, value, mask, seed, settings, keep)


def _fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    kept = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] if rest[-1] else 0
    return query.new_empty(*query.shape[:3], value.shape[-1]), query.new_empty(kept)


def _attention_blocks_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor | None, kept: Tensor,
    dropout_p: float, is_causal: bool, scale: float, cap: float, elements: int, of_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    settings = kernel.AttentionSettings(dropout_p, is_causal, scale, cap, elements)
    with _NOTHING if not torch.is_autocast_enabled("cpu") else torch.autocast("cpu", enabled=False):
        return kernel.backward(gradient, query, key, value, mask, seed, kept, settings, of_mask)


def _fake_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    to_mask = query.new_empty(0) if mask is None or not rest[-1] else mask.new_empty(mask.shape)
    return (*(x.new_empty(x.shape) for x in (query, key, value)), to_mask)


def _flops(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    """Two matrix products. The arguments are shapes."""
    return int(2 * math.prod(query[:3]) * key[2] * (query[3] + value[3]))


def _flops_of_gradients(gradient: Any, query: Any, key: Any, value: Any, mask: Any, seed: Any, kept: Any,
                        *rest: Any, **named: Any) -> int:  # fmt: skip
    """Four matrix products, and one more for the scores if the weights were not saved."""
    again = 0 if math.prod(kept) else query[3]
    return int(2 * math.prod(query[:3]) * key[2] * (2 * query[3] + 2 * value[3] + again))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, seed, *ctx.settings, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, mask, seed, output[1])


def _backward(ctx: Any, gradient: Tensor | None, of_kept: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, mask, seed, kept = ctx.saved_tensors
    nothing = (None,) * 7
    if gradient is None:
        return (None,) * 4 + nothing
    needed = ctx.needs_input_grad[:4]
    if torch.is_grad_enabled():
        inputs = (query, key, value, mask, seed, *ctx.settings)
        needed = (*needed, *(False,) * 6)
        return (*operators.formula_gradients(_formula, inputs, (gradient,), needed)[:4], *nothing)
    gradients = _BACKWARD(gradient, query, key, value, mask, seed, kept, *ctx.settings, needed[3])
    return (*(g if w else None for g, w in zip(gradients, needed, strict=True)), *nothing)


def _formula(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor | None, dropout_p: float,
    is_causal: bool, scale: float, cap: float, elements: int,
) -> Tensor:  # fmt: skip
    """The same computation in torch's operations, with the kernel's dropout. It has derivatives of every order."""
    groups = query.shape[1] // key.shape[1]
    scores = torch.matmul(query, key.repeat_interleave(groups, 1).mT) * scale
    if cap:
        scores = torch.tanh(scores) * cap
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    # The softmax of a row of -inf is nan, and so is its gradient. Such rows get other scores, and are replaced.
    empty = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, math.nan if cap else 0.0)
    if seed is not None:
        weights = weights * kept_weights(seed, tuple(weights.shape), is_causal, dropout_p, elements)
        weights = weights / (1.0 - dropout_p) if dropout_p < 1 else weights
    return torch.matmul(weights, value.repeat_interleave(groups, 1))


def kept_weights(seed: Tensor, shape: tuple[int, ...], is_causal: bool, dropout_p: float, elements: int) -> Tensor:
    """The mask (B, H, T, S) of the weights that the kernel keeps for a seed. Entries of no block are False."""
    kept = torch.zeros(shape, dtype=torch.bool)
    if dropout_p >= 1:
        return kept
    for group in blocks.blocks(*shape, is_causal, elements):
        for block in group:
            draws = bits(seed, torch.tensor([block.start]), math.prod(block.shape)) >= least_kept(dropout_p)
            kept[block.batches, block.heads, block.queries, : block.keys] = draws.view(block.shape)
    return kept


_FORWARD = operators.define(_attention_blocks, _fake, _flops)
_BACKWARD = operators.define(_attention_blocks_backward, _fake_backward, _flops_of_gradients)
operators.differentiate(_FORWARD, _backward, _save)
