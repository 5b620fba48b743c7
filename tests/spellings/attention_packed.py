# ruff: noqa
"""Attention: q, k and v from one projection, and from two sequences (sections 5 and 11 of the spellings)."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange


class Packed(nn.Module):
    def __init__(self, dim=24, heads=3, bias=True):
        super().__init__()
        self.dim, self.heads, self.head_dim = dim, heads, dim // heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim)


class ChunkedThenSplitIntoHeads(Packed):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(B, T, self.heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.heads, self.head_dim).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * self.scale
        y = F.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))


class SplitBySize(Packed):
    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(self.dim, dim=2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = F.softmax(att, dim=-1)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.proj(y)


class SplitByList(Packed):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = torch.split(self.qkv(x), [C, C, C], dim=-1)
        q, k, v = (t.reshape(B, T, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        w = torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        return self.proj((w @ v).transpose(1, 2).reshape(B, T, C))


class PermutedAndUnbound(Packed):
    """ViT as in timm."""

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        x = attn @ v
        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class PermutedAndIndexed(Packed):
    """The first ViT code of timm, copied into hundreds of repositories."""

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]  # make torchscript happy
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        x = self.proj(x)
        return x


class PermutedAndUnpacked(Packed):
    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        attn = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        return self.proj(torch.matmul(attn.softmax(-1), v).transpose(1, 2).reshape(B, N, C))


class UnboundOverThirdAxis(Packed):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, self.head_dim).unbind(dim=2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, T, C))


class HeadsFirstThenChunked(Packed):
    """The heads are split off before q, k and v are."""

    def forward(self, x):
        batch_size, seq_length, embed_dim = x.size()
        qkv = self.qkv(x)
        qkv = qkv.reshape(batch_size, seq_length, self.heads, 3 * self.head_dim)
        qkv = qkv.permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        attn_logits = torch.matmul(q, k.transpose(-2, -1))
        attn_logits = attn_logits / math.sqrt(q.size()[-1])
        attention = F.softmax(attn_logits, dim=-1)
        values = torch.matmul(attention, v)
        values = values.permute(0, 2, 1, 3)
        values = values.reshape(batch_size, seq_length, embed_dim)
        return self.proj(values)


class SlicedByHand(Packed):
    def forward(self, x):
        B, T, C = x.shape
        qkv = self.qkv(x)
        q = qkv[:, :, :C].view(B, T, self.heads, -1).transpose(1, 2)
        k = qkv[:, :, C : 2 * C].view(B, T, self.heads, -1).transpose(1, 2)
        v = qkv[:, :, 2 * C :].view(B, T, self.heads, -1).transpose(1, 2)
        p = F.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        return self.proj((p @ v).transpose(1, 2).reshape(B, T, C))


class IndexedOnThirdAxis(Packed):
    def forward(self, x):
        B, T, C = x.shape
        qkv = self.qkv(x).reshape(B, T, 3, self.heads, self.head_dim)
        q = qkv[:, :, 0].transpose(1, 2)
        k = qkv[:, :, 1].transpose(1, 2)
        v = qkv[:, :, 2].transpose(1, 2)
        p = F.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        return self.proj((p @ v).transpose(1, 2).reshape(B, T, C))


class MappedLambda(Packed):
    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: t.view(b, n, self.heads, -1).transpose(1, 2), qkv)
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attn = dots.softmax(dim=-1)
        out = torch.matmul(attn, v)
        return self.proj(out.transpose(1, 2).reshape(b, n, -1))


class MappedRearrange(Packed):
    """lucidrains' ViT."""

    def __init__(self, dim=24, heads=3):
        super().__init__(dim, heads, bias=False)
        self.attend = nn.Softmax(dim=-1)

    def forward(self, x):
        qkv = self.qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: rearrange(t, "b n (h d) -> b h n d", h=self.heads), qkv)
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attn = self.attend(dots)
        out = torch.matmul(attn, v)
        out = rearrange(out, "b h n d -> b n (h d)")
        return self.proj(out)


class ListComprehension(Packed):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = [t.view(B, T, self.heads, self.head_dim).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]
        return self.proj((torch.softmax(q @ k.mT * self.scale, -1) @ v).transpose(1, 2).reshape(B, T, C))


class SeparateProjections(nn.Module):
    """minGPT: key, query, value projections for all heads."""

    def __init__(self, n_embd=24, n_head=3):
        super().__init__()
        self.key = nn.Linear(n_embd, n_embd)
        self.query = nn.Linear(n_embd, n_embd)
        self.value = nn.Linear(n_embd, n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x):
        B, T, C = x.size()
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.proj(y)


class QueryAndPackedKeyValue(nn.Module):
    """Cross attention: q from x, k and v packed from the context."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context):
        b, n, c = x.shape
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = map(lambda t: t.reshape(b, -1, self.heads, c // self.heads).transpose(1, 2), (q, k, v))
        sim = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attn = sim.softmax(dim=-1)
        out = torch.matmul(attn, v).transpose(1, 2).reshape(b, n, c)
        return self.to_out(out)


class ContextOrSelf(nn.Module):
    """Without a context, x attends to itself."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)

    def forward(self, x, context=None):
        context = x if context is None else context
        B, T, C = x.shape
        S = context.size(1)
        q = self.to_q(x).view(B, T, self.heads, -1).transpose(1, 2)
        k = self.to_k(context).view(B, S, self.heads, -1).transpose(1, 2)
        v = self.to_v(context).view(B, S, self.heads, -1).transpose(1, 2)
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(C // self.heads), dim=-1)
        return (weights @ v).transpose(1, 2).reshape(B, T, C)


class CrossWithMask(nn.Module):
    arguments = {"src_mask": "padding_4d"}

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads, self.d_k = heads, dim // heads
        self.linears = nn.ModuleList([nn.Linear(dim, dim) for _ in range(4)])

    def forward(self, x, context, src_mask):
        n = x.size(0)
        query, key, value = [
            lin(t).view(n, -1, self.heads, self.d_k).transpose(1, 2)
            for lin, t in zip(self.linears, (x, context, context))
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(src_mask == 0, -1e9)
        p_attn = scores.softmax(dim=-1)
        x = torch.matmul(p_attn, value).transpose(1, 2).contiguous().view(n, -1, self.heads * self.d_k)
        return self.linears[-1](x)


class Cache(Packed):
    """A key-value cache that is grown by concatenation, and handed back."""

    arguments = {"past_k": "k", "past_v": "v"}

    def forward(self, x, past_k, past_v):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        k = torch.cat([past_k, k], dim=2)
        v = torch.cat([past_v, v], dim=2)
        att = (q @ k.transpose(-2, -1)) * self.scale
        y = F.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, C)), k, v
