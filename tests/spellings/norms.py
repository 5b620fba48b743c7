# ruff: noqa
"""Hand-written layer norm and RMS norm."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

rule = "AF201"


class Affine(nn.Module):
    def __init__(self, dim=24, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))
        self.eps = eps
        self.dim = dim


class VarianceBiased(Affine):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class VarianceCorrectionZero(Affine):
    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, correction=0)
        x_hat = (x - mean) / torch.sqrt(var + self.eps)
        return self.weight * x_hat + self.bias


class BertLayerNorm(Affine):
    """Construct a layernorm module in the TF style (epsilon inside the square root)."""

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight * x + self.bias


class MeanOfSquareMethod(Affine):
    def forward(self, x):
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        return centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias


class ProductWithItself(Affine):
    def forward(self, x):
        d = x - torch.mean(x, dim=-1, keepdim=True)
        v = torch.mean(d * d, dim=-1, keepdim=True)
        return d * torch.rsqrt(v + 1e-6) * self.weight + self.bias


class PowerOfTwoOperator(Affine):
    def forward(self, x):
        mu = x.mean(dim=-1, keepdim=True)
        sigma2 = ((x - mu) ** 2).mean(dim=-1, keepdim=True)
        return self.weight * ((x - mu) / (sigma2 + self.eps).sqrt()) + self.bias


class PowerOfMinusHalf(Affine):
    def forward(self, x):
        mu = x.mean(dim=-1, keepdim=True)
        var = (x - mu).pow(2).mean(dim=-1, keepdim=True)
        return (x - mu) * (var + self.eps).pow(-0.5) * self.weight + self.bias


class PowerOfHalf(Affine):
    def forward(self, x):
        mu = x.mean(dim=-1, keepdim=True)
        var = (x - mu).pow(2).mean(dim=-1, keepdim=True)
        return (x - mu) / (var + self.eps) ** 0.5 * self.weight + self.bias


class OneOverSqrt(Affine):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = torch.var(x, dim=-1, unbiased=False, keepdim=True)
        inverse = 1 / torch.sqrt(var + self.eps)
        return (x - mean) * inverse * self.weight + self.bias


class WithoutAffine(Affine):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(var + 1e-5)


class WithoutBias(Affine):
    safety = "unsafe"  # the weight may have another dtype than the input

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        return self.weight * (x - mean) * torch.rsqrt(var + self.eps)


class GammaAndBeta(nn.Module):
    def __init__(self, d_model=24, eps=1e-12):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        # '-1' means last dimension.
        out = (x - mean) / torch.sqrt(var + self.eps)
        out = self.gamma * out + self.beta
        return out


class ScaleAndShift(nn.Module):
    def __init__(self, emb_dim=24):
        super().__init__()
        self.eps = 1e-5
        self.scale = nn.Parameter(torch.ones(emb_dim))
        self.shift = nn.Parameter(torch.zeros(emb_dim))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, unbiased=False)
        norm_x = (x - mean) / torch.sqrt(var + self.eps)
        return self.scale * norm_x + self.shift


class VarMeanTogether(Affine):
    def forward(self, x):
        var, mean = torch.var_mean(x, dim=-1, unbiased=False, keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias


class LayerNormInFloat32(Affine):
    def forward(self, x):
        dtype = x.dtype
        h = x.float()
        mean = h.mean(-1, keepdim=True)
        var = (h - mean).pow(2).mean(-1, keepdim=True)
        h = (h - mean) * torch.rsqrt(var + self.eps)
        return (self.weight * h + self.bias).to(dtype)


class LastDimensionByNumber(Affine):
    entry_points = ("live",)  # how many dimensions x has cannot be read from the text

    def forward(self, x):
        mean = x.mean(2, keepdim=True)
        var = x.var(2, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class LastDimensionInList(Affine):
    safety = "unsafe"  # the weight may have another dtype than the input

    def forward(self, x):
        mean = torch.mean(x, [-1], keepdim=True)
        var = torch.var(x, [-1], unbiased=False, keepdim=True)
        return self.weight * (x - mean) / torch.sqrt(var + self.eps) + self.bias


class RootOfStandardDeviationSquared(Affine):
    """The standard deviation, biased, squared again."""

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(std**2 + self.eps) * self.weight + self.bias


class AddedInOneCall(Affine):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        return x.sub(mean).div(torch.sqrt(var.add(self.eps))).mul(self.weight).add(self.bias)


# RMS norm.


class Weighted(nn.Module):
    rule = "AF202"

    def __init__(self, dim=24, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))
        self.eps = eps
        self.dim = dim


class LlamaRmsNorm(Weighted):
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float()).type_as(x)
        return output * self.weight


class HuggingFaceRmsNorm(Weighted):
    def forward(self, x):
        input_dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(input_dtype)


class T5LayerNorm(Weighted):
    """T5 has a layer norm without mean or bias, and casts only where the weight is in half precision."""

    safety = "unsafe"  # the norm is computed in float32, unless the input is float64

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x


class GemmaRmsNorm(nn.Module):
    rule = "AF202"

    def __init__(self, dim=24, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float())
        # Llama does x.to(float16) * w whilst Gemma is (x * w).to(float16)
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


class OnePlusWeight(Weighted):
    def forward(self, x):
        return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + self.eps) * (1 + self.weight)


class SquareMethod(Weighted):
    def forward(self, x):
        return self.weight * (x * torch.rsqrt(torch.mean(torch.square(x), dim=-1, keepdim=True) + self.eps))


class PowerOperator(Weighted):
    def forward(self, x):
        rms = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + self.eps)
        return x / rms * self.weight


class OneOverRoot(Weighted):
    def forward(self, x):
        return x * (1.0 / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)) * self.weight


class SumOverWidth(Weighted):
    def forward(self, x):
        mean_square = x.pow(2).sum(-1, keepdim=True) / x.shape[-1]
        return x * torch.rsqrt(mean_square + self.eps) * self.weight


class RmsWithoutWeight(Weighted):
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class RmsOfTimesRoot(Weighted):
    """mul and rsqrt as methods, eps by add."""

    def forward(self, x):
        return x.mul(x.pow(2).mean(-1, keepdim=True).add(self.eps).rsqrt()).mul(self.weight)


class KeepdimByUnsqueeze(Weighted):
    def forward(self, x):
        ms = x.pow(2).mean(-1).unsqueeze(-1)
        return x * torch.rsqrt(ms + self.eps) * self.weight


class WeightCastToInput(Weighted):
    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return h.to(x.dtype) * self.weight.to(x.dtype)


class CastAfterWeight(Weighted):
    def forward(self, x):
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * h).to(x.dtype)


class AssignedOverInput(Weighted):
    """In a block, straight before the projection, without a module of its own."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(24, 24)

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        x = x * self.weight
        return self.proj(x)


class NormTimesRoot(Weighted):
    """Divided by the norm, times the root of the width: no eps."""

    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True) * math.sqrt(x.shape[-1]) * self.weight


class DividedByVectorNorm(Weighted):
    def forward(self, x):
        rms = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.size(-1) ** -0.5
        return self.weight * (x / rms)


class MeanSquareWithoutEps(Weighted):
    def forward(self, x):
        return x / x.pow(2).mean(-1, keepdim=True).sqrt() * self.weight


class StdBiasedWithoutEps(Affine):
    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, unbiased=False, keepdim=True) * self.weight + self.bias


class SumOfSquaresOverShape(Weighted):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / x.shape[-1] + self.eps) * self.weight


class SumOfSquaresTimesShare(Weighted):
    safety = "unsafe"  # the weight may have another dtype than the input

    def forward(self, x):
        ms = (x * x).sum(-1, keepdim=True) * (1.0 / x.size(-1))
        return self.weight * x * (ms + self.eps).rsqrt()


class SquaredNormOverShape(Weighted):
    def forward(self, x):
        ms = torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / x.shape[-1]
        return x * torch.rsqrt(ms + self.eps) * self.weight


class SumOfSquaresOverWidth(nn.Module):
    """The width is an attribute; the constructor shows that it is the weight's."""

    safety = "unsafe"  # the weight may have another dtype than the input

    rule = "AF202"

    def __init__(self, dim=24, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps
        self.dim = dim

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / self.dim + self.eps) * self.weight


class SumOfSquaresOverWeight(Weighted):
    safety = "unsafe"  # the weight may have another dtype than the input

    def forward(self, x):
        ms = x.square().sum(-1, keepdim=True) / self.weight.shape[0]
        return x / torch.sqrt(ms + self.eps) * self.weight


class SumOfSquaresOverLiteral(Weighted):
    """Only live: a guard sees to it that the width stays 24."""

    entry_points = ("live",)

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / 24 + self.eps) * self.weight


class RootUnsqueezed(Weighted):
    def forward(self, x):
        ms = x.pow(2).sum(-1) / x.shape[-1]
        return x * torch.rsqrt(ms + self.eps).unsqueeze(-1) * self.weight


class RootIndexedByNone(Weighted):
    def forward(self, x):
        scale = 1 / (x.pow(2).mean(dim=-1) + self.eps).sqrt()
        return x * scale[..., None] * self.weight


class SquaresByEinsum(Weighted):
    def forward(self, x):
        ms = torch.einsum("...d,...d->...", x, x)[..., None] / x.shape[-1]
        return x * (ms + self.eps).rsqrt() * self.weight


class StatisticsBySums(Affine):
    def forward(self, x):
        d = x.shape[-1]
        centred = x - x.sum(-1, keepdim=True) / d
        var = (centred * centred).sum(-1, keepdim=True) / d
        return centred / torch.sqrt(var + self.eps) * self.weight + self.bias


class VarianceBySum(Affine):
    def forward(self, x):
        mu = x.mean(-1, keepdim=True)
        var = (x - mu).pow(2).sum(-1, keepdim=True) / x.size(-1)
        return (x - mu) * torch.rsqrt(var + self.eps) * self.weight + self.bias
