# ruff: noqa
"""Unusual spellings of attention: other products, layouts, masks and normalisations."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import nn


class _Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 8**-0.5


# Products


class KeysFromTheLeft(nn.Module):
    """The transposed matrix of scores: a column for each query."""

    def forward(self, q, k, v):
        scores = k @ q.transpose(-2, -1) * q.shape[-1] ** -0.5
        weights = torch.softmax(scores, dim=-2)
        return (v.transpose(-2, -1) @ weights).transpose(-2, -1)


class ValuesTimesWeights(nn.Module):
    def forward(self, q, k, v):
        attn = F.softmax(q @ k.mT * 8**-0.5, dim=-1)
        return (v.mT @ attn.mT).mT


class WeightsTransposedFirst(nn.Module):
    """diffusion models: (b, c, i) operands and `v @ attn^T`."""

    arguments = {"q": "k_t", "k": "k_t", "v": "k_t"}

    def forward(self, q, k, v):
        w = torch.einsum("bhci,bhcj->bhij", q, k) * (int(q.shape[2]) ** (-0.5))
        w = F.softmax(w, dim=-1)
        return torch.einsum("bhij,bhcj->bhci", w, v)


class HeadsLastInScores(nn.Module):
    """The key axis is not the last."""

    arguments = {"q": "queries", "k": "keys", "v": "values"}

    def forward(self, q, k, v):
        scores = torch.einsum("bihd,bjhd->bijh", q, k) * 8**-0.5
        weights = torch.softmax(scores, dim=2)
        return torch.einsum("bijh,bjhd->bihd", weights, v)


class KeysBeforeQueriesInScores(nn.Module):
    def forward(self, q, k, v):
        scores = torch.einsum("bhjd,bhid->bhji", k, q) * 8**-0.5
        return torch.einsum("bhji,bhjd->bhid", scores.softmax(dim=2), v)


class BatchLast(nn.Module):
    """Transformer-XL: length first, batch and heads behind."""

    arguments = {"q": "queries", "k": "keys", "v": "values"}

    def forward(self, q, k, v):
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        scores = torch.einsum("ibnd,jbnd->ijbn", (q, k)) * 8**-0.5
        prob = F.softmax(scores, dim=1)
        return torch.einsum("ijbn,jbnd->ibnd", (prob, v))


class Ellipsis(nn.Module):
    def forward(self, q, k, v):
        sim = torch.einsum("...id,...jd->...ij", q, k) * 8**-0.5
        return torch.einsum("...ij,...jd->...id", sim.softmax(dim=-1), v)


class ScaleInsideEinsum(nn.Module):
    def forward(self, q, k, v):
        s = torch.einsum("bhqd,bhkd->bhqk", [q * 8**-0.5, k])
        return torch.einsum("bhqk,bhkd->bhqd", [s.softmax(-1), v])


class EinopsEinsum(nn.Module):
    arguments = {"q": "queries", "k": "keys", "v": "values"}

    def forward(self, q, k, v):
        sim = einsum(q, k, "b i h d, b j h d -> b h i j") * 8**-0.5
        attn = sim.softmax(dim=-1)
        return einsum(attn, v, "b h i j, b j h d -> b i h d")


class GridQueries(nn.Module):
    """Queries on a grid, keys in a row."""

    def forward(self, q, k, v):
        q = q[:, :, :4].unflatten(2, (2, 2))
        sim = torch.einsum("bhxyd,bhjd->bhxyj", q, k) * 8**-0.5
        return torch.einsum("bhxyj,bhjd->bhxyd", sim.softmax(-1), v)


class GridQueriesAndKeys(nn.Module):
    """Windows of windows: two leading axes."""

    def forward(self, q, k, v):
        q, k, v = (rearrange(t[:, :, :4], "b h (w n) d -> b w h n d", w=2) for t in (q, k, v))
        sim = torch.einsum("bwhid,bwhjd->bwhij", q, k) * 8**-0.5
        out = torch.einsum("bwhij,bwhjd->bwhid", sim.softmax(-1), v)
        return rearrange(out, "b w h n d -> b (w n) (h d)")


class SharedKeysAndValues(nn.Module):
    """Multi-query attention: one key and one value head."""

    def forward(self, q, k, v):
        k, v = k[:, 0], v[:, 0]
        sim = torch.einsum("b h i d, b j d -> b h i j", q, k) * 8**-0.5
        return torch.einsum("b h i j, b j d -> b h i d", sim.softmax(dim=-1), v)


class GroupedByEinsum(nn.Module):
    """Grouped-query attention without repeating the keys."""

    def forward(self, q, k, v):
        q = torch.cat((q, q.flip(1)), 1)
        b, h, t, d = q.shape
        q = q.view(b, 3, 2, t, d)
        scores = torch.einsum("bkgtd,bksd->bkgts", q, k) * d**-0.5
        out = torch.einsum("bkgts,bksd->bkgtd", scores.softmax(-1), v)
        return out.reshape(b, h, t, d)


class GroupedByBroadcast(nn.Module):
    def forward(self, q, k, v):
        q = torch.cat((q, q.flip(1)), 1)
        b, h, t, d = q.shape
        q = q.view(b, 3, 2, t, d)
        scores = q @ k.unsqueeze(2).transpose(-2, -1) / math.sqrt(d)
        out = F.softmax(scores, dim=-1) @ v.unsqueeze(2)
        return out.view(b, h, t, d)


def _repeat_kv(x, n):
    b, h, s, d = x.shape
    if n == 1:
        return x
    return x[:, :, None, :, :].expand(b, h, n, s, d).reshape(b, h * n, s, d)


class GroupedByRepeatKv(nn.Module):
    def forward(self, q, k, v):
        q = torch.cat((q, q), 1)
        k, v = _repeat_kv(k, 2), _repeat_kv(v, 2)
        attn = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(8)
        attn = nn.functional.softmax(attn, dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(attn, v)


class GroupedByRepeatInterleave(nn.Module):
    def forward(self, q, k, v):
        q = torch.cat((q, q), 1)
        k = k.repeat_interleave(2, dim=1)
        v = torch.repeat_interleave(v, repeats=2, dim=1)
        return (q @ k.mT * 8**-0.5).softmax(-1) @ v


class GroupedByEinopsRepeat(nn.Module):
    def forward(self, q, k, v):
        q = torch.cat((q, q), 1)
        k, v = (repeat(t, "b h n d -> b (h g) n d", g=2) for t in (k, v))
        return (q @ k.mT * 8**-0.5).softmax(-1) @ v


class TransposedMatrices(nn.Module):
    arguments = {"q": "matrix", "k": "matrix", "v": "matrix"}

    def forward(self, q, k, v):
        return torch.mm(torch.softmax(torch.mm(q, k.t()) / 8**0.5, 1), v)


class LearnedQueries(nn.Module):
    """Queries without a batch: they attend to every sample."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(5, 24))

    def forward(self, x):
        sim = torch.matmul(self.queries, x.transpose(-1, -2)) * 24**-0.5
        return torch.matmul(sim.softmax(dim=-1), x)


class FlatHeadsByRearrange(nn.Module):
    def forward(self, query, key, value, key_padding_mask):
        q, k, v = (rearrange(t, "b n (h d) -> (b h) n d", h=3) for t in (query, key, value))
        sim = torch.einsum("b i d, b j d -> b i j", q, k) * 8**-0.5
        mask = repeat(~key_padding_mask, "b j -> (b h) () j", h=3)
        sim.masked_fill_(~mask, -torch.finfo(sim.dtype).max)
        out = torch.einsum("b i j, b j d -> b i d", sim.softmax(dim=-1), v)
        return rearrange(out, "(b h) n d -> b n (h d)", h=3)


# Normalising


class ShiftedByDetachedMaximum(nn.Module):
    def forward(self, q, k, v):
        sim = q @ k.mT * 8**-0.5
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        return sim.softmax(dim=-1) @ v


class ShiftedByMaximum(nn.Module):
    def forward(self, q, k, v):
        sim = q @ k.mT * 8**-0.5
        sim = sim - sim.max(dim=-1, keepdim=True)[0]
        return F.softmax(sim, -1) @ v


class ShiftedInPlace(nn.Module):
    def forward(self, q, k, v):
        sim = torch.einsum("bhid,bhjd->bhij", q, k)
        sim -= sim.amax(-1, keepdim=True).detach()
        return torch.einsum("bhij,bhjd->bhid", sim.softmax(-1), v)


class ExpOverSum(nn.Module):
    def forward(self, q, k, v):
        e = torch.exp(q @ k.mT * 8**-0.5)
        return (e / e.sum(-1, keepdim=True)) @ v


class ExpOfLogSoftmax(nn.Module):
    def forward(self, q, k, v):
        return F.log_softmax(q @ k.mT * 8**-0.5, dim=-1).exp() @ v


class ExpLessLogSumExp(nn.Module):
    def forward(self, q, k, v):
        s = q @ k.mT * 8**-0.5
        return torch.exp(s - torch.logsumexp(s, dim=-1, keepdim=True)) @ v


class DividedAfterTheProduct(nn.Module):
    """The normaliser comes last, as flash attention itself does it."""

    def forward(self, q, k, v):
        s = q @ k.mT * 8**-0.5
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return (e @ v) / e.sum(-1, keepdim=True)


class DimensionByRank(nn.Module):
    def forward(self, q, k, v):
        s = q @ k.mT * 8**-0.5
        return s.softmax(dim=s.dim() - 1) @ v


class SoftmaxInFloatOfWhere(nn.Module):
    safety = "unsafe"  # the value may have another dtype than the query

    def forward(self, q, k, v, keep):
        s = (q @ k.mT).float() * 8**-0.5
        s = torch.where(keep, s, torch.full((), float("-inf")))
        return s.softmax(-1).to(v.dtype) @ v


class SequentialOfSoftmaxAndDropout(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.attend = nn.Sequential(nn.Softmax(dim=-1), nn.Dropout(p))

    def forward(self, q, k, v):
        return self.attend(q @ k.mT * 8**-0.5) @ v


class _SoftmaxChild(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, scores, mask):
        scores = scores.masked_fill(~mask, float("-inf"))
        return self.drop(F.softmax(scores, dim=-1))


class ChildMasksAndNormalises(nn.Module):
    also = ("AF102",)

    def __init__(self, p=0.0):
        super().__init__()
        self.normalise = _SoftmaxChild(p)

    def forward(self, q, k, v, keep):
        return self.normalise(q @ k.mT * 8**-0.5, keep) @ v


class MethodNormalises(_Heads):
    def __init__(self, p=0.0):
        super().__init__()
        self.dropout = nn.Dropout(p)

    def _attend(self, scores, keep):
        return self.dropout(torch.softmax(scores.masked_fill(~keep, float("-inf")), -1))

    def forward(self, q, k, v, keep):
        return self._attend(q @ k.mT * self.scale, keep) @ v


def _masked_softmax(x, mask=None, dim=-1):
    if mask is not None:
        x = x.masked_fill(~mask, float("-inf"))
    return F.softmax(x, dim=dim)


class HelperNormalises(nn.Module):
    def forward(self, q, k, v, keep):
        return _masked_softmax(q @ k.mT * 8**-0.5, keep) @ v


class DropoutRateChosen(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.p = p

    def forward(self, q, k, v):
        w = (q @ k.mT * 8**-0.5).softmax(-1)
        w = F.dropout(w, p=self.p if self.training else 0.0)
        return w @ v


# Scales


class CosineWithLearnedScale(nn.Module):
    """Swin v2."""

    safety = "unsafe"

    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.full((3, 1, 1), math.log(10.0)))

    def forward(self, q, k, v):
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        logit_scale = torch.clamp(self.logit_scale, max=math.log(100.0)).exp()
        attn = (attn * logit_scale).softmax(dim=-1)
        return attn @ v


class TemperatureDivides(nn.Module):
    safety = "unsafe"

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, q, k, v):
        return F.softmax(q @ k.mT / self.temperature, -1) @ v


class ScaleAfterMask(_Heads):
    def forward(self, q, k, v, keep):
        w = (q @ k.mT).masked_fill(~keep, float("-inf"))
        return (w * self.scale).softmax(-1) @ v


class ScaleAfterBias(_Heads):
    def forward(self, q, k, v, bias):
        return ((q @ k.mT + bias) * self.scale).softmax(-1) @ v


class ScaleTwice(_Heads):
    """The trick against overflow in half precision: small inside, large outside."""

    def forward(self, q, k, v):
        scores = (q / 4.0) @ k.mT * self.scale
        return F.softmax(scores * 4.0, dim=-1) @ v


# Masks


class ComparedPositions(_Heads):
    def forward(self, q, k, v):
        t = q.shape[-2]
        i = torch.arange(t, device=q.device)
        keep = i[:, None] >= i[None, :]
        return (q @ k.mT * self.scale).masked_fill(~keep, float("-inf")).softmax(-1) @ v


class SlidingWindow(_Heads):
    def forward(self, q, k, v):
        t = q.shape[-2]
        i = torch.arange(t, device=q.device)
        distance = i[:, None] - i[None, :]
        keep = (distance >= 0) & (distance < 3)
        return (q @ k.mT * self.scale).masked_fill(~keep, float("-inf")).softmax(-1) @ v


class SlidingWindowByTriangles(_Heads):
    def forward(self, q, k, v):
        t = q.shape[-2]
        ones = torch.ones(t, t, dtype=torch.bool, device=q.device)
        keep = ones.tril() & ones.triu(-2)
        return (q @ k.mT * self.scale).masked_fill(~keep, float("-inf")).softmax(-1) @ v


class CausalWithCache(_Heads):
    """More keys than queries: aligned to the right."""

    cross = True

    def forward(self, q, k, v):
        i, j = q.shape[-2], k.shape[-2]
        drop = torch.ones(i, j, dtype=torch.bool, device=q.device).triu(j - i + 1)
        sim = (q @ k.mT * self.scale).masked_fill(drop, -torch.finfo(q.dtype).max)
        return sim.softmax(dim=-1) @ v


class CausalFlag(_Heads):
    def __init__(self, p=0.0):
        super().__init__()
        self.dropout = nn.Dropout(p)
        self.causal = True

    def forward(self, q, k, v):
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        if self.causal:
            i, j = sim.shape[-2:]
            mask = torch.ones((i, j), device=q.device, dtype=torch.bool).triu(j - i + 1)
            sim = sim.masked_fill(mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        return torch.einsum("b h i j, b h j d -> b h i d", self.dropout(attn), v)


class Alibi(_Heads):
    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor([0.5, 0.25, 0.125])[:, None, None])

    def forward(self, q, k, v):
        t = q.size(-2)
        position = torch.arange(t, device=q.device)
        bias = -(position[None, :] - position[:, None]).abs() * self.slopes
        return F.softmax(q @ k.mT * self.scale + bias, dim=-1) @ v


class AlibiAndCausal(Alibi):
    safety = "unsafe"  # the bias counts positions: under autocast it is rounded

    def forward(self, q, k, v):
        t = q.size(-2)
        position = torch.arange(t, device=q.device)
        scores = q @ k.mT * self.scale + (position[None, :] - position[:, None]) * self.slopes
        scores = scores.masked_fill(torch.triu(torch.ones(t, t, device=q.device), 1).bool(), float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class RelativeBiasTable(_Heads):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(31, 3)

    def forward(self, q, k, v):
        i = torch.arange(q.shape[-2], device=q.device)
        bias = self.table(i[None, :] - i[:, None] + 15).permute(2, 0, 1).unsqueeze(0)
        return (q @ k.mT * self.scale + bias).softmax(-1) @ v


class RelativeBiasIndexed(_Heads):
    """Swin's table of biases."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(31, 3))

    def forward(self, q, k, v):
        t = q.shape[-2]
        i = torch.arange(t, device=q.device)
        index = i[None, :] - i[:, None] + 15
        bias = self.table[index.view(-1)].view(t, t, -1).permute(2, 0, 1).contiguous()
        attn = q @ k.mT * self.scale
        attn = attn + bias.unsqueeze(0)
        return attn.softmax(-1) @ v


class RelativePositionsOfQueries(_Heads):
    """The bias is itself a product with the queries."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(16, 8))

    def forward(self, q, k, v):
        rel = q @ self.positions[: k.shape[-2]].t()
        scores = (q @ k.mT + rel) * self.scale
        return scores.softmax(-1) @ v


class TwoMasks(_Heads):
    safety = "unsafe"

    def forward(self, q, k, v, key_padding_mask, drop):
        scores = q @ k.mT * self.scale
        scores = scores.masked_fill(key_padding_mask[:, None, None], float("-inf"))
        scores = scores.masked_fill(drop & ~key_padding_mask[:, None, None], -1e9)
        return scores.softmax(-1) @ v


class PaddingOfQueriesAndKeys(_Heads):
    """lucidrains: a mask for rows and columns from one of positions."""

    fills = True

    def forward(self, q, k, v, key_padding_mask):
        mask = ~key_padding_mask
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        mask = mask[:, None, :, None] * mask[:, None, None, :]
        dots.masked_fill_(~mask, -1e9)
        return torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)


class MultiplicativePenalty(_Heads):
    """BERT's own: (1 - mask) * -10000, added."""

    arguments = {"mask": "padding_4d"}

    def forward(self, q, k, v, mask):
        scores = q @ k.mT * self.scale + (1.0 - mask) * -10000.0
        return scores.softmax(-1) @ v


class SquareSubsequentMask(_Heads):
    def forward(self, q, k, v):
        mask = nn.Transformer.generate_square_subsequent_mask(q.size(-2), device=q.device)
        return (q @ k.mT * self.scale + mask).softmax(-1) @ v


class SubsequentMaskOfTheTutorial(_Heads):
    """`float().masked_fill(...)` in two steps."""

    def forward(self, q, k, v):
        t = q.size(-2)
        mask = (torch.triu(torch.ones(t, t, device=q.device)) == 1).transpose(0, 1)
        mask = mask.to(q.dtype).masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)
        return (q @ k.mT * self.scale + mask).softmax(-1) @ v


# Control flow


class DuplicatedInBranches(_Heads):
    def forward(self, q, k, v, keep=None):
        if keep is None:
            attn = F.softmax(q @ k.mT * self.scale, -1)
            out = attn @ v
        else:
            attn = F.softmax((q @ k.mT * self.scale).masked_fill(~keep, float("-inf")), -1)
            out = attn @ v
        return out


class EarlyReturn(_Heads):
    def forward(self, q, k, v, keep=None):
        scores = q @ k.mT * self.scale
        if keep is None:
            return scores.softmax(-1) @ v
        return scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v


class FlashOrByHand(_Heads):
    flash = False

    def forward(self, q, k, v):
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            y = F.softmax(att, dim=-1) @ v
        return y.transpose(1, 2).contiguous()


class StaticHelper(nn.Module):
    @staticmethod
    def attend(q, k, v):
        return F.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v

    def forward(self, q, k, v):
        return self.attend(q, k, v)


class WindowMaskByView(nn.Module):
    """Swin's shifted windows: the batch holds the windows, the mask is one for each window."""

    safety = "unsafe"

    arguments = {"mask": "drop_windows"}

    def forward(self, q, k, v, mask):
        b, h, t, _ = q.shape
        attn = q @ k.transpose(-2, -1) * 8**-0.5
        n = mask.shape[0]
        attn = attn.view(b // n, n, h, t, t) + mask.unsqueeze(1).unsqueeze(0)
        attn = attn.view(-1, h, t, t)
        attn = attn.softmax(-1)
        return attn @ v


def _relative_positions(q_size, k_size, rel_pos):
    q_coords = torch.arange(q_size)[:, None] * max(k_size / q_size, 1.0)
    k_coords = torch.arange(k_size)[None, :] * max(q_size / k_size, 1.0)
    relative = (q_coords - k_coords) + (k_size - 1) * max(q_size / k_size, 1.0)
    return rel_pos[relative.long()]


def _add_decomposed_positions(attn, q, rel_pos_h, rel_pos_w, q_size, k_size):
    q_h, q_w = q_size
    k_h, k_w = k_size
    rows = _relative_positions(q_h, k_h, rel_pos_h)
    columns = _relative_positions(q_w, k_w, rel_pos_w)
    batch, _, dim = q.shape
    r_q = q.reshape(batch, q_h, q_w, dim)
    rel_h = torch.einsum("bhwc,hkc->bhwk", r_q, rows)
    rel_w = torch.einsum("bhwc,wkc->bhwk", r_q, columns)
    attn = attn.view(batch, q_h, q_w, k_h, k_w) + rel_h[:, :, :, :, None] + rel_w[:, :, :, None, :]
    return attn.view(batch, q_h * q_w, k_h * k_w)


class DecomposedPositions(nn.Module):
    """Segment Anything's: biases of rows and of columns, each from the query, added by a helper."""

    entry_points = ("live",)
    arguments = {"x": "fixed_x"}

    def __init__(self, dim=24, num_heads=3, size=2):
        super().__init__()
        self.num_heads = num_heads
        self.size = size
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.rel_pos_h = nn.Parameter(torch.randn(2 * size - 1, dim // num_heads))
        self.rel_pos_w = nn.Parameter(torch.randn(2 * size - 1, dim // num_heads))

    def forward(self, x):
        batch, _, dim = x.shape
        h = w = self.size
        qkv = self.qkv(x).reshape(batch, h * w, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, batch * self.num_heads, h * w, -1).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = _add_decomposed_positions(attn, q, self.rel_pos_h, self.rel_pos_w, (h, w), (h, w))
        attn = attn.softmax(dim=-1)
        x = (attn @ v).view(batch, self.num_heads, h, w, -1).permute(0, 2, 3, 1, 4)
        return x.reshape(batch, h * w, dim)


class BiasesOfRowsAndColumns(nn.Module):
    """Scores of a grid, split for biases of its rows and its columns, and joined again."""

    safety = "unsafe"
    arguments = {"x": "fixed_x"}

    def __init__(self, dim=24, size=2):
        super().__init__()
        self.size = size
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.rows = nn.Parameter(torch.randn(size, size))
        self.columns = nn.Parameter(torch.randn(size, size))

    def forward(self, x):
        batch, n, dim = x.shape
        h, w = self.size, self.size
        attn = self.q(x) @ self.k(x).transpose(-2, -1) * dim**-0.5
        attn = attn.view(batch, h, w, h, w)
        attn = attn + self.rows[:, None, :, None] + self.columns[None, :, None, :]
        attn = attn.view(batch, h * w, h * w)
        return attn.softmax(dim=-1) @ self.v(x)


class ClassAttention(nn.Module):
    """CaiT's: the first token alone asks."""

    def __init__(self, dim=24, num_heads=3):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(0.0)

    def forward(self, x):
        batch, n, dim = x.shape
        q = self.q(x[:, 0]).unsqueeze(1).reshape(batch, 1, self.num_heads, dim // self.num_heads).permute(0, 2, 1, 3)
        k = self.k(x).reshape(batch, n, self.num_heads, dim // self.num_heads).permute(0, 2, 1, 3)
        v = self.v(x).reshape(batch, n, self.num_heads, dim // self.num_heads).permute(0, 2, 1, 3)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = self.attn_drop(attn.softmax(dim=-1))
        return (attn @ v).transpose(1, 2).reshape(batch, 1, dim)
