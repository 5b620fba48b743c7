# ruff: noqa
"""Hand-written rotary position embeddings: of halves, of neighbouring pairs, and with complex numbers."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange, repeat

rule = "AF401"


# Halves.


def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


class RotaryOfHuggingFaceLlama(nn.Module):
    sites = 2
    arguments = {"cos": "cos_batch", "sin": "sin_batch"}

    def forward(self, q, k, cos, sin):
        query_states, key_states = apply_rotary_pos_emb(q, k, cos, sin)
        return query_states, key_states


class RotaryOfEsm(nn.Module):
    def rotate_half(self, x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    def apply_rotary_pos_emb(self, x, cos, sin):
        cos = cos[: x.shape[-2], :]
        sin = sin[: x.shape[-2], :]
        return (x * cos) + (self.rotate_half(x) * sin)

    def forward(self, q, k, cos, sin):
        return self.apply_rotary_pos_emb(q, cos, sin), self.apply_rotary_pos_emb(k, cos, sin)


class HalvesBySplit(nn.Module):
    def forward(self, q, cos, sin):
        first, second = torch.split(q, q.shape[-1] // 2, dim=-1)
        return q * cos + torch.cat([-second, first], dim=-1) * sin


class HalvesBySplitInTwoSizes(nn.Module):
    def forward(self, q, cos, sin):
        half = q.size(-1) // 2
        first, second = q.split([half, half], dim=-1)
        return q * cos + torch.cat([-second, first], dim=-1) * sin


def rotate_halves_of_einops(t):
    t = rearrange(t, "... (j d) -> ... j d", j=2)
    x1, x2 = t.unbind(dim=-2)
    return torch.cat((-x2, x1), dim=-1)


class HalvesByEinops(nn.Module):
    arguments = {"angles": "cos"}

    def forward(self, q, angles):
        return (q * angles.cos()) + (rotate_halves_of_einops(q) * angles.sin())


class HalvesByView(nn.Module):
    def forward(self, q, cos, sin):
        b, h, t, d = q.shape
        halves = q.view(b, h, t, 2, d // 2)
        rotated = torch.cat((-halves[..., 1, :], halves[..., 0, :]), dim=-1)
        return q * cos + rotated * sin


class HalvesByUnflatten(nn.Module):
    def forward(self, q, cos, sin):
        first, second = q.unflatten(-1, (2, -1)).unbind(-2)
        return torch.mul(q, cos) + torch.mul(torch.cat((torch.neg(second), first), -1), sin)


class RotaryWrittenInOneLine(nn.Module):
    def forward(self, q, cos, sin):
        return cos * q + sin * torch.cat((-q[..., q.size(-1) // 2 :], q[..., : q.size(-1) // 2]), -1)


class RotatedTermFirst(nn.Module):
    def forward(self, q, cos, sin):
        return torch.add(rotate_half(q) * sin, q * cos)


class RotaryTheOtherWay(nn.Module):
    """A rotation by the negative angle."""

    def forward(self, q, cos, sin):
        return q * cos - rotate_half(q) * sin


class OtherHalfNegated(nn.Module):
    def forward(self, q, cos, sin):
        x1, x2 = q.chunk(2, -1)
        return q * cos + torch.cat((x2, -x1), -1) * sin


class RotaryWithOneAnglePerPair(nn.Module):
    arguments = {"cos": "cos_half", "sin": "sin_half"}

    def forward(self, q, cos, sin):
        first_half, second_half = torch.chunk(q, 2, dim=-1)
        first_ = first_half * cos - second_half * sin
        second_ = second_half * cos + first_half * sin
        return torch.cat((first_, second_), dim=-1)


class RotaryOfNanochat(nn.Module):
    arguments = {"cos": "cos_half", "sin": "sin_half"}

    def forward(self, q, cos, sin):
        assert q.ndim == 4
        d = q.shape[3] // 2
        x1, x2 = q[..., :d], q[..., d:]
        y1 = x1 * cos + x2 * sin
        y2 = x1 * (-sin) + x2 * cos
        out = torch.cat([y1, y2], 3)
        return out.to(q.dtype)


class RotaryOfNeoxInPart(nn.Module):
    sites = 2
    arguments = {"cos": "cos_part", "sin": "sin_part"}

    def forward(self, q, k, cos, sin):
        rotary_dim = cos.shape[-1]
        q_rot, q_pass = q[..., :rotary_dim], q[..., rotary_dim:]
        k_rot, k_pass = k[..., :rotary_dim], k[..., rotary_dim:]
        q_embed = (q_rot * cos) + (rotate_half(q_rot) * sin)
        k_embed = (k_rot * cos) + (rotate_half(k_rot) * sin)
        return torch.cat([q_embed, q_pass], dim=-1), torch.cat([k_embed, k_pass], dim=-1)


class RotaryOfFlashAttentionReference(nn.Module):
    arguments = {"cos": "cos_part", "sin": "sin_part"}

    def forward(self, q, cos, sin):
        ro_dim = cos.shape[-1]
        return torch.cat([q[..., :ro_dim] * cos + rotate_half(q[..., :ro_dim]) * sin, q[..., ro_dim:]], dim=-1)


class RotaryInFloat32CastBack(nn.Module):
    sites = 2

    def forward(self, q, k, cos, sin):
        q_dtype, k_dtype = q.dtype, k.dtype
        q, k = q.float(), k.float()
        q_embed = (q * cos.float()) + (rotate_half(q) * sin.float())
        k_embed = (k * cos.float()) + (rotate_half(k) * sin.float())
        return q_embed.to(q_dtype), k_embed.to(k_dtype)


class RotaryLeftInFloat32(nn.Module):
    """The angles are in float32, and so is the result."""

    def forward(self, q, cos, sin):
        return q * cos.float() + rotate_half(q) * sin.float()


class RotaryFromBuffers(nn.Module):
    def __init__(self, dim=8, length=16):
        super().__init__()
        inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim))
        freqs = torch.outer(torch.arange(length).float(), inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos()[None, None, :, :])
        self.register_buffer("sin_cached", emb.sin()[None, None, :, :])

    def forward(self, q):
        T = q.shape[-2]
        cos, sin = self.cos_cached[:, :, :T], self.sin_cached[:, :, :T]
        return (q * cos.to(q.dtype)) + (rotate_half(q) * sin.to(q.dtype))


class RotaryByPosition(nn.Module):
    def forward(self, q, cos, sin):
        position_ids = torch.arange(q.shape[-2], device=q.device)
        return (q * cos[position_ids]) + (rotate_half(q) * sin[position_ids])


class RotaryOverQueryAndKey(nn.Module):
    sites = 1

    def forward(self, q, k, cos, sin):
        q, k = map(lambda t: (t * cos) + (rotate_half(t) * sin), (q, k))
        return q, k


class RotaryInAComprehension(nn.Module):
    sites = 1

    def forward(self, q, k, cos, sin):
        q, k = [t * cos + rotate_half(t) * sin for t in (q, k)]
        return q, k


class RotaryOfXpos(nn.Module):
    arguments = {"freqs": "cos", "scale": "sin"}

    def forward(self, q, freqs, scale):
        return (q * freqs.cos() * scale) + (rotate_half(q) * freqs.sin() * scale)


class RotaryOfScaledQuery(nn.Module):
    def forward(self, q, cos, sin):
        q = q * (q.shape[-1] ** -0.5)
        return (q * cos) + (rotate_half(q) * sin)


class RotaryOfDeepseek(nn.Module):
    def forward(self, q, cos, sin):
        b, h, s, d = q.shape
        q = q.view(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)
        return (q * cos) + (rotate_half(q) * sin)


class RotaryBeforeHeadsAreMoved(nn.Module):
    arguments = {"cos": "cos_rows", "sin": "sin_rows"}

    def forward(self, queries, cos, sin):
        queries = (queries * cos) + (rotate_half(queries) * sin)
        return queries.transpose(1, 2)


class RotaryWithinAttention(nn.Module):
    sites = 2
    also = ("AF101",)

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = self.qkv(x).split(C, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        q = (q * cos) + (rotate_half(q) * sin)
        k = (k * cos) + (rotate_half(k) * sin)
        att = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)
        return self.out((att @ v).transpose(1, 2).reshape(B, T, C))


# Neighbouring pairs.


def rotate_every_two(x):
    x1 = x[:, :, :, ::2]
    x2 = x[:, :, :, 1::2]
    x = torch.stack((-x2, x1), dim=-1)
    return x.flatten(-2)


class RotaryOfGptJ(nn.Module):
    rule = "AF402"
    arguments = {"cos": "cos_half", "sin": "sin_half"}

    def forward(self, q, sin, cos):
        sin = torch.repeat_interleave(sin[None, None, :, :], 2, 3)
        cos = torch.repeat_interleave(cos[None, None, :, :], 2, 3)
        return (q * cos) + (rotate_every_two(q) * sin)


class RotaryOfRoFormer(nn.Module):
    rule = "AF402"
    sites = 2

    def forward(self, q, k, cos, sin):
        rotate_half_query_layer = torch.stack([-q[..., 1::2], q[..., ::2]], dim=-1).reshape_as(q)
        q = q * cos + rotate_half_query_layer * sin
        rotate_half_key_layer = torch.stack([-k[..., 1::2], k[..., ::2]], dim=-1).reshape_as(k)
        k = k * cos + rotate_half_key_layer * sin
        return q, k


def rotate_pairs_of_einops(x):
    x = rearrange(x, "... (d j) -> ... d j", j=2)
    x1, x2 = x.unbind(dim=-1)
    x = torch.stack((-x2, x1), dim=-1)
    return rearrange(x, "... d j -> ... (d j)")


class PairsByEinops(nn.Module):
    rule = "AF402"
    arguments = {"sinu_pos": "cos"}

    def forward(self, q, k, sinu_pos):
        sin, cos = sinu_pos.sin(), sinu_pos.cos()
        q, k = map(lambda t: (t * cos) + (rotate_pairs_of_einops(t) * sin), (q, k))
        return q, k


class RotaryOfCohere(nn.Module):
    rule = "AF402"

    def rotate_half(self, x):
        x1 = x[..., ::2]
        x2 = x[..., 1::2]
        return torch.stack([-x2, x1], dim=-1).flatten(-2)

    def forward(self, q, cos, sin):
        dtype = q.dtype
        q = q.float()
        return ((q * cos) + (self.rotate_half(q) * sin)).to(dtype=dtype)


class PairsReshapedToTheShape(nn.Module):
    rule = "AF402"

    def forward(self, q, cos, sin):
        a, b = q[..., 0::2], q[..., 1::2]
        rotated = torch.stack((-b, a), dim=-1).reshape(q.shape)
        return q * cos + rotated * sin


class PairsWithOneAngleEach(nn.Module):
    rule = "AF402"
    arguments = {"cos": "cos_half", "sin": "sin_half"}

    def forward(self, q, cos, sin):
        x1, x2 = q.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


class RotaryOfGptFast(nn.Module):
    rule = "AF402"

    def forward(self, queries, freqs_pairs):
        xshaped = queries.float().reshape(*queries.shape[:-1], -1, 2)
        freqs_pairs = freqs_pairs.view(1, xshaped.size(1), 1, xshaped.size(3), 2)
        x_out2 = torch.stack(
            [
                xshaped[..., 0] * freqs_pairs[..., 0] - xshaped[..., 1] * freqs_pairs[..., 1],
                xshaped[..., 1] * freqs_pairs[..., 0] + xshaped[..., 0] * freqs_pairs[..., 1],
            ],
            -1,
        )
        x_out2 = x_out2.flatten(3)
        return x_out2.type_as(queries)


# Complex numbers.


def reshape_for_broadcast(freqs_cis, x):
    ndim = x.ndim
    assert 0 <= 1 < ndim
    assert freqs_cis.shape == (x.shape[1], x.shape[-1])
    shape = [d if i == 1 or i == ndim - 1 else 1 for i, d in enumerate(x.shape)]
    return freqs_cis.view(*shape)


def apply_rotary_emb(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = reshape_for_broadcast(freqs_cis, xq_)
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


class RotaryOfMetaLlama(nn.Module):
    rule = "AF402"
    sites = 2

    def forward(self, queries, keys, freqs_cis):
        return apply_rotary_emb(queries, keys, freqs_cis)


class ComplexWithShapeAdded(nn.Module):
    rule = "AF402"

    def forward(self, q, freqs_cis):
        pairs = torch.view_as_complex(q.float().reshape(q.shape[:-1] + (-1, 2)))
        return torch.view_as_real(freqs_cis * pairs).reshape(q.shape).to(q.dtype)


class ComplexFromParts(nn.Module):
    rule = "AF402"

    def forward(self, q, freqs_cis):
        q32 = q.float()
        numbers = torch.complex(q32[..., 0::2], q32[..., 1::2])
        return torch.view_as_real(numbers * freqs_cis).flatten(-2)


class ComplexWithSizesNamed(nn.Module):
    rule = "AF402"

    def forward(self, q, freqs_cis):
        b, h, t, d = q.shape
        turned = torch.view_as_complex(q.float().view(b, h, t, d // 2, 2)) * freqs_cis[None, None]
        return torch.view_as_real(turned).view(b, h, t, d).type_as(q)
