# ruff: noqa
"""Looks like a norm, a residual, an activation or an MLP, and must be left alone."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Affine(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))
        self.eps = 1e-3


class StdOutside(Affine):
    """The Annotated Transformer's: unbiased, and eps outside."""

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.weight * (x - mean) / (std + self.eps) + self.bias


class StdBiasedEpsOutside(Affine):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, unbiased=False, keepdim=True)
        return self.weight * (x - mean) / (std + self.eps) + self.bias


class VarianceUnbiased(Affine):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class VarianceUnbiasedSaidSo(Affine):
    def forward(self, x):
        var, mean = torch.var_mean(x, dim=-1, keepdim=True, unbiased=True)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class VarianceCorrectionOne(Affine):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, correction=1)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class EpsOutsideRoot(Affine):
    def forward(self, x):
        return x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + self.eps) * self.weight


class EpsByMaximum(Affine):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp(min=self.eps)) * self.weight


class OverTheFirstAxis(Affine):
    def forward(self, x):
        mean = x.mean(0, keepdim=True)
        var = x.var(0, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class OverTheMiddleAxis(Affine):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps) * self.weight


class OverTwoAxes(Affine):
    def forward(self, x):
        mean = x.mean((-2, -1), keepdim=True)
        var = x.var((-2, -1), unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class OverTwoAxesRms(Affine):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean([1, 2], keepdim=True) + self.eps) * self.weight


class OverEverything(Affine):
    def forward(self, x):
        return (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + self.eps)


class MixedAxes(Affine):
    """The mean runs over one axis, the variance over another."""

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.eps)


class NotCentredVariance(Affine):
    """The mean is subtracted, but the mean square is that of the original input."""

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        ms = x.pow(2).mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(ms + self.eps)


class CentredVarianceOnly(Affine):
    """Divided by the standard deviation, but not centred."""

    def forward(self, x):
        var = x.var(-1, unbiased=False, keepdim=True)
        return x / torch.sqrt(var + self.eps) * self.weight


class SumNotMean(Affine):
    """An L2 norm: no mean."""

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + self.eps) * self.weight


class StatisticsOfAnother(Affine):
    """The statistics of x are applied to y."""

    def forward(self, x, y):
        ms = x.pow(2).mean(-1, keepdim=True)
        return y * torch.rsqrt(ms + self.eps) * self.weight


class StatisticsDetached(Affine):
    def forward(self, x):
        ms = x.pow(2).mean(-1, keepdim=True).detach()
        return x * torch.rsqrt(ms + self.eps) * self.weight


class StatisticsUnderNoGrad(Affine):
    def forward(self, x):
        with torch.no_grad():
            mean = x.mean(-1, keepdim=True)
            var = x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class StatisticsReturned(Affine):
    """The norm may be fused; mean and variance are computed for those who read them."""

    numbers_only = True

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias, mean, var


class RunningStatistics(Affine):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(24))
        self.register_buffer("running_var", torch.ones(24))

    def forward(self, x):
        if self.training:
            mean = x.mean((0, 1))
            var = x.var((0, 1), unbiased=False)
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean.detach()
        else:
            mean, var = self.running_mean, self.running_var
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class InstanceNorm(Affine):
    def forward(self, x):
        mean = x.mean(dim=1, keepdim=True)
        var = x.var(dim=1, keepdim=True, unbiased=False)
        return (x - mean) / (var + 1e-5).sqrt()


class AdaptiveNorm(Affine):
    """AdaLN: scale and shift are computed from a condition, one for each sample."""

    numbers_only = True  # the norm alone is a layer norm without weights; scale and shift stay outside

    def __init__(self):
        super().__init__()
        self.modulation = nn.Linear(24, 48)

    def forward(self, x):
        shift, scale = self.modulation(x.mean(1)).chunk(2, dim=-1)
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        normed = (x - mean) / torch.sqrt(var + self.eps)
        return normed * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class EpsIsATensor(Affine):
    """eps is learned."""

    def __init__(self):
        super().__init__()
        self.epsilon = nn.Parameter(torch.tensor(1e-3))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


class NormInFloat32(Affine):
    """torch's own already, in float32."""

    def forward(self, x):
        return F.layer_norm(x.float(), (24,), self.weight.float(), self.bias.float(), 1e-5).type_as(x)


class NormMadeContiguous(Affine):
    """torch's own already."""

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias).contiguous().transpose(1, 2)


class GeluInFloat32(nn.Module):
    """torch's own already."""

    def forward(self, x):
        return F.gelu(x.float()).to(x.dtype)


class AbsoluteMean(Affine):
    def forward(self, x):
        return x / (x.abs().mean(-1, keepdim=True) + self.eps) * self.weight


class FourthPower(Affine):
    def forward(self, x):
        return x * (x.pow(4).mean(-1, keepdim=True) + self.eps).pow(-0.25) * self.weight


class CubeRoot(Affine):
    def forward(self, x):
        return x * (x.pow(2).mean(-1, keepdim=True) + self.eps) ** (-1 / 3) * self.weight


# Residual and norm.


class Sub(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.bn = nn.BatchNorm1d(dim)


class NormThenAdd(Sub):
    """Swin v2, ViT with post-branch norm: the norm does not see the residual."""

    def forward(self, x):
        return x + self.norm(self.dense(x))


class NumberAdded(Sub):
    def forward(self, x):
        return self.norm(self.dense(x) + 1.0)


class BiasAdded(Sub):
    """A vector is added, not a residual."""

    numbers_only = True

    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(24))

    def forward(self, x):
        return self.norm(self.dense(x) + self.offset)


class PositionsAdded(Sub):
    """What is added is broadcast over the batch."""

    numbers_only = True
    arguments = {"positions": "matrix_positions"}

    def forward(self, x, positions):
        return self.norm(self.dense(x) + positions)


class NormOverTwoDimensions(Sub):
    arguments = {"x": "fixed_x"}

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((4, 24))

    def forward(self, x):
        return self.norm(x + self.dense(x))


class GroupNormed(Sub):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(3, 24)

    def forward(self, x):
        return self.norm((x + self.dense(x)).transpose(1, 2))


class BatchNormed(Sub):
    def forward(self, x):
        return self.bn((x + self.dense(x)).transpose(1, 2))


class NormOfHook(Sub):
    """The norm has a forward hook, which a fused call would not run."""

    entry_points = ("live",)

    def __init__(self):
        super().__init__()
        self.norm.register_forward_hook(_double)

    def forward(self, x):
        return self.norm(x + self.dense(x))


def _double(module, arguments, result):
    return result * 2


class SumDetached(Sub):
    def forward(self, x):
        return self.norm((x + self.dense(x)).detach()) + x


class DropoutAfterSum(Sub):
    """The sum is dropped out, not the branch."""

    def forward(self, x):
        return self.norm(F.dropout(x + self.dense(x), 0.3, self.training))


# Activations.


class QuickGelu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class AlmostErf(nn.Module):
    """Without the root of two."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.erf(x))


class AlmostErfHalf(nn.Module):
    """Without the factor 0.5 it is twice GELU, and may be rewritten as that."""

    numbers_only = True

    def forward(self, x):
        return x * (1 + torch.erf(x / math.sqrt(2)))


class AlmostTanh(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.5 * (x + 0.044715 * torch.pow(x, 3))))


class AlmostTanhCubic(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.04 * torch.pow(x, 3))))


class AlmostTanhSquare(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 2))))


class OtherInside(nn.Module):
    """The gate looks at another tensor."""

    def forward(self, x, y):
        return 0.5 * x * (1 + torch.erf(y / math.sqrt(2)))


class SigmoidOfAnother(nn.Module):
    def forward(self, x, y):
        return x * torch.sigmoid(y)


class SigmoidDetached(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x).detach()


class SigmoidReturned(nn.Module):
    def forward(self, x):
        gate = torch.sigmoid(x)
        return x * gate, gate


class SwishWithBeta(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return x * torch.sigmoid(self.beta * x)


class NormalizedTimesRoot(Affine):
    """F.normalize: the norm is bounded from below, which no RMS norm does."""

    def forward(self, x):
        return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * self.weight


class RootOfAnotherWidth(Affine):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True) * x.shape[-2] ** 0.5 * self.weight


class NormPlusEps(Affine):
    def forward(self, x):
        return x / (x.norm(dim=-1, keepdim=True) + 1e-6) * x.shape[-1] ** 0.5 * self.weight


class NormClamped(Affine):
    def forward(self, x):
        norm = torch.norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        return x / norm.clamp(min=1e-6) * self.weight


class SumOfAbsoluteValues(Affine):
    def forward(self, x):
        return x / x.norm(p=1, dim=-1, keepdim=True) * x.shape[-1] ** 0.5 * self.weight


class MishOfAnother(nn.Module):
    def forward(self, x, y):
        return x * torch.tanh(F.softplus(y))


class MishSharper(nn.Module):
    def forward(self, x):
        return x * torch.tanh(F.softplus(x, beta=2))


class HardSwishWider(nn.Module):
    def forward(self, x):
        return x * (x + 4).clamp(0, 8) / 8


class HardSigmoidOnly(nn.Module):
    def forward(self, x):
        return F.relu6(x + 3) / 6


# MLPs.


class TwoProjections(nn.Module):
    def __init__(self, dim=24, hidden=32):
        super().__init__()
        self.gate = nn.Linear(dim, hidden)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)


class HiddenReturned(TwoProjections):
    def forward(self, x):
        hidden = F.gelu(self.up(x))
        return self.down(hidden), hidden


class HiddenNormed(TwoProjections):
    def forward(self, x):
        hidden = F.layer_norm(F.gelu(self.up(x)), (32,))
        return self.down(hidden)


class HiddenAdded(TwoProjections):
    def forward(self, x):
        hidden = F.gelu(self.up(x)) + self.gate(x)
        return self.down(hidden)


class CubedReluBetween(TwoProjections):
    """No activation is that."""

    def forward(self, x):
        return self.down(F.relu(self.up(x)) ** 3)


class GatesOfUnknownLayersReadDifferentInputs(nn.Module):
    arguments = {"x": "x", "y": "y"}

    def __init__(self, dim=24):
        super().__init__()
        self.gate, self.up = nn.Bilinear(dim, dim, 4), nn.Bilinear(dim, dim, 4)

    def forward(self, x, y):
        return F.silu(self.gate(x, y)) * self.up(y, x)


class LearnedScaleOfActivation(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.gelu(x) * self.scale


class ChildKeepsHidden(TwoProjections):
    """The activation is a module of its own that remembers what it saw."""

    def __init__(self):
        super().__init__()
        self.act = _Remembering()

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class _Remembering(nn.Module):
    def forward(self, x):
        self.seen = x.detach()
        return F.gelu(x)


class SequentialIsReadBetween(nn.Module):
    """One layer of the Sequential is called on its own."""

    def __init__(self, dim=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x):
        hidden = self.net[1](self.net[0](x))
        return self.net[2](hidden) + hidden.mean()


class GatesReadDifferentInputs(TwoProjections):
    def forward(self, x, y):
        return F.silu(self.gate(x)) * self.up(y)


class GateIsSoftmax(TwoProjections):
    def forward(self, x):
        return self.down(F.softmax(self.gate(x), dim=-1) * self.up(x))


class GateReturned(TwoProjections):
    def forward(self, x):
        gate = F.silu(self.gate(x))
        return self.down(gate * self.up(x)), gate


class ThreeChunks(nn.Module):
    def forward(self, x):
        gate, up, rest = x.chunk(3, dim=-1)
        return F.gelu(gate) * up + rest


class UnequalSlices(nn.Module):
    """A third gates the sum of the rest: no halves."""

    def forward(self, x):
        third = x.shape[-1] // 3
        return F.silu(x[..., :third]) * x[..., third : 2 * third]


class ChunkedOverLength(nn.Module):
    """The halves lie along the sequence."""

    arguments = {"x": "fixed_x"}

    def forward(self, x):
        gate, up = x.chunk(2, dim=1)
        return F.silu(gate) * up


class SameHalfTwice(nn.Module):
    """x * silu(x) of one half; the other is not used."""

    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * gate + up


class GlueOnly(nn.Module):
    """GLU whose first half gates: torch's own has it the other way round."""

    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return torch.sigmoid(gate) * up


class ActivationInPlaceBetween(TwoProjections):
    """What the first layer gave is written in place, and read again."""

    def forward(self, x):
        h = self.up(x)
        a = torch.relu_(h)
        return self.down(a) + h.sum()


class SoftplusOfTwo(nn.Module):
    def forward(self, x):
        return torch.log(2 + torch.exp(x))


class SoftplusOfAnother(nn.Module):
    """Above the threshold it is another value: only what stands inside is a softplus."""

    numbers_only = True

    def forward(self, x, y):
        return torch.where(x > 20, y, torch.log1p(torch.exp(x)))


class SoftplusBelow(nn.Module):
    """x below the threshold: only what stands inside is a softplus."""

    numbers_only = True

    def forward(self, x):
        return torch.where(x > 20, torch.log1p(torch.exp(x)), x)


# Means, layers and gates that are none.


class SumOverLength(Affine):
    """Divided by the number of positions."""

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / x.shape[1] + self.eps) * self.weight


class SumOfPositions(Affine):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).sum(1, keepdim=True) / x.shape[1] + self.eps) * self.weight


class SumOverOneLess(Affine):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / (x.shape[-1] - 1) + self.eps) * self.weight


class SumOverAnothersWidth(Affine):
    arguments = {"other": "matrix"}

    def forward(self, x, other):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / other.shape[-1] + self.eps) * self.weight


class SumOverAnotherNumber(Affine):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / 25 + self.eps) * self.weight


class SumOverOtherAttribute(nn.Module):
    """The constructor makes the weight of another number."""

    def __init__(self, dim=24, groups=4):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.groups = groups

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / self.groups + 1e-6) * self.weight


class SumOverReboundWidth(nn.Module):
    """The constructor changes its argument between the two."""

    def __init__(self, dim=24):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        dim = dim // 2
        self.dim = dim

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / self.dim + 1e-6) * self.weight


class CentredByOther(Affine):
    """The mean that is taken away comes first in the sum, and is as wide as one entry."""

    def forward(self, x):
        low = x.amin(-1, keepdim=True)
        return (low - x) * torch.rsqrt((low - x).pow(2).sum(-1, keepdim=True) + self.eps) * self.weight


class ProductOfTwoInputs(TwoProjections):
    """What stands between the activations is no weight."""

    arguments = {"y": "x"}

    def forward(self, x, y):
        return F.gelu(x @ y.transpose(1, 2)) @ y


class BiasOfRows(TwoProjections):
    def forward(self, x):
        hidden = F.gelu(x @ self.up.weight.t() + x.mean(-1, keepdim=True))
        return hidden + self.gate(x)


class GatedBySoftsign(TwoProjections):
    def forward(self, x):
        return F.softsign(self.gate(x)) * self.up(x)


class GatedFromTwoInputs(TwoProjections):
    arguments = {"y": "x"}

    def forward(self, x, y):
        return torch.sigmoid(self.gate(x)) * self.up(y)


class GateReturned(TwoProjections):
    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        return gate * self.up(x), gate


class GateOfInputItself(TwoProjections):
    def __init__(self):
        super().__init__()
        self.own = nn.Linear(24, 24)

    def forward(self, x):
        return x * torch.sigmoid(self.own(x))


class NormOfDifference(Sub):
    """What the sublayer gives is taken away."""

    def forward(self, x):
        return self.norm(x - self.dense(x))


class NormOfBlend(Sub):
    """Both sides are weighed."""

    def forward(self, x):
        return self.norm(torch.lerp(x, self.dense(x), 0.3))


class NumberAddedWithAlpha(Sub):
    def forward(self, x):
        return self.norm(torch.add(self.dense(x), 1.0, alpha=2))
