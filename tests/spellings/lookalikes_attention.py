# ruff: noqa
"""Looks like attention, and must be left alone."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange


class Attend(nn.Module):
    def __init__(self, head_dim=8, heads=3):
        super().__init__()
        self.scale = head_dim**-0.5
        self.heads = heads
        self.register_buffer("tril", torch.tril(torch.ones(16, 16)))


# The probabilities are used elsewhere.


class Returned(Attend):
    def forward(self, q, k, v):
        attn = F.softmax(q @ k.mT * self.scale, dim=-1)
        return attn @ v, attn


class ReturnedFirst(Attend):
    def forward(self, q, k, v):
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        output = torch.matmul(weights, v)
        return weights, output


class ReturnedInDict(Attend):
    def forward(self, q, k, v):
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        return {"output": torch.matmul(weights, v), "weights": weights}


class ReturnedWhenAsked(Attend):
    fuses = ("AF101",)  # live, for calls that do not ask

    def forward(self, q, k, v, output_attentions=False):
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        output = torch.matmul(weights, v)
        outputs = (output, weights) if output_attentions else (output,)
        return outputs


class ReturnedBeforeSoftmax(Attend):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) * self.scale
        return F.softmax(scores, dim=-1) @ v, scores


class ReturnedAfterDropout(Attend):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, q, k, v):
        p_attn = self.drop(F.softmax(q @ k.mT * self.scale, dim=-1))
        return torch.matmul(p_attn, v), p_attn


class ReturnedAveraged(Attend):
    """nn.MultiheadAttention: averaged over heads."""

    def forward(self, q, k, v):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        return weights @ v, weights.mean(dim=1)


class StoredOnSelf(Attend):
    def forward(self, q, k, v):
        self.attn = F.softmax(q @ k.mT * self.scale, dim=-1)
        return torch.matmul(self.attn, v)


class StoredDetached(Attend):
    def forward(self, q, k, v):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        self.last_weights = weights.detach()
        return weights @ v


class StoredInList(Attend):
    def __init__(self):
        super().__init__()
        self.maps = []

    def forward(self, q, k, v):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        self.maps.append(weights)
        return weights @ v


class StoredInEvaluation(Attend):
    fuses = ("AF101",)  # live, in training

    def forward(self, q, k, v):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        if not self.training:
            self.last = weights
        return weights @ v


class SummedForALoss(Attend):
    def forward(self, q, k, v):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        entropy = -(weights * torch.log(weights + 1e-9)).sum(-1).mean()
        return weights @ v + entropy


class Printed(Attend):
    def forward(self, q, k, v):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        print("attention", weights.max())
        return weights @ v


class AssertedSums(Attend):
    def forward(self, q, k, v):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        assert torch.allclose(weights.sum(-1), torch.ones_like(weights.sum(-1)), atol=1e-3)
        return weights @ v


class AssertedFinite(Attend):
    def forward(self, q, k, v):
        scores = q @ k.mT * self.scale
        if torch.isnan(scores).any():
            raise ValueError("nan in attention")
        return F.softmax(scores, dim=-1) @ v


class HookOnScores(Attend):
    def forward(self, q, k, v):
        scores = q @ k.mT * self.scale
        scores.register_hook(lambda gradient: gradient * 2)
        return F.softmax(scores, dim=-1) @ v


class GradientRetained(Attend):
    def forward(self, q, k, v):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        if weights.requires_grad:
            weights.retain_grad()
        return weights @ v


# The result has the dtype that is named, whatever the queries have.


class WeighedInFloat32(Attend):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) * self.scale
        return scores.float().softmax(dim=-1) @ v.float()


class NormalisedAndWeighedInFloat32(Attend):
    def forward(self, q, k, v):
        attn = F.softmax(q @ k.mT * self.scale, dim=-1, dtype=torch.float32)
        return attn @ v.to(torch.float32)


class WeighedInTheDtypeOfTheProbabilities(Attend):
    def forward(self, q, k, v):
        attn = F.softmax(q @ k.mT * self.scale, dim=-1, dtype=torch.float32)
        return attn @ v.to(attn.dtype)


# The probabilities are edited.


class TalkingHeads(Attend):
    def __init__(self):
        super().__init__()
        self.proj_w = nn.Linear(3, 3)

    def forward(self, q, k, v):
        attn = F.softmax(q @ k.mT * self.scale, dim=-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return attn @ v


class TalkingHeadsBefore(Attend):
    """Scores of several heads are mixed before softmax."""

    def __init__(self):
        super().__init__()
        self.proj_l = nn.Linear(3, 3)

    def forward(self, q, k, v):
        attn = q @ k.mT * self.scale
        attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return attn.softmax(dim=-1) @ v


class HeadMask(Attend):
    def __init__(self):
        super().__init__()
        self.register_buffer("head_mask", torch.tensor([1.0, 0.0, 1.0]).view(1, 3, 1, 1))

    def forward(self, q, k, v):
        attn = F.softmax(q @ k.mT * self.scale, dim=-1)
        attn = attn * self.head_mask
        return attn @ v


class HeadMaskGiven(Attend):
    arguments = {"head_mask": "padding_4d"}
    fuses = ("AF101",)  # live, for calls without one

    def forward(self, q, k, v, head_mask=None):
        attn = F.softmax(q @ k.mT * self.scale, dim=-1)
        if head_mask is not None:
            attn = attn * head_mask
        return attn @ v


class RenormalisedTwice(Attend):
    def forward(self, q, k, v):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights @ v


class NormalisedOverBothAxes(Attend):
    def forward(self, q, k, v):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        weights = weights / weights.sum(dim=-2, keepdim=True)
        return weights @ v


class RenormalisedOverQueries(Attend):
    """Slot attention: softmax over the slots, then a mean over the inputs."""

    def forward(self, q, k, v):
        attn = F.softmax(q @ k.mT * self.scale, dim=-2) + 1e-8
        attn = attn / attn.sum(dim=-1, keepdim=True)
        return attn @ v


class MaskedAfterSoftmax(Attend):
    def forward(self, q, k, v, mask):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        weights = weights * mask
        return weights @ v


class FilledAfterSoftmax(Attend):
    def forward(self, q, k, v, mask):
        weights = F.softmax(q @ k.mT * self.scale, dim=-1)
        weights = weights.masked_fill(mask == 0, 0.0)
        return weights @ v


class TopKOnly(Attend):
    softmax_alone = True

    def forward(self, q, k, v):
        scores = q @ k.mT * self.scale
        threshold = scores.topk(3, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < threshold, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class MaskOfScores(Attend):
    softmax_alone = True

    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        s = s.masked_fill(s < s.mean(-1, keepdim=True), float("-inf"))
        return F.softmax(s, dim=-1) @ v


class MaskOfScoresByWhere(Attend):
    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        s = torch.where(s > 0, s, float("-inf"))
        s = torch.where(torch.isinf(s).all(-1, keepdim=True), 0.0, s)
        return F.softmax(s, dim=-1) @ v


class BiasOfScores(Attend):
    softmax_alone = True

    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        s = s + torch.tanh(s)
        return F.softmax(s, dim=-1) @ v


class MultipliedMask(Attend):
    """What is masked has a score of 0, not of -inf."""

    def forward(self, q, k, v, mask):
        s = q @ k.mT * self.scale
        s = s * mask
        return F.softmax(s, dim=-1) @ v


class FilledWithZero(Attend):
    def forward(self, q, k, v, mask):
        s = (q @ k.mT * self.scale).masked_fill(mask == 0, 0.0)
        return F.softmax(s, dim=-1) @ v


class FilledWithMinusTen(Attend):
    """What is masked still gets some weight."""

    def forward(self, q, k, v, mask):
        s = (q @ k.mT * self.scale).masked_fill(mask == 0, -10.0)
        return F.softmax(s, dim=-1) @ v


class ClampedScores(Attend):
    def forward(self, q, k, v):
        s = torch.clamp(q @ k.mT * self.scale, -1.0, 1.0)
        return F.softmax(s, dim=-1) @ v


class SquaredScores(Attend):
    def forward(self, q, k, v):
        s = (q @ k.mT * self.scale) ** 2
        return F.softmax(s, dim=-1) @ v


class ScaledPerKey(Attend):
    """The factor differs from key to key."""

    arguments = {"gate": "key_factor"}

    def forward(self, q, k, v, gate):
        s = q @ k.mT * gate
        return F.softmax(s, dim=-1) @ v


class ScaledAfterSoftmax(Attend):
    def forward(self, q, k, v):
        return (F.softmax(q @ k.mT, dim=-1) * self.scale + 0.1) @ v


# Another normalisation.


class OverTheQueries(Attend):
    def forward(self, q, k, v):
        return F.softmax(q @ k.mT * self.scale, dim=-2) @ v


class OverTheHeads(Attend):
    def forward(self, q, k, v):
        return F.softmax(q @ k.mT * self.scale, dim=1) @ v


class OverTheBatch(Attend):
    def forward(self, q, k, v):
        return torch.softmax(q @ k.mT * self.scale, 0) @ v


class OverTheQueriesModule(Attend):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-2)

    def forward(self, q, k, v):
        return self.softmax(q @ k.mT * self.scale) @ v


class OverTheWrongAxisOfThree(Attend):
    def forward(self, query, key, value):
        w = torch.bmm(query, key.transpose(1, 2)) * self.scale
        return torch.bmm(F.softmax(w, dim=1), value)


class NonLocalTransposed(Attend):
    """Softmax over the last axis, which the product with the values does not run over."""

    def forward(self, query, key, value):
        attention = F.softmax(query @ key.transpose(1, 2), dim=-1)
        return torch.bmm(attention.transpose(1, 2), value)


class SigmoidAttention(Attend):
    def forward(self, q, k, v):
        return torch.sigmoid(q @ k.mT * self.scale) @ v


class ReluAttention(Attend):
    def forward(self, q, k, v):
        return F.relu(q @ k.mT * self.scale) / q.size(-2) @ v


class LogSoftmaxAttention(Attend):
    def forward(self, q, k, v):
        return F.log_softmax(q @ k.mT * self.scale, dim=-1) @ v


class ExpWithoutSum(Attend):
    def forward(self, q, k, v):
        return torch.exp(q @ k.mT * self.scale - 4) @ v


class SumWithOne(Attend):
    """Off-by-one softmax: a head may attend to nothing."""

    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return (e / (1 + e.sum(-1, keepdim=True))) @ v


class MaxOverOtherAxis(Attend):
    """Not the softmax by hand: the sum runs over the queries."""

    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return (e / e.sum(-2, keepdim=True)) @ v


class Gumbel(Attend):
    def forward(self, q, k, v):
        return F.gumbel_softmax(q @ k.mT * self.scale, dim=-1) @ v


class LinearAttention(Attend):
    """q and k are softmaxed apart, and k is multiplied with v first."""

    def forward(self, q, k, v):
        q = q.softmax(dim=-1) * self.scale
        k = k.softmax(dim=-2)
        context = k.transpose(-2, -1) @ v
        return q @ context


class SoftmaxedApart(Attend):
    def forward(self, q, k, v):
        return (F.softmax(q, dim=-1) @ F.softmax(k, dim=-2).mT) @ v


class ChannelAttention(Attend):
    """Attention over channels, turned round: exactly attention between the columns of k, q and v."""

    numbers_only = True

    def forward(self, q, k, v):
        attn = F.softmax(q.mT @ k * self.scale, dim=-2)
        return v @ attn


class DropoutBeforeSoftmax(Attend):
    def forward(self, q, k, v):
        s = F.dropout(q @ k.mT * self.scale, 0.1, self.training)
        return F.softmax(s, dim=-1) @ v


class DropoutAlwaysOn(Attend):
    """Training is forced: fused it may be, but as such."""

    random = True
    numbers_only = True

    def forward(self, q, k, v):
        p = F.dropout(F.softmax(q @ k.mT * self.scale, dim=-1), 0.5)
        return p @ v


class FeatureDropout(Attend):
    """Dropout2d drops whole heads."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout2d(0.5)

    def forward(self, q, k, v):
        return self.drop(F.softmax(q @ k.mT * self.scale, dim=-1)) @ v


# The flow of the program.


class LoopOverScores(Attend):
    fuses = ("AF101",)  # live, the loop is gone: two doublings are one scale

    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        for _ in range(2):
            s = s * 2
        return F.softmax(s, dim=-1) @ v


class RefinedInALoop(Attend):
    softmax_alone = True

    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        for _ in range(2):
            w = F.softmax(s, dim=-1)
            s = s + w
        return w @ v


class Sinkhorn(Attend):
    def forward(self, q, k, v):
        s = torch.exp(q @ k.mT * self.scale)
        for _ in range(3):
            s = s / s.sum(-1, keepdim=True)
            s = s / s.sum(-2, keepdim=True)
        return s @ v


class BranchThatDoesMore(Attend):
    """In evaluation the scores are sharpened."""

    fuses = ("AF101",)  # live, each mode is a straight line

    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        if not self.training:
            s = s.softmax(-1)
        return F.softmax(s, dim=-1) @ v


class DetachedScores(Attend):
    def forward(self, q, k, v):
        s = (q @ k.mT * self.scale).detach()
        return F.softmax(s, dim=-1) @ v


class DetachedWeights(Attend):
    def forward(self, q, k, v):
        w = F.softmax(q @ k.mT * self.scale, dim=-1)
        return w.detach() @ v


class NoGradAroundTheWeights(Attend):
    def forward(self, q, k, v):
        with torch.no_grad():
            w = F.softmax(q @ k.mT * self.scale, dim=-1)
        return w @ v


class NoGradInTheMiddle(Attend):
    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        with torch.no_grad():
            w = F.softmax(s, dim=-1)
        return w @ v


class ScaleUnderNoGrad(Attend):
    def forward(self, q, k, v):
        s = q @ k.mT
        with torch.no_grad():
            t = s * self.scale
        return F.softmax(t, dim=-1) @ v


class QueryWrittenBetween(Attend):
    def forward(self, q, k, v):
        q = q.clone()
        s = q.detach() @ k.detach().mT * self.scale
        q.mul_(2)
        return F.softmax(s, dim=-1) @ v + q


class ValueWrittenBetween(Attend):
    """A rewrite must read v after it was written, as the program does, or leave it alone."""

    numbers_only = True

    def forward(self, q, k, v):
        v = v.clone()
        w = F.softmax(q @ k.mT * self.scale, dim=-1)
        v[:, :, 0] = 0
        return w @ v


class KeyWrittenByIndex(Attend):
    def forward(self, q, k, v):
        k = k.detach().clone()
        s = q.detach() @ k.mT * self.scale
        k[:, :, 0] = 0
        return F.softmax(s, dim=-1) @ v + k


class MaskWrittenBetween(Attend):
    arguments = {"mask": "keep"}

    def forward(self, q, k, v, mask):
        mask = mask.clone()
        s = (q @ k.mT * self.scale).masked_fill(~mask, float("-inf"))
        mask[..., 1] = False
        return F.softmax(s, dim=-1) @ v * mask.float().mean()


class ScoresWrittenByIndex(Attend):
    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        s[..., 0] = -1.0
        return F.softmax(s, dim=-1) @ v


class WeightsWrittenByIndex(Attend):
    def forward(self, q, k, v):
        w = F.softmax(q @ k.mT * self.scale, dim=-1)
        w = w.clone()
        w[..., 0] = 0
        return w @ v


class ScoresAliased(Attend):
    """A view of the scores is written through another name."""

    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        first = s[..., :1]
        first.fill_(-1.0)
        return F.softmax(s, dim=-1) @ v


class StarArguments(Attend):
    fuses = ("AF101",)  # live, the arguments are known

    def forward(self, q, k, v):
        arguments = (-1,)
        return F.softmax(q @ k.mT * self.scale, *arguments) @ v


class KeywordArguments(Attend):
    def forward(self, q, k, v):
        options = {"dim": -2}
        return F.softmax(q @ k.mT * self.scale, **options) @ v


class UnknownCallReadsScores(Attend):
    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        _log(s)
        return F.softmax(s, dim=-1) @ v


_LOGGED = []


def _log(tensor):
    _LOGGED.append(tensor)
    del _LOGGED[:-1]


class PassedThroughUserFunction(Attend):
    def forward(self, q, k, v):
        return softmax(q @ k.mT * self.scale, dim=-1) @ v


def softmax(x, dim):
    """The user's own: with a floor."""
    return torch.clamp(torch.softmax(x, dim), min=0.01)


class ShadowedName(Attend):
    def forward(self, q, k, v):
        F = _Sharper()
        return F.softmax(q @ k.mT * self.scale, dim=-1) @ v


class _Sharper:
    def softmax(self, x, dim):
        return torch.relu(torch.softmax(x, dim) - 0.05)


class SoftmaxMethodOfItsOwn(Attend):
    def softmax(self, x):
        return torch.relu(torch.softmax(x, -1) - 0.05)

    def forward(self, q, k, v):
        return self.softmax(q @ k.mT * self.scale) @ v


class SubclassedModule(Attend):
    """A child that inherits from nn.Softmax and does more."""

    def __init__(self):
        super().__init__()
        self.softmax = _LoudSoftmax(dim=-1)

    def forward(self, q, k, v):
        return self.softmax(q @ k.mT * self.scale) @ v


class _LoudSoftmax(nn.Softmax):
    def forward(self, input):
        return super().forward(input * 2.0) + 0.01


class WeightsOfTwoProducts(Attend):
    """The same weights are used for two values."""

    def forward(self, q, k, v):
        w = F.softmax(q @ k.mT * self.scale, dim=-1)
        return w @ v + w @ k


class SumOfTwoAttentions(Attend):
    """Two probabilities are subtracted before the product: differential attention."""

    def forward(self, q, k, v):
        a = F.softmax(q @ k.mT * self.scale, dim=-1)
        b = F.softmax(k @ q.mT * self.scale, dim=-1)
        return (a - 0.5 * b) @ v


class ResidualOnScores(Attend):
    """RealFormer: the scores go on to the next layer."""

    arguments = {"previous": "bias"}

    def forward(self, q, k, v, previous):
        s = q @ k.mT * self.scale + previous
        return F.softmax(s, dim=-1) @ v, s


class CosineSimilarityMatrix(Attend):
    """Contrastive learning: no values."""

    def forward(self, q, k):
        return F.softmax(q @ k.mT * self.scale, dim=-1)


class SoftmaxOfProductOnly(Attend):
    """Softmax of x times a weight is a classifier, not attention: but it is the same formula, with a fixed key."""

    numbers_only = True

    def __init__(self):
        super().__init__()
        self.memory_keys = nn.Parameter(torch.randn(5, 24))
        self.memory_values = nn.Parameter(torch.randn(5, 24))

    def forward(self, x):
        return F.softmax(x @ self.memory_keys.t(), dim=-1) @ self.memory_values


class MixtureOfExperts(Attend):
    """The gate's probabilities weigh experts: softmax of a linear layer."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(24, 4)
        self.experts = nn.Parameter(torch.randn(4, 24))

    def forward(self, x):
        return F.softmax(self.gate(x), dim=-1) @ self.experts


class AdditiveAttention(Attend):
    """Bahdanau: the scores are no product."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(8, 1)

    def forward(self, q, k, v):
        s = self.w(torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3))).squeeze(-1)
        return F.softmax(s, dim=-1) @ v


class SoftCapped(Attend):
    """Attention of another rule (AF103)."""

    numbers_only = True

    def forward(self, q, k, v):
        s = q @ k.mT * self.scale
        s = 5.0 * torch.tanh(s / 5.0)
        return F.softmax(s, dim=-1) @ v


class RoundedThroughInt(Attend):
    def forward(self, q, k, v):
        s = (q @ k.mT * self.scale * 8).round() / 8
        return F.softmax(s, dim=-1) @ v


class FilledWhereRowsMayBeEmpty(Attend):
    """A finite fill: a row that keeps nothing attends evenly. It may be fused where that stays so."""

    numbers_only = True
    arguments = {"keep": "keep_rows_dropped"}

    def forward(self, q, k, v, keep):
        s = (q @ k.mT * self.scale).masked_fill(~keep, -1e9)
        return F.softmax(s, dim=-1) @ v


class ThenZeroedWhereEmpty(Attend):
    """Rows that keep nothing are set to zero after softmax: an edit of the probabilities."""

    softmax_alone = True

    arguments = {"keep": "keep_rows_dropped"}

    def forward(self, q, k, v, keep):
        s = (q @ k.mT * self.scale).masked_fill(~keep, -1e9)
        w = F.softmax(s, dim=-1).masked_fill(~keep, 0.0)
        return w @ v


# Axes that another branch, or another layout, would make the right ones.


class RankOfAnotherBranch(nn.Module):
    """Four dimensions here: dimension 2 are the queries."""

    numbers_only = True

    def forward(self, q, k, v):
        if q.dim() == 3:
            weights = torch.bmm(q, k.transpose(1, 2)).softmax(dim=2)
            return torch.bmm(weights, v)
        weights = (q @ k.transpose(-2, -1)).softmax(dim=2)
        return weights @ v


class ProbabilitiesTransposed(nn.Module):
    """Each key gathers from the queries that look at it."""

    arguments = {"k": "q", "v": "q"}

    def forward(self, q, k, v):
        weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
        weights = rearrange(weights, "b h i j -> b h j i")
        return weights @ v


class SoftmaxOrItsLogarithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.logarithm = True

    def forward(self, q, k, v):
        normalise = torch.log_softmax if self.logarithm else torch.softmax
        return normalise(q @ k.transpose(-2, -1), dim=-1) @ v


class ResultWrittenInPlace(Attend):
    """A matmul does not keep its result for the gradient; the fused kernel does."""

    def forward(self, q, k, v, residual):
        out = (F.softmax(q @ k.mT * self.scale, dim=-1) @ v).transpose(1, 2)
        out += residual.unflatten(-1, (3, -1))
        return out


# Assigned, but by no mask of the scores.


class AssignedByLeadingMask(Attend):
    """The mask is of batch and heads: whole matrices of scores are overwritten."""

    entry_points = ("live",)
    softmax_alone = True

    def forward(self, q, k, v):
        scores = q @ k.mT * self.scale
        scores[q[:, :, 0, 0] > 0] = -1.0
        return F.softmax(scores, dim=-1) @ v


class AssignedByIndices(Attend):
    def forward(self, q, k, v, row_indices):
        scores = q @ k.mT * self.scale
        scores[row_indices] = float("-1e9")
        return F.softmax(scores, dim=-1) @ v


class AssignedByNegatedIndices(Attend):
    """~i of whole numbers counts from the end."""

    entry_points = ("live",)

    def forward(self, q, k, v, row_indices):
        scores = q @ k.mT * self.scale
        scores[~row_indices] = -1e9
        return F.softmax(scores, dim=-1) @ v


class AssignedSlice(Attend):
    def forward(self, q, k, v):
        scores = q @ k.mT * self.scale
        scores[:, :, :, :2] = -1e9
        return F.softmax(scores, dim=-1) @ v


class AssignedSmallNumber(Attend):
    """The fill is no mask's."""

    softmax_alone = True

    def forward(self, q, k, v, mask_2d):
        scores = q @ k.mT * self.scale
        scores[..., mask_2d == 0] = 0.0
        return F.softmax(scores, dim=-1) @ v


class AssignedAndReadBefore(Attend):
    """What the scores were is returned, as a view of what they become."""

    def forward(self, q, k, v, mask_2d):
        scores = q @ k.mT * self.scale
        rows = scores[:, 0]
        scores[..., mask_2d == 0] = -1e9
        return F.softmax(scores, dim=-1) @ v, rows


class AssignedNumbersOfEach(Attend):
    """Each masked score gets a number of its own."""

    def forward(self, query, key, value, mask_3d):
        scores = query @ key.mT * self.scale
        scores[mask_3d == 0] = query.sum(-1).mean() - 1e9
        return F.softmax(scores, dim=-1) @ value


class SplitAndJoinedOtherwise(Attend):
    """The scores are joined in another order than they were split in."""

    softmax_alone = True

    def forward(self, query, key, value):
        batch, n, _ = query.shape
        m = key.size(1)
        scores = query @ key.transpose(-2, -1) * self.scale
        scores = scores.view(batch, n, 1, m, 1) + query.mean(-1)[:, :, None, None, None]
        return scores.view(batch, m, n).transpose(1, 2).softmax(dim=-1) @ value
