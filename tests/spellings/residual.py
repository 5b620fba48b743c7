# ruff: noqa
"""Residual add (+ dropout) + norm, before and after the sublayer."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn import Dropout, LayerNorm, Linear

rule = "AF203"


class Sublayer(nn.Module):
    def __init__(self, dim=24, p=0.0):
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.other = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.drop = nn.Dropout(p)
        self.p = p
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)
        nn.init.normal_(self.norm2.weight)


class PostNorm(Sublayer):
    def forward(self, x):
        return self.norm(x + self.dense(x))


class PostNormOtherOrder(Sublayer):
    def forward(self, x):
        return self.norm(self.dense(x) + x)


class PostNormWithDropout(Sublayer):
    def forward(self, x):
        return self.norm(x + self.drop(self.dense(x)))


class PostNormInStatements(Sublayer):
    def forward(self, x):
        residual = x
        x = self.dense(x)
        x = self.drop(x)
        x = residual + x
        x = self.norm(x)
        return x


class PostNormAddedInPlace(Sublayer):
    def forward(self, x):
        h = self.drop(self.dense(x))
        h += x
        return self.norm(h)


class PostNormAddFunction(Sublayer):
    def forward(self, x):
        return self.norm(torch.add(x, self.dense(x)))


class PostNormFunctionalDropout(Sublayer):
    def forward(self, x):
        return self.norm(x + F.dropout(self.dense(x), p=self.p, training=self.training))


class PostNormFunctionalNorm(Sublayer):
    def forward(self, x):
        h = x + self.drop(self.dense(x))
        return F.layer_norm(h, (24,), self.norm.weight, self.norm.bias, 1e-5)


class PostNormWithoutAffine(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)

    def forward(self, x):
        return self.norm(x + self.dense(x))


class PostNormWithoutBias(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, bias=False)

    def forward(self, x):
        return self.norm(x + self.dense(x))


class BertOutput(nn.Module):
    def __init__(self, hidden_size=24, p=0.0):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(p)

    def forward(self, x, residual):
        hidden_states = self.dense(x)
        hidden_states = self.dropout(hidden_states)
        hidden_states = self.LayerNorm(hidden_states + residual)
        return hidden_states


class ImportedNames(nn.Module):
    def __init__(self, dim=24, p=0.0):
        super().__init__()
        self.linear = Linear(dim, dim)
        self.dropout1 = Dropout(p)
        self.norm1 = LayerNorm(dim)

    def forward(self, src):
        src2 = self.linear(src)
        src = src + self.dropout1(src2)
        src = self.norm1(src)
        return src


class RmsPostNorm(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.norm = nn.RMSNorm(dim, eps=1e-6)

    def forward(self, x):
        return self.norm(x + self.dense(x))


class NormSpelledOut(nn.Module):
    """The residual is added, and the norm is written by hand."""

    also = ("AF201",)

    def __init__(self, dim=24):
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        x = x + self.dense(x)
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias


class PreNorm(Sublayer):
    def forward(self, x):
        x = x + self.dense(x)
        return x + self.other(self.norm(x))


class PreNormWithDropout(Sublayer):
    def forward(self, x):
        x = x + self.drop(self.dense(x))
        h = self.norm(x)
        x = x + self.drop(self.other(h))
        return x


class PreNormAcrossStatements(Sublayer):
    def forward(self, x):
        residual = x
        h = self.norm2(x)
        h = self.dense(h)
        h = residual + h
        residual = h
        h = self.norm(h)
        h = self.other(h)
        return residual + h


class PreNormBothReturned(Sublayer):
    def forward(self, x, residual):
        residual = residual + self.drop(x)
        return self.norm(residual), residual


class PreNormAddedInPlace(Sublayer):
    def forward(self, x):
        y = self.dense(x)
        y += x
        return y + self.other(self.norm(y))


class RmsPreNorm(nn.Module):
    def __init__(self, dim=24, p=0.0):
        super().__init__()
        self.attend = nn.Linear(dim, dim)
        self.mlp = nn.Linear(dim, dim)
        self.norm = nn.RMSNorm(dim, eps=1e-6)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        h = x + self.drop(self.attend(x))
        out = h + self.mlp(self.norm(h))
        return out


class RmsPreNormDefaultEps(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.attend = nn.Linear(dim, dim)
        self.norm = nn.RMSNorm(dim)

    def forward(self, x):
        h = x + self.attend(x)
        return h + self.norm(h)


class TransformerBlockPreNorm(nn.Module):
    """Layer norm, attention, residual, layer norm, MLP, residual."""

    also = ("AF304",)

    def __init__(self, n_embd=24, p=0.0):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.attn = _Mixer(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(p))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class _Mixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        return torch.cumsum(self.proj(x), dim=1) / x.size(1)


class EncoderLayerPostNorm(nn.Module):
    """Both sublayers of an encoder, post-norm."""

    also = ("AF304",)
    sites = 2

    def __init__(self, d_model=24, p=0.0):
        super().__init__()
        self.self_attn = _Mixer(d_model)
        self.linear1 = nn.Linear(d_model, 48)
        self.linear2 = nn.Linear(48, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(p)
        self.dropout1 = nn.Dropout(p)
        self.dropout2 = nn.Dropout(p)

    def forward(self, src):
        src2 = self.self_attn(src)
        src = src + self.dropout1(src2)
        src = self.norm1(src)
        src2 = self.linear2(self.dropout(F.relu(self.linear1(src))))
        src = src + self.dropout2(src2)
        src = self.norm2(src)
        return src


class AddedByFunction(Sublayer):
    def forward(self, x):
        return self.norm(torch.add(x, self.drop(self.dense(x))))


class AddedWithAlpha(Sublayer):
    """Half of what the sublayer gives, as a Conformer adds it."""

    def forward(self, x):
        return self.norm(torch.add(x, self.dense(x), alpha=0.5))


class AddedWithAlphaOfModule(Sublayer):
    def __init__(self):
        super().__init__()
        self.alpha = 0.7

    def forward(self, x):
        return self.norm(x.add(self.drop(self.dense(x)), alpha=self.alpha))


class AddedWithAlphaAndCarriedOn(Sublayer):
    def forward(self, x):
        x = torch.add(x, self.dense(x), alpha=1)
        return x + self.other(self.norm(x))


class AddedByAddcmul(Sublayer):
    """Layer scale: what the sublayer gives, times a weight."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(24))

    def forward(self, x):
        return self.norm(torch.addcmul(x, self.dense(x), self.gamma))
