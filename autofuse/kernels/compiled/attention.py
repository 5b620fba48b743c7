"""Attention on a CPU in blocks of scores that stay in the cache, for calls that torch's flash kernel does not support.

Each block is two of torch's matrix products around its softmax; a compiled region draws dropout. The backward pass
computes a block's weights again, or reads them if the forward pass saved them. There is no autograd here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.compiled.blocks import AttentionBlock, blocks
from autofuse.kernels.compiled_regions import region
from autofuse.kernels.dropout_bits import bits, least_kept
from autofuse.torch_private import softmax_backward_data


@dataclass(frozen=True)
class AttentionSettings:
    """The settings of a call, equal in forward and backward pass.

    Attributes:
        dropout_p: the probability with which weights are dropped.
        is_causal: query i attends to keys 0 to i.
        scale: the factor of the scores.
        cap: the bound of the scores, 0.0 for none.
        elements: the number of scores of a block.
    """

    dropout_p: float
    is_causal: bool
    scale: float
    cap: float
    elements: int


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    settings: AttentionSettings,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Attention, and the weights (or capped scores) for the backward pass if `keep`, else an empty tensor.

    Shapes: query (B, H, T, d), key (B, G, S, d), value (B, G, S, dv), G a divisor of H; mask (1 or B, 1 or H, 1 or T, 1
    or S), boolean or added, and None if attention is causal.
    """
    # Without keys, no block writes to the result.
    allocate = query.new_empty if key.shape[-2] else query.new_zeros
    result = allocate(*query.shape[:-1], value.shape[-1])
    kept = query.new_empty(query.shape[:-1].numel() * key.shape[-2] if keep else 0)
    work = _Work(query, key, mask, seed, settings)
    for group in work.groups:
        k, v = work.of_heads(key, group[0]), work.of_heads(value, group[0])
        for block in group:
            weights = work.weights(block, k, kept if keep else None)
            if seed is not None:
                weights = drop(weights.view(-1), work.draw(block), work.factor).view(weights.shape)
            _multiply(weights, v[:, : block.keys], 1.0, result[block.batches, block.heads, block.queries], work.nothing)
    return result, kept


def backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor | None,
    kept: Tensor, settings: AttentionSettings, of_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of query, key, value and, if needed, mask.

    With W = P * D for weights P and dropout factors D: dV = W.T dO, dP = dO V.T * D, dS = P (dP - sum(P dP)). dQ, dK
    and the gradient of the mask follow from dS. Source: Dao et al., arXiv:2205.14135, appendix B.
    """
    work = _Work(query, key, mask, seed, settings)
    slope = settings.scale * (settings.cap or 1.0)
    to_query = (torch.empty if work.groups else torch.zeros)(query.shape, dtype=query.dtype)
    to_key, to_value = _Sum(key, work), _Sum(value, work)
    to_mask = _mask_gradient_memory(mask, work.shape) if of_mask and mask is not None else query.new_empty(0)
    for group in work.groups:
        k, v = work.of_heads(key, group[0]), work.of_heads(value, group[0])
        alone = len(group) == 1
        for block in group:
            q, g = work.of_queries(query, block), work.of_queries(gradient, block)
            capped, weights = work.weights_again(block, q, k, kept)
            to_weights, weights_after_dropout = torch.bmm(g, v[:, : block.keys].mT), weights
            if seed is not None:
                both = drop_with_gradient(weights.view(-1), to_weights.view(-1), work.draw(block), work.factor)
                weights_after_dropout, to_weights = (x.view(weights.shape) for x in both)
            to_value.add(weights_after_dropout, g, 1.0, block, alone)
            scores = softmax_backward_data(to_weights, weights, -1, weights.dtype)
            if of_mask and mask is not None:
                _add_to(to_mask, scores.view(block.shape), block, mask.shape == work.shape)
            if capped is not None:  # the derivative of tanh is 1 - tanh ** 2
                scores.mul_(capped.square_().neg_().add_(1.0))
            _multiply(
                scores, k[:, : block.keys], slope, to_query[block.batches, block.heads, block.queries], work.nothing
            )
            to_key.add(scores, q, slope, block, alone)
        to_key.end(group[0])
        to_value.end(group[0])
    return to_query, to_key.result, to_value.result, to_mask if mask is None else to_mask.to(mask.dtype)


class _Work:
    """The operands of one call, and its blocks."""

    def __init__(
        self, query: Tensor, key: Tensor, mask: Tensor | None, seed: Tensor | None, settings: AttentionSettings
    ) -> None:
        batch, heads, queries, _ = query.shape
        self.query, self.mask, self.settings = query, mask, settings
        self.shape = (batch, heads, queries, key.shape[-2])
        self.groups = blocks(batch, heads, queries, key.shape[-2], settings.is_causal, settings.elements)
        self.shared = heads // max(key.shape[1], 1)  # heads of the query that share a head of the keys
        self.nothing = query.new_zeros(1, 1, 1)  # the summand that baddbmm requires, and beta=0 ignores
        if seed is not None:
            self.seed, self.least = int(seed), least_kept(settings.dropout_p)
            share = 1.0 - settings.dropout_p
            self.factor = torch.tensor([1.0 / share if share > 0 else 0.0], dtype=_wide_dtype(query))

    def of_heads(self, x: Tensor, block: AttentionBlock) -> Tensor:
        """The keys or values of a group of blocks, (batches * heads, S, width); a view if possible."""
        if self.shared == 1:
            return x[block.batches, block.heads].flatten(0, 1)
        places = [head // self.shared for head in range(block.heads.start, block.heads.stop)]
        return x[block.batches][:, places].flatten(0, 1)

    def of_queries(self, x: Tensor, block: AttentionBlock) -> Tensor:
        """The rows of a block's queries, (batches * heads, T, width)."""
        return x[block.batches, block.heads, block.queries].flatten(0, 1)

    def draw(self, block: AttentionBlock) -> Tensor:
        return torch.tensor([self.seed, block.start, self.least])

    def weights(self, block: AttentionBlock, k: Tensor, kept: Tensor | None) -> Tensor:
        """The block's weights before dropout. Writes them, or the capped scores from which they follow, into `kept`."""
        capped, scores = self.scores(block, self.of_queries(self.query, block), k)
        out = None if kept is None else self.part(kept, block)
        if out is None or capped is None:
            return self.softmax(block, scores, out)
        out.copy_(capped)
        return self.softmax(block, scores, None)

    def weights_again(self, block: AttentionBlock, q: Tensor, k: Tensor, kept: Tensor) -> tuple[Tensor | None, Tensor]:
        if kept.numel() == 0:
            capped, scores = self.scores(block, q, k)
        elif self.settings.cap:
            capped = self.part(kept, block).clone()  # `backward` changes it in place
            scores = self.masked(block, capped * self.settings.cap)
        else:
            return None, self.part(kept, block)
        return capped, self.softmax(block, scores, None)

    def part(self, kept: Tensor, block: AttentionBlock) -> Tensor:
        batches, heads, queries, keys = block.shape
        size = batches * heads * queries * keys
        return kept[block.start : block.start + size].view(batches * heads, queries, keys)

    def scores(self, block: AttentionBlock, q: Tensor, k: Tensor) -> tuple[Tensor | None, Tensor]:
        """The block's scores divided by the cap, if there is one, and its scores for the softmax."""
        keys, scale = k[:, : block.keys].mT, self.settings.scale
        if self.settings.cap:
            capped = torch.baddbmm(self.nothing, q, keys, beta=0, alpha=scale).tanh_()
            return capped, self.masked(block, capped * self.settings.cap)
        if self.mask is None:
            return None, self.masked(block, torch.baddbmm(self.nothing, q, keys, beta=0, alpha=scale))
        return None, torch.baddbmm(self.bias(block), q, keys, alpha=scale)

    def masked(self, block: AttentionBlock, scores: Tensor) -> Tensor:
        """`scores` with the mask added, in place. With causal attention, scores after a query's own key become -inf."""
        if self.mask is not None:
            return scores.add_(self.bias(block))
        if self.settings.is_causal and block.keys > block.queries.start:
            first = block.queries.start
            after = scores.new_full((block.shape[2], block.keys - first), -math.inf).triu_(1)
            scores[..., first:].add_(after)
        return scores

    def bias(self, block: AttentionBlock) -> Tensor:
        """The numbers that the mask adds to a block's scores, in their dtype and shape."""
        mask = _cut(self.mask, block)
        if mask.dtype is torch.bool:
            mask = torch.where(mask, 0.0, -math.inf)
        return mask.to(self.query.dtype).expand(block.shape).flatten(0, 1)

    def softmax(self, block: AttentionBlock, scores: Tensor, out: Tensor | None) -> Tensor:
        """Softmax, and 0 in rows that keep no key. With a cap such rows are nan, as in the formula."""
        result = torch.softmax(scores, -1) if out is None else torch.softmax(scores, -1, out=out)
        if self.mask is not None and not self.settings.cap:
            mask = _cut(self.mask, block)
            empty = (
                ~mask.any(-1, keepdim=True) if mask.dtype is torch.bool else mask.amax(-1, keepdim=True) == -math.inf
            )
            if empty.any():
                result.view(block.shape).masked_fill_(empty, 0.0)
        return result


class _Sum:
    """The gradient of keys or values as a sum over blocks of the same heads, in float32 or wider."""

    def __init__(self, like: Tensor, work: _Work) -> None:
        self.shared, self.nothing = work.shared, work.nothing
        self.sum: Tensor | None = None
        adds = self.shared > 1 or work.settings.is_causal or not work.groups  # causal blocks leave out the last keys
        dtype = _wide_dtype(like) if self.shared > 1 else like.dtype
        self.total = (torch.zeros if adds else torch.empty)(like.shape, dtype=dtype)
        self.narrow, self.dtype = like.dtype is not _wide_dtype(like), like.dtype

    def add(self, left: Tensor, right: Tensor, scale: float, block: AttentionBlock, alone: bool) -> None:
        """Adds scale * left.mT @ right, for the first keys only if `left` has fewer."""
        keys = left.shape[-1]
        if alone and self.shared == 1:
            part = self.total[block.batches, block.heads, :keys]
            _multiply(left.mT, right, scale, part, self.nothing)
            return
        if self.sum is None:
            shape = (right.shape[0], self.total.shape[-2], right.shape[-1])
            self.sum = torch.zeros(shape, dtype=_wide_dtype(right))
        part = self.sum[:, :keys]
        if self.narrow:  # torch writes products of half precision only into half precision
            part.add_(torch.bmm(left.mT, right), alpha=scale)
        else:
            part.baddbmm_(left.mT, right, alpha=scale)

    def end(self, block: AttentionBlock) -> None:
        """Ends the sum of these heads; no other block of them follows."""
        if self.sum is None:
            return
        result = self.sum.view(*block.shape[:2], *self.sum.shape[1:])
        self.sum = None
        if self.shared == 1:
            self.total[block.batches, block.heads] = result.to(self.total.dtype)
            return
        for i, head in enumerate(range(block.heads.start, block.heads.stop)):
            self.total[block.batches, head // self.shared] += result[:, i]

    @property
    def result(self) -> Tensor:
        return self.total.to(self.dtype)


def _multiply(left: Tensor, right: Tensor, scale: float, into: Tensor, nothing: Tensor) -> None:
    """scale * left @ right into a part of a result with one more dimension, without a copy if the layout allows."""
    shape = (left.shape[0], left.shape[1], right.shape[2])
    if into.is_contiguous():
        torch.baddbmm(nothing, left, right, beta=0, alpha=scale, out=into.view(shape))
    else:
        into.copy_(torch.baddbmm(nothing, left, right, beta=0, alpha=scale).view(into.shape))


def _wide_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _cut(mask: Any, block: AttentionBlock) -> Tensor:
    """The part of a mask of four dimensions that belongs to a block of scores."""
    places = zip(mask.shape, (block.batches, block.heads, block.queries, slice(0, block.keys)), strict=True)
    result: Tensor = mask[tuple(slice(None) if size == 1 else place for size, place in places)]
    return result


def _mask_gradient_memory(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory for the gradient of the mask.

    If each entry belongs to one score, it is written. Otherwise scores are summed in float32 or wider.
    """
    covers_all_scores = mask.shape == shape and mask.numel()
    return (
        torch.empty(shape, dtype=mask.dtype) if covers_all_scores else torch.zeros(mask.shape, dtype=_wide_dtype(mask))
    )


def _add_to(total: Tensor, scores: Tensor, block: AttentionBlock, covers_all_scores: bool) -> None:
    part = _cut(total, block)
    if covers_all_scores:
        part.copy_(scores)
        return
    shared = [d for d, (size, full_size) in enumerate(zip(part.shape, scores.shape, strict=True)) if size != full_size]
    part += scores.sum(shared, keepdim=True, dtype=total.dtype) if shared else scores


@region(rows="weights")
def drop(weights: Tensor, draw: Tensor, factor: Tensor) -> Tensor:
    """Weights after dropout.

    `draw` is int64, (3,): the seed, the number of the first weight, and the smallest bits to keep.
    """
    return (weights * _factors(draw, weights.shape[0], factor)).to(weights.dtype)


@region(rows="weights gradient")
def drop_with_gradient(weights: Tensor, gradient: Tensor, draw: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Weights after dropout, and the gradient of the weights before it."""
    factors = _factors(draw, weights.shape[0], factor)
    return (weights * factors).to(weights.dtype), (gradient * factors).to(gradient.dtype)


def _factors(draw: Tensor, count: int, factor: Tensor) -> Tensor:
    """The factor of each weight: 0 if it is dropped, else `factor`."""
    kept = bits(draw[:1], draw[1:2], count) >= draw[2].to(torch.int32)
    return torch.where(kept, factor, 0.0)
