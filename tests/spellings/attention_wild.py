# ruff: noqa
"""Attention of public repositories that autofuse missed at first."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import einsum as einops_einsum
from einops import rearrange, repeat
from torch import einsum, nn


def _keep_mask(value):
    return value is not None


def _stable_softmax(t, dim=-1, alpha=32**2):
    t = t / alpha
    t = t - torch.amax(t, dim=dim, keepdim=True).detach()
    return (t * alpha).softmax(dim=dim)


# Axes that are counted from the front.


class _Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Conv1d(24, 24, 1) for _ in range(3))


class PixelsAttendToPixels(_Pixels):
    """Diffusion models: (batch, channels, pixels), and the probabilities stand on the right."""

    def forward(self, x):
        x = x.transpose(1, 2)
        q, k, v = self.q(x), self.k(x), self.v(x)
        b, c, n = q.shape
        q = q.permute(0, 2, 1)
        w_ = torch.bmm(q, k)
        w_ = w_ * (int(c) ** (-0.5))
        w_ = torch.nn.functional.softmax(w_, dim=2)
        w_ = w_.permute(0, 2, 1)
        return torch.bmm(v, w_).reshape(b, c, n)


class PixelsRearranged(_Pixels):
    def forward(self, x):
        q, k, v = (layer(x.transpose(1, 2)) for layer in (self.q, self.k, self.v))
        c = q.shape[1]
        q = rearrange(q, "b c n -> b n c")
        w_ = torch.einsum("bij,bjk->bik", q, k) * (int(c) ** (-0.5))
        w_ = F.softmax(w_, dim=2)
        w_ = rearrange(w_, "b i j -> b j i")
        return torch.einsum("bij,bjk->bik", v, w_)


class MatrixAttendsToItself(nn.Module):
    arguments = {"q": "matrix", "k": "matrix", "v": "matrix"}

    def forward(self, q, k, v):
        scores = torch.mm(q, k.transpose(0, 1)) / 8**0.5
        return torch.mm(F.softmax(scores, dim=1), v)


class ScaledInPlaceKeysSecond(nn.Module):
    """Transformer-XL: (query, key, batch, head), with dropout in that layout."""

    arguments = {"q": "queries", "k": "keys", "v": "values"}

    def __init__(self, p=0.0):
        super().__init__()
        self.scale = 8**-0.5
        self.drop_probabilities = nn.Dropout(p)

    def forward(self, q, k, v):
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        score = torch.einsum("ibnd,jbnd->ijbn", (q, k))
        score.mul_(self.scale)
        probability = F.softmax(score, dim=1)
        probability = self.drop_probabilities(probability)
        return torch.einsum("ijbn,jbnd->ibnd", (probability, v))


class AxisCountedBesideAMask(nn.Module):
    """The mask's dimensions are not to be read from the text."""

    safety = "unsafe"
    arguments = {"q": "queries", "k": "keys", "v": "values"}

    def forward(self, q, k, v, additive):
        scores = torch.matmul(q.permute((0, 2, 1, 3)), k.permute((0, 2, 3, 1)))
        scores.mul_(8**-0.5)
        scores = scores + additive
        return torch.matmul(F.softmax(scores, dim=3), v.permute((0, 2, 1, 3)))


# Masks that change where they are given.


class MaskIndexedWhereGiven(nn.Module):
    def forward(self, q, k, v, mask_3d=None):
        scores = q @ k.transpose(-2, -1) * 8**-0.5
        if mask_3d is not None:
            mask_3d = mask_3d[:, None]
            scores = scores.masked_fill(~mask_3d, float("-inf"))
        return scores.softmax(-1) @ v


class MaskRepeatedWhereGiven(nn.Module):
    """Latent diffusion: heads lie in the batch, and so does the mask."""

    fills = True

    def __init__(self):
        super().__init__()
        self.heads, self.scale = 3, 8**-0.5

    def forward(self, query, key, value, key_padding_mask=None):
        h = self.heads
        q, k, v = map(lambda t: rearrange(t, "b n (h d) -> (b h) n d", h=h), (query, key, value))
        sim = einsum("b i d, b j d -> b i j", q, k) * self.scale
        if _keep_mask(key_padding_mask):
            key_padding_mask = rearrange(~key_padding_mask, "b ... -> b (...)")
            max_neg_value = -torch.finfo(sim.dtype).max
            key_padding_mask = repeat(key_padding_mask, "b j -> (b h) () j", h=h)
            sim.masked_fill_(~key_padding_mask, max_neg_value)
        out = einsum("b i j, b j d -> b i d", sim.softmax(dim=-1), v)
        return rearrange(out, "(b h) n d -> b n (h d)", h=h)


class MaskOfEitherRank(nn.Module):
    fills = True

    def forward(self, q, k, v, keep=None):
        sim = einsum("b h i d, b h j d -> b h i j", q, k)
        if _keep_mask(keep):
            if keep.ndim != 4:
                keep = rearrange(keep, "b j -> b 1 1 j")
            sim = sim.masked_fill(~keep, -torch.finfo(sim.dtype).max)
        return einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)


class BiasOfTheScoresDtype(nn.Module):
    def forward(self, q, k, v, additive):
        scores = q @ k.mT * 8**-0.5
        scores = scores + additive.to(scores.dtype)
        return scores.softmax(dim=-1) @ v


class BiasOfTheScoresType(nn.Module):
    safety = "unsafe"  # the mask is an argument, which may drop a row whole with a large finite number

    def forward(self, q, k, v, additive):
        scores = q @ k.mT * 8**-0.5
        scores = scores + additive.type_as(scores)
        return scores.softmax(dim=-1) @ v


class MaskExpandedAsTheScores(nn.Module):
    def forward(self, q, k, v, drop):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(drop.expand_as(scores), -float("inf"))
        return torch.softmax(scores, dim=-1) @ v


# What is called.


class EquationInAnFString(nn.Module):
    def forward(self, q, k, v):
        sim = einsum(f"b h i d, b h j d -> b h i j", q, k) * 8**-0.5
        return einsum(f"b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)


class EquationInPieces(nn.Module):
    def forward(self, q, k, v):
        keys = "b h j d"
        sim = einsum(f"b h i d, {keys} -> b h i j", q, k) * 8**-0.5
        return einops_einsum(sim.softmax(dim=-1), v, f"b h i j, {keys} -> b h i d")


class DropoutOfTorchItself(nn.Module):
    random = True

    def forward(self, q, k, v):
        weights = torch.softmax(q @ k.transpose(-2, -1) * 8**-0.5, dim=-1)
        weights = torch.dropout(weights, 0.1, train=self.training)
        return weights @ v


class SoftmaxChosenBefore(nn.Module):
    def __init__(self):
        super().__init__()
        self.stable = True

    def forward(self, q, k, v):
        softmax = torch.softmax if not self.stable else _stable_softmax
        dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 8**-0.5
        return torch.einsum("b h i j, b h j d -> b h i d", softmax(dots, dim=-1), v)


class _Split(nn.Module):
    def split(self, x):
        shape = x.size()[:-1] + (3, 8)
        return x.view(*shape)


class HeadsSplitByAMethod(_Split):
    """The keys are turned on from what the method gave."""

    def forward(self, query, key, value):
        q = self.split(query).permute(0, 2, 1, 3)
        k = self.split(key).permute(0, 2, 3, 1)
        v = self.split(value).permute(0, 2, 1, 3)
        return torch.matmul(torch.softmax(torch.matmul(q, k) / math.sqrt(8), dim=-1), v)


class BothScaledAfterAMethod(_Split):
    def forward(self, query, key, value):
        q, k, v = (self.split(t).permute(0, 2, 1, 3) for t in (query, key, value))
        scale = 1 / math.sqrt(math.sqrt(k.shape[-1]))
        scores = torch.matmul(q * scale, k.transpose(-1, -2) * scale)
        return torch.matmul(torch.softmax(scores, dim=-1), v)


class SizeOfTheResultRead(nn.Module):
    def forward(self, q, k, v):
        x = torch.softmax(q @ k.mT * 8**-0.5, dim=-1) @ v
        return torch.cat((x, v), dim=2).view(-1, x.size(3))


# Scales that are not always there, or come after the mask.


class ScaledOnDemand(nn.Module):
    """GPT-2: two scales, each behind a flag of the configuration."""

    safety = "unsafe"

    def __init__(self):
        super().__init__()
        self.scaled, self.scaled_by_layer, self.layer = True, True, 2

    def forward(self, q, k, v):
        w = torch.matmul(q, k.transpose(-1, -2))
        if self.scaled:
            w = w / torch.tensor(v.size(-1) ** 0.5, dtype=w.dtype, device=w.device)
        if self.scaled_by_layer:
            w = w / float(self.layer + 1)
        return torch.matmul(nn.functional.softmax(w, dim=-1), v)


class ScaledAfterAMaskThatMayBeMissing(nn.Module):
    def forward(self, q, k, v, keep_int=None):
        w = q @ k.transpose(-2, -1)
        if keep_int is not None:
            w = w.masked_fill(~(keep_int != 0), float("-inf"))
        return (w * 0.25).softmax(dim=-1) @ v


class ScaledAfterTheMaskByASize(nn.Module):
    safety = "unsafe"

    def __init__(self, head_dim=None):
        super().__init__()
        if head_dim is None:
            head_dim = 8
        self.head_dim = head_dim

    def forward(self, q, k, v, drop):
        w = q @ k.transpose(2, 3)
        w = w.masked_fill(drop, -torch.inf)
        w = torch.softmax(w / self.head_dim**0.5, dim=-1)
        return (w @ v).transpose(1, 2)


# Masks whose names are gone where the result is computed.


class MaskDeletedInItsBranch(nn.Module):
    """lucidrains: the name is used for the next mask."""

    fills = True

    def __init__(self):
        super().__init__()
        self.causal, self.scale = True, 8**-0.5

    def forward(self, q, k, v, padding=None):
        dots = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        mask_value = -torch.finfo(dots.dtype).max

        # padding
        if _keep_mask(padding):
            mask = rearrange(padding != 0, "b j -> b () () j")
            dots.masked_fill_(~mask, mask_value)
            del mask

        if self.causal:
            i, j = dots.shape[-2:]
            mask = torch.ones(i, j, device=q.device).triu_(j - i + 1).bool()
            dots.masked_fill_(mask, mask_value)
            del mask

        attn = dots.softmax(dim=-1)
        return einsum("b h i j, b h j d -> b h i d", attn, v)


class MaskReassignedBetweenBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.causal = True

    def forward(self, q, k, v, keep=None):
        dots = q @ k.mT * 8**-0.5
        if keep is not None:
            mask = keep & keep
            dots = dots.masked_fill(~mask, -torch.inf)
        if self.causal:
            mask = torch.ones(dots.shape[-2:], dtype=torch.bool, device=q.device).tril()
            dots = dots.masked_fill(~mask, -torch.inf)
        return dots.softmax(dim=-1) @ v


class MaskForgottenWhereItIsApplied(nn.Module):
    def forward(self, q, k, v, keep_int=None):
        dots = q @ k.mT * 8**-0.5
        if keep_int is None:
            pass
        else:
            keep_int = keep_int != 0
            dots = dots.masked_fill(keep_int == 0, -torch.inf)
            keep_int = None
        return dots.softmax(dim=-1) @ v


class BiasDeletedInItsBranch(nn.Module):
    def forward(self, q, k, v, bias=None):
        sim = q @ k.mT * 8**-0.5
        if bias is not None:
            bias = bias * 2
            sim = sim + bias
            del bias
        return sim.softmax(dim=-1) @ v
