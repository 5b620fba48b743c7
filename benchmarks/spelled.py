"""Operations as models write them, one function each: what autofuse.ops is measured against.

Only torch's plain operators, without autofuse and without fused kernels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0) -> Tensor:
    """`mask` is True where the query attends. Key and value may have fewer heads than the query."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return F.dropout(torch.softmax(scores, dim=-1), dropout_p) @ value


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((scores * 0.125).masked_fill(~mask, float("-inf")), dim=-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """As in Llama, with statistics in float32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return wide.to(x.dtype) * weight


def dropout_add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, dropout_p: float) -> Tensor:
    return layer_norm(residual + F.dropout(x, dropout_p), weight, bias)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = residual + x
    return total, rms_norm(total, weight)


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return gelu_tanh(x + bias)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return gate * torch.sigmoid(gate) * up


def swiglu_packed(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def mlp(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    return F.linear(gelu(F.linear(x, up, up_bias)), down, down_bias)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rotary_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2) * sin


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    log_probs = torch.log_softmax(logits, dim=-1)
    return -log_probs.gather(-1, target[:, None]).mean()


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(x @ weight.T, target)
