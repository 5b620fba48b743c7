# ruff: noqa
"""Attention: where people put the scale (sections 1 and 2 of the spellings)."""

import math
from math import sqrt

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Heads(nn.Module):
    def __init__(self, head_dim=8):
        super().__init__()
        self.head_dim = head_dim
        self.scale = head_dim**-0.5
        self.sqrt_dim = math.sqrt(head_dim)


class DivideBySqrtOfSize(nn.Module):
    cross = True

    def forward(self, q, k, v):
        att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        return F.softmax(att, dim=-1) @ v


class DivideInBrackets(nn.Module):
    def forward(self, q, k, v):
        att = (q @ k.transpose(-2, -1)) / sqrt(k.shape[-1])
        att = F.softmax(att, dim=-1)
        return att @ v


class TimesSelfScale(Heads):
    cross = True

    def forward(self, q, k, v):
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        return attn @ v


class ScaleFromTheLeft(Heads):
    def forward(self, q, k, v):
        scores = self.scale * torch.matmul(q, k.transpose(2, 3))
        probs = torch.softmax(scores, dim=-1)
        return torch.matmul(probs, v)


class TimesPowerOfMinusHalf(nn.Module):
    def forward(self, q, k, v):
        w = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        w = F.softmax(w, dim=-1)
        return w @ v


class TimesOneOverSqrt(nn.Module):
    def forward(self, q, k, v):
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = F.softmax(att, dim=-1)
        y = att @ v
        return y


class NoScaleAtAll(nn.Module):
    def forward(self, q, k, v):
        energy = torch.matmul(q, k.transpose(-1, -2))
        return torch.matmul(torch.softmax(energy, -1), v)


class DivideByFloatPower(nn.Module):
    def forward(self, q, k, v):
        w = torch.matmul(q, k.transpose(-1, -2))
        w = w / (float(v.size(-1)) ** 0.5)
        w = nn.Softmax(dim=-1)(w)
        return torch.matmul(w, v)


class DivideByTensorSqrt(nn.Module):
    def forward(self, q, k, v):
        d_k = k.size(-1)
        scores = torch.matmul(q, k.transpose(-2, -1)) / torch.sqrt(torch.tensor(d_k, dtype=torch.float32))
        attention = F.softmax(scores, dim=-1)
        return torch.matmul(attention, v)


class DivideByNumpySqrt(nn.Module):
    def __init__(self, d_k=8):
        super().__init__()
        self.d_k = d_k

    def forward(self, q, k, v):
        scores = torch.matmul(q, k.transpose(-1, -2)) / np.sqrt(self.d_k)
        attn = nn.Softmax(dim=-1)(scores)
        context = torch.matmul(attn, v)
        return context


class ScaleInPlace(Heads):
    def forward(self, q, k, v):
        dots = torch.matmul(q, k.transpose(-1, -2))
        dots *= self.scale
        return torch.matmul(dots.softmax(dim=-1), v)


class DivideInPlace(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1)
        scores /= math.sqrt(q.shape[-1])
        return F.softmax(scores, dim=-1) @ v


class MulMethodInPlace(Heads):
    def forward(self, q, k, v):
        scores = torch.matmul(q, k.mT).mul_(self.scale)
        weights = F.softmax(scores, dim=-1)
        return torch.matmul(weights, v)


class FunctionsOnly(nn.Module):
    def forward(self, q, k, v):
        scores = torch.div(torch.matmul(q, torch.transpose(k, -2, -1)), math.sqrt(q.size(-1)))
        return torch.matmul(torch.softmax(scores, dim=-1), v)


class MethodsOnly(Heads):
    def forward(self, q, k, v):
        return q.matmul(k.transpose(-2, -1)).mul(self.scale).softmax(-1).matmul(v)


class MulFunction(Heads):
    def forward(self, q, k, v):
        scores = torch.mul(torch.matmul(q, k.transpose(-2, -1)), self.scale)
        return torch.matmul(F.softmax(scores, dim=-1), v)


class LiteralEighth(nn.Module):
    def forward(self, q, k, v):
        s = (q @ k.transpose(-2, -1)) / 8.0
        return s.softmax(dim=-1) @ v


class SqrtKeptOnSelf(Heads):
    def forward(self, q, k, v):
        s = (q @ k.transpose(-2, -1)) / self.sqrt_dim
        p = F.softmax(s, dim=-1)
        return p @ v


class SqrtOfSelfDim(Heads):
    def forward(self, q, k, v):
        attention_scores = torch.matmul(q, k.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.head_dim)
        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        return torch.matmul(attention_probs, v)


class ScaleOrDefault(nn.Module):
    def __init__(self, dim=24, num_heads=3, qk_scale=None):
        super().__init__()
        head_dim = dim // num_heads
        self.scale = qk_scale or head_dim**-0.5

    def forward(self, q, k, v):
        attn = (q @ k.transpose(-2, -1)) * self.scale
        return attn.softmax(dim=-1) @ v


class ScaleBuffer(nn.Module):
    safety = "unsafe"

    def __init__(self, head_dim=8):
        super().__init__()
        self.register_buffer("scale", torch.tensor(head_dim**-0.5))

    def forward(self, q, k, v):
        return F.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1) @ v


class ScaleTensorAttribute(nn.Module):
    """GPT-J keeps the divisor as a plain tensor."""

    safety = "unsafe"

    def __init__(self, head_dim=8):
        super().__init__()
        self.scale_attn = torch.sqrt(torch.tensor(head_dim, dtype=torch.float32)).to(torch.get_default_dtype())

    def forward(self, q, k, v):
        attn_weights = torch.matmul(q, k.transpose(-1, -2))
        attn_weights = attn_weights / self.scale_attn
        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        return torch.matmul(attn_weights, v)


class LearnedTemperature(nn.Module):
    safety = "unsafe"

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.7))

    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / self.temperature
        return torch.softmax(scores, dim=-1) @ v


class TemperaturePerHead(nn.Module):
    """Swin v2: cosine similarity, times a temperature for each head."""

    safety = "unsafe"

    def __init__(self, heads=3):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones((heads, 1, 1))))

    def forward(self, q, k, v):
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.exp()
        return attn.softmax(dim=-1) @ v


class SizeUnpacked(nn.Module):
    cross = True

    def forward(self, q, k, v):
        batch, heads, length, d_tensor = k.size()
        score = (q @ k.transpose(2, 3)) / math.sqrt(d_tensor)
        score = F.softmax(score, dim=-1)
        return score @ v


class SizeStarred(nn.Module):
    def forward(self, q, k, v):
        *_, d = q.shape
        return ((q @ k.transpose(-1, -2)) * d**-0.5).softmax(-1) @ v


class SizeIndexed(nn.Module):
    def forward(self, q, k, v):
        d_k = q.size()[-1]
        attn_logits = torch.matmul(q, k.transpose(-2, -1))
        attn_logits = attn_logits / math.sqrt(d_k)
        attention = F.softmax(attn_logits, dim=-1)
        values = torch.matmul(attention, v)
        return values


class MathPow(nn.Module):
    def forward(self, q, k, v):
        factor = math.pow(q.size(-1), -0.5)
        return torch.softmax(factor * (q @ k.transpose(-1, -2)), dim=-1) @ v


class NegativeFraction(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-1, -2) * (q.size(-1) ** (-1 / 2))
        return scores.softmax(-1) @ v


class TwoFactors(Heads):
    def forward(self, q, k, v):
        scores = (q @ k.transpose(-1, -2)) * self.scale
        scores = scores / 2.0
        return F.softmax(scores, dim=-1) @ v


# Section 2: the operands are scaled first.


class QueryTimesScale(Heads):
    def forward(self, q, k, v):
        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        return attn @ v


class QueryDividedByRoot(nn.Module):
    def forward(self, q, k, v):
        q = q / math.sqrt(q.size(-1))
        return F.softmax(torch.matmul(q, k.transpose(2, 3)), dim=-1) @ v


class QueryDivMethod(nn.Module):
    def forward(self, q, k, v):
        scores = torch.matmul(q.div(math.sqrt(q.shape[-1])), k.transpose(-1, -2))
        return torch.matmul(F.softmax(scores, dim=-1), v)


class KeyTimesScale(Heads):
    def forward(self, q, k, v):
        scores = q @ (k * self.scale).transpose(-2, -1)
        return scores.softmax(dim=-1) @ v


class KeyScaledAfterTranspose(Heads):
    def forward(self, q, k, v):
        k_t = k.transpose(-2, -1) * self.scale
        return torch.softmax(q @ k_t, dim=-1) @ v


class BothByFourthRoot(nn.Module):
    cross = True

    def forward(self, q, k, v):
        root = q.size(-1) ** 0.25
        return F.softmax((q / root) @ (k / root).transpose(-2, -1), dim=-1) @ v


class BothBySqrtOfSqrt(nn.Module):
    """Diffusion U-Nets: more stable in fp16 than dividing afterwards."""

    def forward(self, q, k, v):
        scale = 1 / math.sqrt(math.sqrt(q.shape[-1]))
        weight = torch.matmul(q * scale, (k * scale).transpose(-1, -2))
        weight = torch.softmax(weight.float(), dim=-1).type(weight.dtype)
        return torch.matmul(weight, v)


class WhisperBothScaled(nn.Module):
    def forward(self, queries, keys, values):
        scale = (queries.shape[-1]) ** -0.25
        q = queries.permute(0, 2, 1, 3) * scale
        k = keys.permute(0, 2, 3, 1) * scale
        v = values.permute(0, 2, 1, 3)
        w = F.softmax(q @ k, dim=-1)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2)


class ProjectedQueryScaledInPlace(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.scale = dim**-0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q = self.to_q(x)
        q *= self.scale
        return F.softmax(q @ self.to_k(x).transpose(1, 2), dim=-1) @ x
