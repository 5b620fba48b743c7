# ruff: noqa
"""Hand-written cross entropy, and the cross entropy of a linear layer."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange
from torch.nn import NLLLoss

PAD = 0
nll = nn.NLLLoss()


class Loss(nn.Module):
    rule = "AF501"


class NllOfLogSoftmax(Loss):
    def forward(self, logits, target):
        return F.nll_loss(F.log_softmax(logits, dim=1), target)


class NllWithNames(Loss):
    """As in torch's own examples, in one forward."""

    def forward(self, logits, target):
        output = F.log_softmax(logits, dim=1)
        loss = F.nll_loss(input=output, target=target, reduction="sum")
        return loss


class NllNotReduced(Loss):
    def forward(self, logits, target):
        return F.nll_loss(logits.log_softmax(1), target, reduction="none")


class NllIgnoring(Loss):
    def forward(self, logits, target):
        return F.nll_loss(torch.log_softmax(logits, 1), target, ignore_index=PAD)


class NllWeighted(Loss):
    def __init__(self):
        super().__init__()
        self.register_buffer("balance", torch.linspace(0.5, 2, 11))

    def forward(self, logits, target):
        return F.nll_loss(F.log_softmax(logits, dim=1), target, weight=self.balance)


class NllLastDimension(Loss):
    """Whether there are two dimensions is not to be read from the text."""

    safety = "unsafe"

    def forward(self, logits, target):
        return F.nll_loss(F.log_softmax(logits, dim=-1), target)


class NllFlattened(Loss):
    def forward(self, logits_3d, target_2d):
        return F.nll_loss(F.log_softmax(logits_3d.view(-1, 11), dim=-1), target_2d.view(-1))


class NllFlattenedAfterwards(Loss):
    """As fairseq does."""

    def forward(self, logits_3d, target_2d):
        lprobs = F.log_softmax(logits_3d, dim=-1)
        lprobs = lprobs.view(-1, lprobs.size(-1))
        target = target_2d.view(-1)
        return F.nll_loss(lprobs, target, ignore_index=PAD, reduction="sum")


class NllFlattenedToASize(Loss):
    safety = "unsafe"

    def forward(self, logits_3d, target_2d):
        return F.nll_loss(F.log_softmax(logits_3d, dim=-1).view(-1, 11), target_2d.view(-1))


class NllFlattenedByName(Loss):
    def forward(self, logits_3d, target_2d):
        return F.nll_loss(logits_3d.log_softmax(-1).flatten(0, -2), target_2d.flatten())


class NllTransposed(Loss):
    safety = "unsafe"

    def forward(self, logits_3d, target_2d):
        return F.nll_loss(F.log_softmax(logits_3d, dim=-1).transpose(1, 2), target_2d)


class NllPermuted(Loss):
    def forward(self, logits_3d, target_2d):
        return F.nll_loss(F.log_softmax(logits_3d, dim=2).permute(0, 2, 1), target_2d)


class NllRearranged(Loss):
    def forward(self, logits_3d, target_2d):
        return F.nll_loss(rearrange(logits_3d.log_softmax(dim=-1), "b n c -> b c n"), target_2d)


class NllClassesSecond(Loss):
    def forward(self, logits_classes_second, target_2d):
        return F.nll_loss(F.log_softmax(logits_classes_second, dim=1), target_2d)


class NllInFloat32(Loss):
    def forward(self, logits, target):
        return F.nll_loss(F.log_softmax(logits, dim=1, dtype=torch.float32), target)


class Criterion(Loss):
    def __init__(self):
        super().__init__()
        self.log_softmax = nn.LogSoftmax(dim=1)
        self.criterion = nn.NLLLoss()

    def forward(self, logits, target):
        return self.criterion(self.log_softmax(logits), target)


class CriterionWithOptions(Loss):
    def __init__(self):
        super().__init__()
        self.criterion = NLLLoss(ignore_index=PAD, reduction="sum")

    def forward(self, logits, target):
        log_probs = F.log_softmax(logits, dim=1)
        return self.criterion(log_probs, target)


class CriterionMadeInPlace(Loss):
    def forward(self, logits, target):
        return nn.NLLLoss()(nn.LogSoftmax(dim=1)(logits), target)


class CriterionOfTheFile(Loss):
    def forward(self, logits, target):
        return nll(F.log_softmax(logits, 1), target)


class Gathered(Loss):
    def forward(self, logits, target):
        log_probs = F.log_softmax(logits, dim=-1)
        return -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).mean()


class GatheredNotReduced(Loss):
    def forward(self, logits_3d, target_2d):
        log_probs = F.log_softmax(logits_3d, dim=-1)
        loss = -torch.gather(log_probs, dim=-1, index=target_2d.unsqueeze(-1)).squeeze(-1)
        return loss


class GatheredAndSummed(Loss):
    def forward(self, logits_3d, target_2d):
        return -logits_3d.log_softmax(-1).gather(-1, target_2d[..., None]).sum()


class GatheredAlongTheSecond(Loss):
    safety = "unsafe"  # targets may be -100, or of another dtype than int64

    def forward(self, logits, target):
        logp = F.log_softmax(logits, dim=1)
        return -(logp.gather(1, target.view(-1, 1)).squeeze(1)).mean()


class GatheredByLong(Loss):
    def forward(self, logits, target):
        logp = F.log_softmax(logits, dim=1)
        picked = logp.gather(dim=1, index=target.long().unsqueeze(1))
        return -picked.mean()


class GatheredAndMasked(Loss):
    """What is masked is averaged over the rest."""

    entry_points = ("live",)  # as text the loss would be longer, and no faster

    def forward(self, logits_3d, target_2d):
        mask = (target_2d != PAD).float()
        log_probs = F.log_softmax(logits_3d, dim=-1)
        picked = log_probs.gather(-1, target_2d.unsqueeze(-1)).squeeze(-1)
        return -(picked * mask).sum() / mask.sum()


class GatheredFromTheSecond(Loss):
    def forward(self, logits_classes_second, target_2d):
        return -logits_classes_second.log_softmax(1).gather(1, target_2d.unsqueeze(1)).squeeze(1).mean()


class GatheredShifted(Loss):
    """The log-likelihood of a text: each token is predicted by those before it."""

    safety = "unsafe"

    def forward(self, logits_3d, target_2d):
        log_probs = F.log_softmax(logits_3d, dim=-1)[:, :-1]
        labels = target_2d[:, 1:]
        return -log_probs.gather(dim=2, index=labels.unsqueeze(2)).squeeze(2)


class TakenAlong(Loss):
    safety = "unsafe"  # targets may be -100, or of another dtype than int64

    def forward(self, logits_3d, target_2d):
        return -torch.take_along_dim(logits_3d.log_softmax(-1), target_2d[..., None], dim=-1).mean()


class Indexed(Loss):
    """From a lecture on language models: a negative target would count from the end."""

    safety = "unsafe"

    def forward(self, logits, target):
        logprobs = F.log_softmax(logits, 1)
        return -logprobs[range(target.shape[0]), target].mean()


class IndexedByArange(Loss):
    safety = "unsafe"

    def forward(self, logits, target):
        logprobs = torch.log_softmax(logits, dim=-1)
        return -logprobs[torch.arange(target.size(0)), target].mean()


class OneHot(Loss):
    def forward(self, logits_3d, target_2d):
        log_probs = F.log_softmax(logits_3d, dim=-1)
        one_hot = F.one_hot(target_2d, 11)
        return -(log_probs * one_hot).sum(dim=-1).mean()


class OneHotAsFloats(Loss):
    def forward(self, logits, target):
        y = F.one_hot(target, num_classes=logits.shape[-1]).to(logits.dtype)
        return -(y * logits.log_softmax(-1)).sum(-1).mean()


class Scattered(Loss):
    safety = "unsafe"  # targets may be -100, or of another dtype than int64

    def forward(self, logits, target):
        log_probs = F.log_softmax(logits, dim=1)
        one_hot = torch.zeros_like(log_probs).scatter_(1, target.unsqueeze(1), 1)
        return -(one_hot * log_probs).sum(dim=1).mean()


class LogSumExpLessPicked(Loss):
    def forward(self, logits_3d, target_2d):
        picked = logits_3d.gather(-1, target_2d.unsqueeze(-1)).squeeze(-1)
        return (torch.logsumexp(logits_3d, dim=-1) - picked).mean()


class LogSumExpNotReduced(Loss):
    entry_points = ("live",)  # as text the loss would be longer, and no faster

    def forward(self, logits_3d, target_2d):
        return logits_3d.logsumexp(-1) - logits_3d.gather(-1, target_2d[..., None]).squeeze(-1)


class NormalisedByHand(Loss):
    def forward(self, logits, target):
        log_probs = logits - torch.logsumexp(logits, dim=1, keepdim=True)
        return F.nll_loss(log_probs, target)


class NormalisedByHandStably(Loss):
    safety = "unsafe"  # targets may be -100, or of another dtype than int64

    def forward(self, logits_3d, target_2d):
        top = logits_3d.max(dim=-1, keepdim=True).values
        shifted = logits_3d - top
        log_probs = shifted - shifted.exp().sum(-1, keepdim=True).log()
        return -log_probs.gather(-1, target_2d.unsqueeze(-1)).squeeze(-1).mean()


class NormalisedByAMethod(Loss):
    """From a tutorial that builds a network from nothing."""

    def forward(self, logits, target):
        return F.nll_loss(self.log_softmax(logits), target)

    def log_softmax(self, x):
        return x - x.exp().sum(1).log().unsqueeze(1)


class LogOfSoftmax(Loss):
    """Where a probability underflows, its logarithm does not any more."""

    safety = "unsafe"

    def forward(self, logits, target):
        probs = F.softmax(logits, dim=1)
        return F.nll_loss(torch.log(probs), target)


class LogOfSoftmaxGathered(Loss):
    safety = "unsafe"

    def forward(self, logits, target):
        return -logits.softmax(-1).log().gather(-1, target.unsqueeze(-1)).squeeze(-1).mean()


class Smoothed(Loss):
    safety = "unsafe"  # targets may be -100, or of another dtype than int64

    def forward(self, logits, target):
        logprobs = F.log_softmax(logits, dim=-1)
        nll_loss = -logprobs.gather(dim=-1, index=target.unsqueeze(-1))
        nll_loss = nll_loss.squeeze(-1)
        smooth_loss = -logprobs.mean(dim=-1)
        loss = 0.9 * nll_loss + 0.1 * smooth_loss
        return loss.mean()


class SmoothedByShare(Loss):
    safety = "unsafe"  # a target of -100 would be smoothed, too

    def __init__(self):
        super().__init__()
        self.smoothing = 0.1

    def forward(self, logits, target):
        log_probs = F.log_softmax(logits, dim=1)
        smooth = -log_probs.mean(dim=1).mean()
        return (1 - self.smoothing) * F.nll_loss(log_probs, target) + self.smoothing * smooth


class SmoothedByConfidence(Loss):
    """As in timm. That the two shares add up to one is known of a live model alone."""

    def __init__(self, smoothing=0.1):
        super().__init__()
        self.smoothing = smoothing
        self.confidence = 1.0 - smoothing

    def forward(self, logits, target):
        logprobs = F.log_softmax(logits, dim=-1)
        nll_loss = -logprobs.gather(dim=-1, index=target.unsqueeze(1))
        nll_loss = nll_loss.squeeze(1)
        smooth_loss = -logprobs.mean(dim=-1)
        loss = self.confidence * nll_loss + self.smoothing * smooth_loss
        return loss.mean()


class InABranch(Loss):
    def forward(self, logits, target):
        loss = None
        if target is not None:
            log_probs = F.log_softmax(logits, dim=1)
            loss = F.nll_loss(log_probs, target)
        return loss


class AddedToAnother(Loss):
    def forward(self, logits, target):
        penalty = logits.pow(2).mean()
        return F.nll_loss(F.log_softmax(logits, dim=1), target) + 1e-2 * penalty


class Linear(nn.Module):
    rule = "AF502"
    safety = "unsafe"
    also = ("AF501",)

    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(24, 11, bias=False)


class Head(Linear):
    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), target_2d.view(-1))


class HeadWithBias(nn.Module):
    rule = "AF502"
    safety = "unsafe"

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(24, 11)
        self.loss = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)

    def forward(self, x, target_2d):
        return self.loss(self.out(x).reshape(-1, 11), target_2d.reshape(-1))


class HeadShifted(Linear):
    """Tokens predict the next one, as in most libraries."""

    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        logits = logits.float()
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = target_2d[..., 1:].contiguous()
        return F.cross_entropy(shift_logits.view(-1, 11), shift_labels.view(-1))


class HeadShiftedEarly(Linear):
    def forward(self, x, target_2d):
        x, labels = x[:, :-1], target_2d[:, 1:]
        logits = self.lm_head(x)
        loss = F.cross_entropy(rearrange(logits, "b n c -> b c n"), labels, ignore_index=PAD)
        return loss


class HeadTransposed(Linear):
    def forward(self, x, target_2d):
        return F.cross_entropy(self.lm_head(x).transpose(1, 2), target_2d, reduction="sum")


class HeadPermuted(Linear):
    def forward(self, x, target_2d):
        return F.cross_entropy(self.lm_head(x).permute(0, 2, 1), target_2d, reduction="none")


class HeadRearranged(Linear):
    def forward(self, x, target_2d):
        logits = rearrange(self.lm_head(x), "b n c -> (b n) c")
        return F.cross_entropy(logits, rearrange(target_2d, "b n -> (b n)"))


class HeadFlattened(Linear):
    def forward(self, x, target_2d):
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), target_2d.flatten(0, 1), label_smoothing=0.1)


class HeadOfLogSoftmax(Linear):
    def forward(self, x, target_2d):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        return F.nll_loss(log_probs.view(-1, 11), target_2d.view(-1))


class HeadGathered(Linear):
    def forward(self, x, target_2d):
        log_probs = self.lm_head(x).log_softmax(dim=-1)
        return -log_probs.gather(-1, target_2d.unsqueeze(-1)).squeeze(-1).mean()


class HeadLogProbs(Linear):
    """As in TRL: the log-probabilities of the next tokens, of which the completion's count."""

    def forward(self, x, target_2d):
        logits, labels = self.lm_head(x)[:, :-1, :], target_2d[:, 1:].clone()
        kept = labels != PAD
        labels[labels == PAD] = 1
        log_probs = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        return (log_probs * kept).sum(-1)


class HeadSelectedLogSoftmax(Linear):
    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        selected = torch.gather(logits, dim=-1, index=target_2d.unsqueeze(-1)).squeeze(-1)
        return selected - torch.logsumexp(logits, dim=-1)


class HeadLogProbsByIndex(Linear):
    def forward(self, x, target_2d):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        return log_probs.gather(-1, target_2d[..., None])[..., 0].sum(-1)


class HeadLogProbsOfProbabilities(Linear):
    def forward(self, x, target_2d):
        probabilities = self.lm_head(x).softmax(-1)
        return probabilities.gather(-1, target_2d.unsqueeze(-1)).squeeze(-1).log()


class HeadRatio(Linear):
    """PPO's and GRPO's ratio."""

    def forward(self, x, target_2d):
        log_probs = self.lm_head(x).log_softmax(-1).gather(-1, target_2d.unsqueeze(-1)).squeeze(-1)
        ratio = torch.exp(log_probs - log_probs.detach())
        return -torch.min(ratio * 0.5, ratio.clamp(0.8, 1.2) * 0.5)


class HeadWithTemperature(nn.Module):
    rule = "AF502"
    safety = "unsafe"
    also = ("AF501",)

    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(24, 11)
        self.temperature = 0.7

    def forward(self, x, target_2d):
        logits = self.lm_head(x) / self.temperature
        return F.log_softmax(logits, dim=-1).gather(-1, target_2d.unsqueeze(-1)).squeeze(-1)


class HeadCapped(Linear):
    """As in Gemma 2."""

    def forward(self, x, target_2d):
        logits = 30 * torch.tanh(self.lm_head(x) / 30)
        return F.cross_entropy(logits.flatten(0, 1), target_2d.flatten())


class HeadCappedAndScaled(nn.Module):
    rule = "AF502"
    safety = "unsafe"

    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(24, 11, bias=False)
        self.cap, self.scale = 2.0, 0.25

    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        logits = logits / self.cap
        logits = torch.tanh(logits)
        logits = (logits * self.cap)[:, :-1] * self.scale
        return F.cross_entropy(logits.reshape(-1, 11), target_2d[:, 1:].reshape(-1))


class HeadTied(nn.Module):
    """The embedding's own weight."""

    rule = "AF502"
    safety = "unsafe"

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(11, 24)

    def forward(self, target_2d):
        x = self.wte(target_2d)[:, :-1]
        logits = F.linear(x, self.wte.weight)
        return F.cross_entropy(logits.reshape(-1, logits.size(-1)), target_2d[:, 1:].reshape(-1))


class HeadOnlyInTraining(Linear):
    """No logits are returned where there are targets."""

    def forward(self, x, target_2d):
        if target_2d is not None:
            logits = self.lm_head(x)
            return F.cross_entropy(logits.view(-1, logits.size(-1)), target_2d.view(-1))
        return self.lm_head(x)


class SmoothedOverTheOthers(Loss):
    """All classes but the target share the smoothing."""

    def forward(self, logits, target):
        eps, n = 0.1, logits.size(1)
        one_hot = torch.zeros_like(logits).scatter(1, target.view(-1, 1), 1)
        one_hot = one_hot * (1 - eps) + (1 - one_hot) * eps / (n - 1)
        return -(one_hot * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


class SmoothedOverTheOthersByHand(Loss):
    safety = "unsafe"  # targets may be -100, or of another dtype than int64

    def forward(self, logits, target):
        eps, n = 0.1, logits.size(-1)
        log_probs = F.log_softmax(logits, -1)
        nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        others = -log_probs.sum(-1) - nll
        return ((1 - eps) * nll + eps / (n - 1) * others).mean()


class SmoothedTargetsScattered(Loss):
    def forward(self, logits, target):
        eps = 0.1
        log_probs = logits.log_softmax(dim=1)
        smoothed = torch.full_like(log_probs, eps / (logits.size(1) - 1))
        smoothed.scatter_(1, target.unsqueeze(1), 1.0 - eps)
        return torch.mean(torch.sum(-smoothed * log_probs, dim=1))


class SmoothedTargetsOfFull(Loss):
    safety = "unsafe"  # targets may be -100, or of another dtype than int64

    def forward(self, logits, target):
        eps, classes = 0.2, logits.shape[1]
        smoothed = torch.full(logits.shape, eps / (classes - 1), dtype=logits.dtype, device=logits.device)
        smoothed = smoothed.scatter(1, target.unsqueeze(1), 1 - eps)
        return -(smoothed * F.log_softmax(logits, dim=1)).sum(1).sum()


class SmoothedTargetsOfOneHot(Loss):
    safety = "unsafe"

    def forward(self, logits, target):
        eps, classes = 0.1, logits.size(1)
        chosen = F.one_hot(target, classes).to(logits.dtype)
        smoothed = chosen * (1 - eps) + (1 - chosen) * eps / (classes - 1)
        return -(smoothed * F.log_softmax(logits, dim=1)).sum(1).mean()


class SmoothedTargetsEvenly(Loss):
    """A share of all classes, the target's too, as torch has it."""

    safety = "unsafe"

    def forward(self, logits, target):
        eps, classes = 0.1, logits.size(1)
        smoothed = F.one_hot(target, classes).to(logits.dtype) * (1 - eps) + eps / classes
        return -(smoothed * F.log_softmax(logits, dim=1)).sum(1).mean()


class SmoothedByClassesOfModule(Loss):
    """Only live: a guard sees to it that there are as many classes."""

    entry_points = ("live",)

    def __init__(self, classes=11, smoothing=0.1):
        super().__init__()
        self.classes = classes
        self.smoothing = smoothing

    def forward(self, logits, target):
        smoothed = torch.full_like(logits, self.smoothing / (self.classes - 1))
        smoothed.scatter_(1, target.unsqueeze(1), 1 - self.smoothing)
        return -(smoothed * F.log_softmax(logits, dim=-1)).sum(-1).mean()
