# ruff: noqa
"""Attention: how the operands lie, and what becomes of the result (sections 3 and 12 of the spellings)."""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn


class Scaled(nn.Module):
    def __init__(self, head_dim=8):
        super().__init__()
        self.scale = head_dim**-0.5


class KeyMT(Scaled):
    def forward(self, q, k, v):
        return torch.softmax(q @ k.mT * self.scale, dim=-1) @ v


class KeySwapaxes(Scaled):
    def forward(self, q, k, v):
        return torch.softmax((q @ k.swapaxes(-1, -2)) * self.scale, dim=-1) @ v


class KeyTransposedByNumbers(Scaled):
    entry_points = ("live",)  # how many dimensions q has cannot be read from the text

    def forward(self, q, k, v):
        return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(3, 2)) * self.scale, dim=3), v)


class KeyPermutedFromProjection(Scaled):
    def forward(self, queries, keys, values):
        query = queries.permute(0, 2, 1, 3)
        key = keys.permute(0, 2, 3, 1)
        value = values.permute(0, 2, 1, 3)
        w = torch.matmul(query, key) * self.scale
        w = torch.softmax(w, dim=-1)
        a = torch.matmul(w, value)
        return a.permute(0, 2, 1, 3)


class KeyStoredTransposed(Scaled):
    """GPT-1 and GPT-2 split the heads of k into (B, H, D, T)."""

    cross = True

    def forward(self, q, k_t, v):
        w = torch.matmul(q, k_t) * self.scale
        w = nn.Softmax(dim=-1)(w)
        return torch.matmul(w, v)


class KeyMadeContiguous(Scaled):
    def forward(self, q, k, v):
        kt = k.permute(0, 1, 3, 2).contiguous()
        return torch.softmax(torch.matmul(q, kt) * self.scale, dim=-1).matmul(v)


class BmmOverFlatHeads(nn.Module):
    def forward(self, q, k, v):
        B, H, T, D = q.shape
        q = q.reshape(B * H, T, D)
        k = k.reshape(B * H, T, D)
        v = v.reshape(B * H, T, D)
        w = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(D)
        w = F.softmax(w, dim=2)
        return torch.bmm(w, v).view(B, H, T, D)


class BmmMethods(Scaled):
    def forward(self, query, key, value):
        scores = query.bmm(key.transpose(1, 2)) * self.scale
        return F.softmax(scores, dim=-1).bmm(value)


class BaddbmmOfZeros(Scaled):
    def forward(self, query, key, value):
        b, t, _ = query.shape
        scores = torch.baddbmm(
            torch.zeros(b, t, t, dtype=query.dtype, device=query.device),
            query,
            key.transpose(-1, -2),
            beta=0,
            alpha=self.scale,
        )
        return torch.bmm(scores.softmax(dim=-1), value)


class BaddbmmOfEmpty(Scaled):
    """Diffusion attention processors: the input is never read, since beta is 0."""

    def forward(self, query, key, value):
        baddbmm_input = torch.empty(
            query.shape[0], query.shape[1], key.shape[1], dtype=query.dtype, device=query.device
        )
        attention_scores = torch.baddbmm(baddbmm_input, query, key.transpose(-1, -2), beta=0, alpha=self.scale)
        attention_probs = attention_scores.softmax(dim=-1)
        return torch.bmm(attention_probs, value)


class BaddbmmOfMask(Scaled):
    arguments = {"attention_mask": "additive_3d"}

    def forward(self, query, key, value, attention_mask):
        attention_scores = torch.baddbmm(attention_mask, query, key.transpose(-1, -2), beta=1, alpha=self.scale)
        attention_probs = attention_scores.softmax(dim=-1)
        return torch.bmm(attention_probs, value)


class SingleHead(nn.Module):
    """Teaching code: one head, no batch of heads."""

    cross = True

    def forward(self, query, key, value):
        d_k = query.size(-1)
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
        attention_weights = torch.softmax(scores, dim=-1)
        output = torch.matmul(attention_weights, value)
        return output


class WithoutBatch(nn.Module):
    """The first lines of many a tutorial: (T, d) matrices, and `.T`."""

    arguments = {"q": "matrix", "k": "matrix", "v": "matrix"}

    def forward(self, q, k, v):
        attn = torch.softmax(q @ k.transpose(0, 1) / k.shape[-1] ** 0.5, dim=-1)
        return attn @ v


class LengthFirst(nn.Module):
    """fairseq's multi-head attention: (T, B, C) in, heads folded into the batch."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        x = x.transpose(0, 1)
        tgt_len, bsz, embed_dim = x.size()
        q = self.q_proj(x) * self.scaling
        k = self.k_proj(x)
        v = self.v_proj(x)
        q = q.contiguous().view(tgt_len, bsz * self.heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.heads, self.head_dim).transpose(0, 1)
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        attn_weights = F.softmax(attn_weights, dim=-1)
        attn = torch.bmm(attn_weights, v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(attn)


class MergedByView(nn.Module):
    def forward(self, q, k, v):
        B, nh, T, hs = q.size()
        att = F.softmax((q @ k.transpose(-2, -1)) / math.sqrt(hs), dim=-1)
        return (att @ v).transpose(1, 2).contiguous().view(B, T, nh * hs)


class MergedByReshape(Scaled):
    def forward(self, q, k, v):
        B, H, N, D = q.shape
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, H * D)
        return x


class MergedByPermute(nn.Module):
    def forward(self, q, k, v):
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        context_layer = torch.matmul(nn.functional.softmax(scores, dim=-1), v)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        new_context_layer_shape = context_layer.size()[:-2] + (context_layer.size(-1) * context_layer.size(-2),)
        return context_layer.view(new_context_layer_shape)


class MergedByFlatten(Scaled):
    def forward(self, q, k, v):
        out = torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1) @ v
        return out.transpose(1, 2).flatten(2)


class MergedByRearrange(Scaled):
    cross = True

    def forward(self, q, k, v):
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        out = torch.matmul(dots.softmax(dim=-1), v)
        return rearrange(out, "b h n d -> b n (h d)")


class MergedByUnflattenedViews(nn.Module):
    """`-1` for the batch, as in code that was written before anyone thought of other lengths."""

    def __init__(self, d_model=24, num_heads=3):
        super().__init__()
        self.d_model, self.num_heads, self.depth = d_model, num_heads, d_model // num_heads

    def split_heads(self, x, batch_size):
        x = x.view(batch_size, -1, self.num_heads, self.depth)
        return x.transpose(1, 2)

    def forward(self, x):
        batch_size = x.size(0)
        q = k = v = self.split_heads(x, batch_size)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.depth)
        weights = torch.softmax(scores, dim=-1)
        out = torch.matmul(weights, v)
        return out.transpose(1, 2).contiguous().view(batch_size, -1, self.d_model)


class OtherValueWidth(Scaled):
    """The values are wider than the keys."""

    arguments = {"value": "wide_value"}

    def forward(self, q, k, value):
        weights = F.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        return weights @ value


class ValueTransposedResult(Scaled):
    """Computed the other way round: (S, T) probabilities are never formed, but values stand first."""

    def forward(self, q, k, v):
        weights = torch.softmax((q @ k.transpose(-2, -1)) * self.scale, dim=-1)
        return torch.matmul(v.transpose(-2, -1), weights.transpose(-2, -1)).transpose(-2, -1)


class ImageTokens(nn.Module):
    """Attention over the pixels of a feature map: 1x1 convolutions, (B, C, H * W), softmax over the keys."""

    def __init__(self, channels=24):
        super().__init__()
        self.query = nn.Conv1d(channels, 8, 1)
        self.key = nn.Conv1d(channels, 8, 1)
        self.value = nn.Conv1d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x):
        pixels = x.transpose(1, 2)
        q = self.query(pixels).permute(0, 2, 1)
        k = self.key(pixels)
        v = self.value(pixels)
        attention = torch.softmax(torch.bmm(q, k), dim=-1)
        out = torch.bmm(v, attention.permute(0, 2, 1))
        return self.gamma * out + pixels
