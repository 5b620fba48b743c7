# ruff: noqa
"""Attention: how scores are masked (section 6 of the spellings)."""

import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def exists(value):
    return value is not None


class Scores(nn.Module):
    def __init__(self, head_dim=8, block_size=16):
        super().__init__()
        self.scale = head_dim**-0.5
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))
        self.register_buffer("masked_bias", torch.tensor(-1e4))


class FilledWithMinusInfinity(Scores):
    cross = True

    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) * self.scale
        scores = scores.masked_fill(mask == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class FilledWithMinusInfinityOfTorch(Scores):
    def forward(self, q, k, v, drop):
        scores = torch.masked_fill(q @ k.mT * self.scale, drop, -torch.inf)
        return F.softmax(scores, dim=-1) @ v


class FilledWithMathInf(Scores):
    def forward(self, q, k, v, keep):
        scores = (q @ k.mT * self.scale).masked_fill(~keep, -math.inf)
        return F.softmax(scores, dim=-1) @ v


class FilledWithABillion(nn.Module):
    fills = True

    def forward(self, q, k, v, mask):
        d_k = q.size(-1)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)
        scores = scores.masked_fill(mask == 0, -1e9)
        return torch.matmul(F.softmax(scores, dim=-1), v)


class FilledWithTenThousand(Scores):
    safety = "unsafe"
    fills = True

    def forward(self, q, k, v, mask):
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        scores = scores.masked_fill(mask == 0, -1e4)
        return torch.matmul(F.softmax(scores, dim=-1), v)


class FilledWithMinimumOfDtype(Scores):
    fills = True

    def forward(self, q, k, v, mask):
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        scores = scores.masked_fill(~mask.bool(), torch.finfo(scores.dtype).min)
        return torch.matmul(F.softmax(scores, dim=-1), v)


class FilledWithMinusMaximum(Scores):
    """x-transformers and lucidrains' others."""

    fills = True

    def forward(self, q, k, v, keep):
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        mask_value = -torch.finfo(dots.dtype).max
        dots = dots.masked_fill(~keep, mask_value)
        return torch.matmul(dots.softmax(dim=-1), v)


class FilledInPlace(Scores):
    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) * self.scale
        scores.masked_fill_(mask == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class FilledInPlaceWithBillion(Scores):
    fills = True

    def forward(self, q, k, v, drop):
        scores = q @ k.transpose(-2, -1) * self.scale
        scores = scores.masked_fill_(drop, -1e9)
        return F.softmax(scores, dim=-1) @ v


class FilledWithIntegerMask(Scores):
    fills = True

    def forward(self, q, k, v, keep_int):
        energy = torch.matmul(q, k.permute(0, 1, 3, 2)) * self.scale
        energy = energy.masked_fill(keep_int == 0, -1e10)
        attention = torch.softmax(energy, dim=-1)
        return torch.matmul(attention, v)


class FilledWithEqualsOne(Scores):
    def forward(self, q, k, v, drop_int):
        scores = (q @ k.mT * self.scale).masked_fill(drop_int == 1, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class FilledWithEqualsFalse(Scores):
    def forward(self, q, k, v, keep):
        scores = (q @ k.mT * self.scale).masked_fill(keep == False, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class FilledWithLogicalNot(Scores):
    def forward(self, q, k, v, keep):
        scores = q @ k.mT * self.scale
        scores = scores.masked_fill(torch.logical_not(keep), float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class WhereOtherwiseFill(Scores):
    fills = True

    def forward(self, q, k, v, keep):
        scores = q @ k.mT * self.scale
        scores = torch.where(keep, scores, -1e9)
        return F.softmax(scores, dim=-1) @ v


class WhereOtherwiseTensor(nn.Module):
    """Hugging Face's GPT-2: the fill is a tensor of the scores' dtype."""

    safety = "unsafe"
    fills = True

    def forward(self, q, k, v, keep):
        attn_weights = torch.matmul(q, k.transpose(-1, -2)) / (v.size(-1) ** 0.5)
        mask_value = torch.finfo(attn_weights.dtype).min
        mask_value = torch.full([], mask_value, dtype=attn_weights.dtype, device=attn_weights.device)
        attn_weights = torch.where(keep, attn_weights.to(attn_weights.dtype), mask_value)
        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        return torch.matmul(attn_weights, v)


class WhereFillFirst(Scores):
    def forward(self, q, k, v, drop):
        scores = q @ k.mT * self.scale
        scores = torch.where(drop, torch.tensor(float("-inf"), dtype=scores.dtype), scores)
        return F.softmax(scores, dim=-1) @ v


class WhereFullLike(Scores):
    fills = True

    def forward(self, q, k, v, mask):
        scores = q @ k.mT * self.scale
        scores = torch.where(mask > 0, scores, torch.full_like(scores, -1e9))
        return F.softmax(scores, dim=-1) @ v


class Added(Scores):
    cross = True

    def forward(self, q, k, v, additive):
        scores = q @ k.mT * self.scale + additive
        return F.softmax(scores, dim=-1) @ v


class AddedFromTheLeft(Scores):
    def forward(self, q, k, v, additive):
        scores = additive + self.scale * (q @ k.mT)
        return F.softmax(scores, dim=-1) @ v


class AddedInPlace(Scores):
    def forward(self, q, k, v, additive):
        scores = q @ k.mT * self.scale
        scores += additive
        return F.softmax(scores, dim=-1) @ v


class AddedMethod(Scores):
    def forward(self, q, k, v, additive):
        return torch.add(torch.matmul(q, k.mT).mul(self.scale), additive).softmax(dim=-1).matmul(v)


class AddedBert(Scores):
    """The caller made 0 and -10000 of 1 and 0."""

    def forward(self, q, k, v, attention_mask):
        attention_scores = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attention_scores = attention_scores + attention_mask
        return torch.matmul(nn.functional.softmax(attention_scores, dim=-1), v)


class AddedAndMadeHere(Scores):
    """0 and -10000 are made of 1 and 0 on the spot."""

    fills = True

    def forward(self, q, k, v, mask):
        extended = (1.0 - mask) * -10000.0
        scores = q @ k.mT * self.scale + extended
        return F.softmax(scores, dim=-1) @ v


class AddedTriuOfInfinity(Scores):
    def forward(self, q, k, v):
        t = q.size(-2)
        scores = q @ k.mT * self.scale
        scores = scores + torch.triu(torch.full((t, t), float("-inf"), device=q.device, dtype=q.dtype), 1)
        return F.softmax(scores, dim=-1) @ v


class AddedTriuBuffer(nn.Module):
    """Whisper and CLIP: the causal mask is an additive buffer."""

    def __init__(self, n_ctx=16):
        super().__init__()
        mask = torch.empty(n_ctx, n_ctx).fill_(float("-inf")).triu_(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, q, k, v):
        n_ctx = q.shape[2]
        qk = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        qk = qk + self.mask[:n_ctx, :n_ctx]
        w = F.softmax(qk, dim=-1)
        return w @ v


class AddedTriuAfterScaling(nn.Module):
    """Mask added to the bare scores, and both scaled together."""

    safety = "unsafe"  # the mask is an argument, which may drop a row whole with a large finite number

    arguments = {"mask": "additive"}

    def forward(self, q, k, v, mask):
        scores = (q @ k.transpose(-2, -1) + mask) / math.sqrt(q.size(-1))
        return F.softmax(scores, dim=-1) @ v


class LowerTriangleMadeHere(nn.Module):
    def forward(self, q, k, v):
        T = q.size(-2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        causal = torch.tril(torch.ones(T, T, dtype=torch.bool, device=q.device))
        scores = scores.masked_fill(~causal, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class UpperTriangleMadeHere(nn.Module):
    def forward(self, q, k, v):
        T = q.size(-2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        mask = torch.triu(torch.ones(T, T, device=q.device), diagonal=1).bool()
        scores = scores.masked_fill(mask, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class UpperTriangleMethod(nn.Module):
    """lucidrains: i and j are the lengths, j - i + 1 the diagonal."""

    cross = True

    def forward(self, q, k, v):
        dots = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        i, j = dots.shape[-2:]
        causal_mask = torch.ones((i, j), device=q.device, dtype=torch.bool).triu(j - i + 1)
        dots = dots.masked_fill(causal_mask, -torch.finfo(dots.dtype).max)
        return torch.matmul(dots.softmax(dim=-1), v)


class LowerTriangleByComparison(nn.Module):
    def forward(self, q, k, v):
        positions = torch.arange(q.size(-2), device=q.device)
        scores = q @ k.mT / math.sqrt(q.size(-1))
        scores = scores.masked_fill(positions[None, :] > positions[:, None], float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class NanoGpt(Scores):
    def forward(self, q, k, v):
        T = q.size(2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        return att @ v


class TeachingTril(nn.Module):
    """One head of the lecture: `self.tril[:T, :T] == 0`."""

    def __init__(self, n_embd=24, head_size=8, block_size=16):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        v = self.value(x)
        out = wei @ v
        return out


class UpperBufferAsBool(nn.Module):
    """Raschka's book: the buffer holds what is dropped, `.bool()[:T, :T]`, filled in place."""

    def __init__(self, d_in=24, d_out=24, context_length=16):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        attn_scores = queries @ keys.transpose(1, 2)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        context_vec = attn_weights @ values
        return context_vec


class Gpt2TimesBuffer(Scores):
    """GPT-2 of 2019: `w * b - 1e4 * (1 - b)`."""

    safety = "unsafe"
    cross = True

    def forward(self, q, k, v):
        w = torch.matmul(q, k.transpose(-1, -2))
        w = w / math.sqrt(v.size(-1))
        nd, ns = w.size(-2), w.size(-1)
        b = self.bias[:, :, ns - nd : ns, :ns]
        w = w * b - 1e4 * (1 - b)
        w = nn.Softmax(dim=-1)(w)
        return torch.matmul(w, v)


class Gpt1TimesBuffer(Scores):
    """GPT-1: `w * b + -1e9 * (1 - b)`."""

    def forward(self, q, k, v):
        w = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(v.size(-1))
        b = self.bias[:, :, : w.size(-2), : w.size(-1)]
        w = w * b + -1e9 * (1 - b)
        w = nn.Softmax(dim=-1)(w)
        return torch.matmul(w, v)


class Gpt2WhereBuffer(nn.Module):
    """GPT-2 of 2021: `torch.where(causal_mask, w, self.masked_bias)`."""

    cross = True
    safety = "unsafe"

    def __init__(self, max_positions=16):
        super().__init__()
        self.register_buffer(
            "bias",
            torch.tril(torch.ones((max_positions, max_positions), dtype=torch.uint8)).view(
                1, 1, max_positions, max_positions
            ),
        )
        self.register_buffer("masked_bias", torch.tensor(-1e4))

    def forward(self, q, k, v):
        attn_weights = torch.matmul(q, k.transpose(-1, -2))
        attn_weights = attn_weights / (float(v.size(-1)) ** 0.5)
        query_length, key_length = q.size(-2), k.size(-2)
        causal_mask = self.bias[:, :, key_length - query_length : key_length, :key_length].bool()
        attn_weights = torch.where(causal_mask, attn_weights, self.masked_bias.to(attn_weights.dtype))
        attn_weights = nn.Softmax(dim=-1)(attn_weights)
        return torch.matmul(attn_weights, v)


class KeyPaddingUnsqueezed(Scores):
    def forward(self, q, k, v, padding):
        mask = padding.unsqueeze(1).unsqueeze(2)
        scores = (q @ k.mT * self.scale).masked_fill(mask == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class KeyPaddingIndexed(Scores):
    def forward(self, q, k, v, padding):
        scores = q @ k.mT * self.scale
        scores = scores.masked_fill(padding[:, None, None, :] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class KeyPaddingOfTorch(Scores):
    """True where a key is padding, as nn.MultiheadAttention has it."""

    cross = True

    def forward(self, q, k, v, key_padding_mask):
        scores = q @ k.mT * self.scale
        scores = scores.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class KeyPaddingExpandedAs(nn.Module):
    """DistilBERT: the mask is viewed, expanded to the scores and compared; in float64 its fill is -inf."""

    def forward(self, q, k, v, padding):
        bs, k_length = q.size(0), k.size(2)
        mask_reshp = (bs, 1, 1, k_length)
        q = q / math.sqrt(q.size(-1))
        scores = torch.matmul(q, k.transpose(2, 3))
        mask = (padding == 0).view(mask_reshp).expand_as(scores)
        scores = scores.masked_fill(mask, torch.tensor(torch.finfo(scores.dtype).min))
        weights = nn.functional.softmax(scores, dim=-1)
        return torch.matmul(weights, v)


class KeyPaddingOverFlatHeads(Scores):
    """fairseq: the batch is viewed as (batch, heads) for the mask, and viewed back."""

    def forward(self, q, k, v, key_padding_mask):
        bsz, num_heads, tgt_len, head_dim = q.shape
        q, k, v = (t.reshape(bsz * num_heads, tgt_len, head_dim) for t in (q, k, v))
        attn_weights = torch.bmm(q, k.transpose(1, 2)) * self.scale
        attn_weights = attn_weights.view(bsz, num_heads, tgt_len, tgt_len)
        attn_weights = attn_weights.masked_fill(key_padding_mask.unsqueeze(1).unsqueeze(2), float("-inf"))
        attn_weights = attn_weights.view(bsz * num_heads, tgt_len, tgt_len)
        attn_weights = F.softmax(attn_weights, dim=-1)
        return torch.bmm(attn_weights, v).view(bsz, num_heads, tgt_len, head_dim)


class SameMaskForAllHeads(nn.Module):
    """The Annotated Transformer: `mask.unsqueeze(1)`, under a test for None."""

    arguments = {"mask": "mask_3d"}
    fills = True

    def forward(self, q, k, v, mask=None):
        if mask is not None:
            # Same mask applied to all h heads.
            mask = mask.unsqueeze(1)
        d_k = q.size(-1)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        p_attn = F.softmax(scores, dim=-1)
        return torch.matmul(p_attn, v)


class OptionalAdded(Scores):
    arguments = {"mask": "additive"}

    def forward(self, q, k, v, mask=None):
        scores = q @ k.mT * self.scale
        if mask is not None:
            scores = scores + mask
        return F.softmax(scores, dim=-1) @ v


class OptionalFilled(Scores):
    cross = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return torch.matmul(scores.softmax(dim=-1), v)


class OptionalAddedInPlace(Scores):
    arguments = {"attn_mask": "additive"}

    def forward(self, q, k, v, attn_mask=None):
        scores = q @ k.mT * self.scale
        if attn_mask is not None:
            scores += attn_mask
        return F.softmax(scores, dim=-1) @ v


class OptionalByHelper(Scores):
    fills = True

    def forward(self, q, k, v, keep=None):
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        if exists(keep):
            dots = dots.masked_fill(~keep, -torch.finfo(dots.dtype).max)
        return torch.matmul(dots.softmax(dim=-1), v)


class OptionalOtherwise(Scores):
    arguments = {"mask": "additive"}

    def forward(self, q, k, v, mask=None):
        if mask is None:
            scores = q @ k.mT * self.scale
        else:
            scores = q @ k.mT * self.scale + mask
        return F.softmax(scores, dim=-1) @ v


class OptionalInOneLine(Scores):
    def forward(self, q, k, v, mask=None):
        scores = q @ k.mT * self.scale
        scores = scores if mask is None else scores.masked_fill(mask == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class OptionalBoolean(Scores):
    arguments = {"mask": "mask_2d"}

    def forward(self, q, k, v, mask=None):
        attn_bias = q @ k.mT * self.scale
        if mask is not None:
            attn_bias.masked_fill_(mask.logical_not(), float("-inf"))
        return torch.softmax(attn_bias, dim=-1) @ v


class TwoFilled(Scores):
    """Causal, and what the caller masks."""

    def forward(self, q, k, v, mask):
        T = q.size(-2)
        scores = q @ k.mT * self.scale
        scores = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        scores = scores.masked_fill(mask == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class CausalAndOptionalPadding(Scores):
    arguments = {"pad_mask": "drop_padding_4d"}

    def forward(self, q, k, v, pad_mask=None):
        T = q.size(-2)
        scores = q @ k.mT * self.scale
        scores = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        if pad_mask is not None:
            scores = scores.masked_fill(pad_mask, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class CausalAndAdded(nn.Module):
    """Old Hugging Face GPT-2: the causal buffer, then an additive mask where given."""

    safety = "unsafe"
    arguments = {"attention_mask": "extended"}

    def __init__(self, n_ctx=16):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(n_ctx, n_ctx)).view(1, 1, n_ctx, n_ctx))

    def forward(self, q, k, v, attention_mask=None):
        w = torch.matmul(q, k.transpose(-1, -2)) / (float(v.size(-1)) ** 0.5)
        nd, ns = w.size(-2), w.size(-1)
        mask = self.bias[:, :, ns - nd : ns, :ns]
        w = w * mask - 1e4 * (1 - mask)
        if attention_mask is not None:
            w = w + attention_mask
        w = nn.Softmax(dim=-1)(w)
        return torch.matmul(w, v)


class CombinedByAnd(Scores):
    def forward(self, q, k, v, keep):
        T = q.size(-2)
        allowed = keep & (self.tril[:T, :T] == 1)
        scores = (q @ k.mT * self.scale).masked_fill(~allowed, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class BiasThenFilled(Scores):
    def forward(self, q, k, v, bias, mask):
        scores = q @ k.mT * self.scale + bias
        scores = scores.masked_fill(mask == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class AddedToFloatScores(Scores):
    """Llama of the first release: scores plus mask in float32, cast back after softmax."""

    arguments = {"mask": "additive"}

    def forward(self, q, k, v, mask: Optional[torch.Tensor]):
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(q)
        return torch.matmul(scores, v)


class MaskOfAnotherDtype(Scores):
    """A mask in float16 is added after a cast."""

    def forward(self, q, k, v, additive):
        scores = q @ k.mT * self.scale + additive.to(q.dtype)
        return F.softmax(scores, dim=-1) @ v


class CausalFlagOnSelf(Scores):
    """The branch tests a flag that is fixed when the model is made."""

    def __init__(self):
        super().__init__()
        self.causal = True

    def forward(self, q, k, v):
        scores = q @ k.mT * self.scale
        if self.causal:
            T = q.size(-2)
            scores = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class MaskGivenOrCausal(Scores):
    """No mask means causal."""

    def forward(self, q, k, v, mask=None):
        T = q.size(-2)
        if mask is None:
            mask = self.tril[:T, :T]
        scores = q @ k.mT * self.scale
        scores = scores.masked_fill(mask == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class AssignedByTrailingMask(Scores):
    """An index takes the dimensions from where it stands."""

    safety = "unsafe"

    def forward(self, q, k, v, mask_2d):
        scores = q @ k.transpose(-2, -1) * self.scale
        scores[:, :, ~mask_2d] = float("-inf")
        return F.softmax(scores, dim=-1) @ v


class AssignedAfterEllipsis(Scores):
    def forward(self, q, k, v, mask_2d):
        scores = q @ k.transpose(-2, -1) * self.scale
        scores[..., mask_2d == 0] = -math.inf
        return scores.softmax(-1) @ v


class AssignedByExpandedMask(Scores):
    safety = "unsafe"

    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) * self.scale
        scores[(mask == 0).expand_as(scores)] = float("-inf")
        return F.softmax(scores, dim=-1) @ v


class AssignedOfOneHead(Scores):
    safety = "unsafe"

    def forward(self, query, key, value, mask_3d):
        scores = query @ key.transpose(1, 2) / math.sqrt(query.size(-1))
        scores[~mask_3d] = -torch.inf
        return torch.softmax(scores, dim=-1) @ value


class AssignedLowestNumber(Scores):
    safety = "unsafe"

    def forward(self, query, key, value, mask_3d):
        scores = query @ key.transpose(1, 2) / math.sqrt(query.size(-1))
        scores[mask_3d == 0] = torch.finfo(scores.dtype).min
        return torch.softmax(scores, dim=-1) @ value


class AssignedCausalBuffer(Scores):
    safety = "unsafe"

    def forward(self, q, k, v):
        t = q.size(-2)
        att = q @ k.transpose(-2, -1) * self.scale
        att[:, :, self.tril[:t, :t] == 0] = float("-inf")
        return F.softmax(att, dim=-1) @ v


class AssignedUpperTriangle(Scores):
    def forward(self, q, k, v):
        t = q.size(-2)
        att = q @ k.transpose(-2, -1) * self.scale
        future = torch.triu(torch.ones(t, t, dtype=torch.bool, device=q.device), 1)
        att[..., future] = float("-inf")
        return F.softmax(att, dim=-1) @ v


class AssignedByArgument(Scores):
    """The text does not tell a mask from indices."""

    entry_points = ("live",)

    def forward(self, query, key, value, mask_3d):
        scores = query @ key.transpose(1, 2) / math.sqrt(query.size(-1))
        drop = mask_3d.logical_not() if mask_3d.dtype == torch.bool else mask_3d
        scores[drop] = float("-inf")
        return torch.softmax(scores, dim=-1) @ value
