# ruff: noqa
"""Softmax of masked scores whose probabilities are needed, so that attention cannot be fused as a whole."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

rule = "AF102"


class Returned(nn.Module):
    def forward(self, q, k, v, keep):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        weights = torch.softmax(scores.masked_fill(~keep, float("-inf")), dim=-1)
        return weights @ v, weights


class ReturnedWithAdditiveMask(nn.Module):
    def forward(self, q, k, v, additive):
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(8)
        probabilities = nn.functional.softmax(scores + additive, dim=-1)
        return torch.matmul(probabilities, v), probabilities


class ReturnedInFloat32(nn.Module):
    def forward(self, q, k, v, additive):
        scores = torch.matmul(q, k.transpose(-1, -2)) * 8**-0.5
        if additive is not None:
            scores = scores + additive
        weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(weights, v), weights


class FilledWithABillionAndReturned(nn.Module):
    fills = True

    def forward(self, q, k, v, keep):
        scores = (q @ k.mT * 8**-0.5).masked_fill(keep == 0, -1e9)
        weights = scores.softmax(-1)
        return weights @ v, weights


class CausalAndReturned(nn.Module):
    def forward(self, q, k, v):
        t = q.size(-2)
        mask = torch.tril(torch.ones(t, t, device=q.device)) == 0
        weights = F.softmax((q @ k.mT * 8**-0.5).masked_fill(mask, float("-inf")), dim=-1)
        return weights @ v, weights


class TalkingHeads(nn.Module):
    """The probabilities are mixed between softmax and the product with the values."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(3, 3))

    def forward(self, q, k, v, keep):
        weights = (q @ k.mT * 8**-0.5).masked_fill(~keep, float("-inf")).softmax(-1)
        return torch.einsum("bhij,hg->bgij", weights, self.mix) @ v


class WithoutScale(nn.Module):
    def forward(self, x, mask_2d):
        scores = x @ x.transpose(1, 2)
        return F.softmax(scores.masked_fill(mask_2d == 0, float("-inf")), dim=-1)


class Pooling(nn.Module):
    """A mask of positions, one score for each."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(24, 1)

    def forward(self, x, key_padding_mask):
        scores = self.score(x).squeeze(-1)
        weights = torch.softmax(scores.masked_fill(key_padding_mask, float("-inf")), dim=-1)
        return (weights.unsqueeze(-1) * x).sum(1)
