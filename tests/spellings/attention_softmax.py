# ruff: noqa
"""Attention: softmax, its precision, and dropout (sections 8 and 9 of the spellings)."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import softmax as soft_maximum
from torch.nn.functional import dropout, softmax


class Plain(nn.Module):
    def __init__(self, head_dim=8):
        super().__init__()
        self.scale = head_dim**-0.5


class ImportedByName(Plain):
    def forward(self, q, k, v):
        return softmax(q @ k.mT * self.scale, dim=-1) @ v


class ImportedUnderAnotherName(Plain):
    def forward(self, q, k, v):
        return soft_maximum(q @ k.mT * self.scale, dim=-1) @ v


class DimensionByPosition(Plain):
    def forward(self, q, k, v):
        return F.softmax(q @ k.mT * self.scale, -1) @ v


class DimensionFromTheFront(Plain):
    entry_points = ("live",)  # how many dimensions q has cannot be read from the text

    def forward(self, q, k, v):
        return F.softmax(q @ k.transpose(2, 3) * self.scale, dim=3) @ v


class LongName(Plain):
    def forward(self, q, k, v):
        return torch.nn.functional.softmax(q @ k.mT * self.scale, dim=-1) @ v


class ModuleOnSelf(Plain):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, q, k, v):
        return self.softmax(q @ k.mT * self.scale) @ v


class ModuleByPosition(Plain):
    def __init__(self):
        super().__init__()
        self.attend = nn.Softmax(-1)

    def forward(self, q, k, v):
        attn = self.attend(torch.matmul(q, k.transpose(-1, -2)) * self.scale)
        return torch.matmul(attn, v)


class ModuleOnTheSpot(Plain):
    def forward(self, q, k, v):
        return nn.Softmax(dim=-1)(q @ k.mT * self.scale) @ v


class InSequentialWithDropout(Plain):
    def __init__(self, p=0.0):
        super().__init__()
        self.attend = nn.Sequential(nn.Softmax(dim=-1), nn.Dropout(p))

    def forward(self, q, k, v):
        return torch.matmul(self.attend(torch.matmul(q, k.transpose(-1, -2)) * self.scale), v)


class InFloat32CastBackToQuery(Plain):
    """Hugging Face's Llama."""

    def forward(self, q, k, v):
        attn_weights = torch.matmul(q, k.transpose(2, 3)) * self.scale
        attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(attn_weights, v)


class InFloat32CastBackAsQuery(Plain):
    def forward(self, q, k, v):
        scores = torch.matmul(q, k.transpose(2, 3)) * self.scale
        scores = F.softmax(scores.float(), dim=-1).type_as(q)
        return torch.matmul(scores, v)


class FloatFirst(Plain):
    """T5: softmax of the upcast scores, cast back as the scores."""

    def forward(self, q, k, v):
        scores = torch.matmul(q, k.transpose(3, 2)) * self.scale
        attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        return torch.matmul(attn_weights, v)


class FloatBeforeProduct(Plain):
    """The product itself is made in float32."""

    safety = "unsafe"  # the value may have another dtype than the query

    def forward(self, q, k, v):
        scores = (q.float() @ k.float().transpose(-2, -1)) * self.scale
        return F.softmax(scores, dim=-1).to(v.dtype) @ v


class MethodWithDtype(Plain):
    entry_points = ("live",)  # whether v is a tensor or a dtype cannot be read from the text

    def forward(self, q, k, v):
        probs = (q @ k.mT * self.scale).softmax(-1, dtype=torch.float32).to(v)
        return probs @ v


class ToFloat32(Plain):
    safety = "unsafe"  # the value may have another dtype than the query

    def forward(self, q, k, v):
        scores = (q @ k.mT * self.scale).to(torch.float32)
        probs = torch.softmax(scores, dim=-1).to(dtype=v.dtype)
        return probs @ v


class ByHandLessTheMaximum(Plain):
    def forward(self, q, k, v):
        scores = q @ k.mT * self.scale
        exp = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
        weights = exp / exp.sum(dim=-1, keepdim=True)
        return weights @ v


class ByHandWithAmax(Plain):
    def forward(self, q, k, v):
        scores = q @ k.mT * self.scale
        scores = scores - scores.amax(-1, keepdim=True)
        exp = scores.exp()
        return (exp / exp.sum(-1, keepdim=True)) @ v


class ByHandWithIndexedMax(Plain):
    def forward(self, q, k, v):
        scores = q @ k.mT * self.scale
        shifted = scores - torch.max(scores, dim=-1, keepdim=True)[0]
        exp = torch.exp(shifted)
        return torch.matmul(exp / torch.sum(exp, dim=-1, keepdim=True), v)


class ByHandAndMasked(Plain):
    def forward(self, q, k, v, mask):
        scores = (q @ k.mT * self.scale).masked_fill(mask == 0, float("-inf"))
        exp = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
        return (exp / exp.sum(dim=-1, keepdim=True)) @ v


class DropoutModule(Plain):
    def __init__(self, p=0.0):
        super().__init__()
        self.attn_drop = nn.Dropout(p)

    def forward(self, q, k, v):
        attn = (q @ k.mT * self.scale).softmax(dim=-1)
        attn = self.attn_drop(attn)
        return attn @ v


class DropoutFunction(Plain):
    def __init__(self, p=0.0):
        super().__init__()
        self.dropout = p

    def forward(self, q, k, v):
        attn = F.softmax(q @ k.mT * self.scale, dim=-1)
        attn = F.dropout(attn, p=self.dropout, training=self.training)
        return attn @ v


class DropoutFunctionByPosition(Plain):
    def __init__(self, p=0.0):
        super().__init__()
        self.p = p

    def forward(self, q, k, v):
        return dropout(softmax(q @ k.mT * self.scale, -1), self.p, self.training) @ v


class DropoutLiteral(Plain):
    """The rate is written out: in training no two runs agree, but on average."""

    random = True

    def forward(self, q, k, v):
        attn = F.dropout(F.softmax(q @ k.mT * self.scale, dim=-1), 0.2, self.training)
        return attn @ v


class DropoutOnlyInTraining(Plain):
    """The flag is a branch."""

    def __init__(self, p=0.0):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, q, k, v):
        attn = F.softmax(q @ k.mT * self.scale, dim=-1)
        if self.training:
            attn = self.drop(attn)
        return attn @ v


class DropoutIdentityByDefault(Plain):
    """timm: no dropout is an nn.Identity."""

    def __init__(self, p=0.0):
        super().__init__()
        self.attn_drop = nn.Dropout(p) if p > 0 else nn.Identity()

    def forward(self, q, k, v):
        attn = (q @ k.mT * self.scale).softmax(dim=-1)
        return self.attn_drop(attn) @ v


class DropoutFloat32AndCast(Plain):
    """Softmax in float32, cast back, dropped out, masked where a mask is given: Hugging Face's eager attention."""

    safety = "unsafe"  # the mask is an argument, which may drop a row whole with a large finite number

    arguments = {"attention_mask": "extended"}

    def __init__(self, p=0.0):
        super().__init__()
        self.attention_dropout = p

    def forward(self, query, key, value, attention_mask=None):
        attn_weights = torch.matmul(query, key.transpose(-2, -1)) * self.scale
        if attention_mask is not None:
            causal_mask = attention_mask[:, 0, :, : key.shape[-2]]
            attn_weights = attn_weights + causal_mask
        attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)
        attn_weights = nn.functional.dropout(attn_weights, p=self.attention_dropout, training=self.training)
        attn_output = torch.matmul(attn_weights, value)
        return attn_output.contiguous()


class DropoutOptionalModule(Plain):
    """The Annotated Transformer: `if dropout is not None`."""

    entry_points = ("live",)  # what an argument called dropout does cannot be read from the text

    def __init__(self, p=0.0):
        super().__init__()
        self.dropout = nn.Dropout(p=p)

    def forward(self, q, k, v):
        return attention(q, k, v, dropout=self.dropout)


def attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value)
