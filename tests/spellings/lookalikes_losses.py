# ruff: noqa
"""Looks like cross entropy, and must be left alone."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class LogProbsReturned(nn.Module):
    def forward(self, logits, target):
        log_probs = F.log_softmax(logits, dim=1)
        return F.nll_loss(log_probs, target), log_probs


class LogProbsStored(nn.Module):
    def forward(self, logits, target):
        self.log_probs = F.log_softmax(logits, dim=1)
        return F.nll_loss(self.log_probs, target)


class LogProbsForAccuracy(nn.Module):
    def forward(self, logits, target):
        log_probs = F.log_softmax(logits, dim=1)
        hits = (log_probs.argmax(1) == target).sum()
        return F.nll_loss(log_probs, target), hits


class LogProbsForEntropy(nn.Module):
    def forward(self, logits, target):
        log_probs = F.log_softmax(logits, dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        return -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).mean() - 0.01 * entropy


class NormalisedOverTheRows(nn.Module):
    def forward(self, logits, target):
        return F.nll_loss(F.log_softmax(logits, dim=0), target)


class NormalisedOverTheOther(nn.Module):
    """The classes are second, and the softmax runs over the last."""

    def forward(self, logits_classes_second, target_2d):
        return F.nll_loss(F.log_softmax(logits_classes_second, dim=2), target_2d)


class ClassesCutOff(nn.Module):
    """The first class is normalised over, and none of those that are picked from."""

    def forward(self, logits_3d, target_2d):
        log_probs = F.log_softmax(logits_3d, dim=-1)[..., 1:]
        return -log_probs.gather(-1, target_2d.clamp(max=9).unsqueeze(-1)).mean()


class FirstRowAlongTheOther(nn.Module):
    """An index takes a dimension away, and the next is not the one that was normalised."""

    arguments = {"index": "row_indices"}

    def forward(self, logits_classes_second, index):
        log_probs = F.log_softmax(logits_classes_second, dim=1)[0]
        return -log_probs.gather(1, (index % 5)[:, None]).mean()


class GatheredAlongTheRows(nn.Module):
    arguments = {"index": "row_indices"}

    def forward(self, logits, index):
        return -F.log_softmax(logits, dim=-1).gather(0, index.unsqueeze(0)).mean()


class NllOfProbabilities(nn.Module):
    """A common mistake; it stays one."""

    def forward(self, logits, target):
        return F.nll_loss(F.softmax(logits, dim=1), target)


class NllOfLogits(nn.Module):
    def forward(self, logits, target):
        return F.nll_loss(logits, target)


class LogWithEps(nn.Module):
    def forward(self, logits, target):
        return F.nll_loss(torch.log(F.softmax(logits, dim=1) + 1e-3), target)


class LogClamped(nn.Module):
    def forward(self, logits, target):
        return F.nll_loss(F.softmax(logits, dim=1).clamp(min=0.1).log(), target)


class SmoothedByKl(nn.Module):
    def forward(self, logits, target):
        smoothed = torch.full_like(logits, 0.1 / 10).scatter(1, target.unsqueeze(1), 0.9)
        return F.kl_div(F.log_softmax(logits, dim=-1), smoothed, reduction="sum")


class SmoothedTooMuch(nn.Module):
    """The shares do not add up to one. The first part is fused, the log-probabilities of the second are not."""

    numbers_only = True

    def forward(self, logits, target):
        log_probs = F.log_softmax(logits, dim=-1)
        nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return (nll - 0.1 * log_probs.mean(-1)).mean()


class SoftTargets(nn.Module):
    def forward(self, logits, soft_targets):
        return -(soft_targets * F.log_softmax(logits, dim=-1)).sum(-1).mean()


class Distilled(nn.Module):
    arguments = {"teacher": "soft_targets"}

    def forward(self, logits, teacher):
        return -(F.softmax(teacher, dim=-1) * F.log_softmax(logits, dim=-1)).sum(-1).mean()


class MeanOverTheClasses(nn.Module):
    def forward(self, logits, target):
        return -(F.log_softmax(logits, dim=-1) * F.one_hot(target, 11)).mean()


class OneHotSummedOverRows(nn.Module):
    def forward(self, logits, target):
        return -(F.log_softmax(logits, dim=-1) * F.one_hot(target, 11)).sum(0)


class Focal(nn.Module):
    """Each loss is weighted by the probability of its target."""

    numbers_only = True

    def forward(self, logits, target):
        log_p = F.log_softmax(logits, dim=-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return -((1 - log_p.exp()) ** 2 * log_p).mean()


class ChangedInPlace(nn.Module):
    def forward(self, logits, target):
        log_probs = F.log_softmax(logits, dim=1) * 1.0
        log_probs[:, 0] = 0.0
        return F.nll_loss(log_probs, target)


class LogitsChangedInBetween(nn.Module):
    def forward(self, logits, target):
        logits = logits * 1.0
        log_probs = F.log_softmax(logits, dim=1)
        logits.mul_(2.0)
        return F.nll_loss(log_probs, target) + logits.sum()


class GatheredOfAnother(nn.Module):
    """The normaliser of one, the logit of another."""

    arguments = {"other": "logits"}

    def forward(self, logits, other, target):
        return (torch.logsumexp(logits, -1) - other.gather(-1, target.unsqueeze(-1)).squeeze(-1)).mean()


class Contrastive(nn.Module):
    """The diagonal is the target: a loss over pairs."""

    def forward(self, matrix):
        scores = matrix @ matrix.t()
        return -F.log_softmax(scores, dim=-1).diagonal().mean()


class TheirOwnNll(nn.Module):
    def forward(self, logits, target):
        return self.nll_loss(F.log_softmax(logits, dim=1), target)

    def nll_loss(self, log_probs, target):
        return log_probs.sum() * target.sum()


class _Headed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(24, 11, bias=False)


class LogitsReturned(_Headed):
    """nanoGPT's way: logits are returned with the loss."""

    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), target_2d.view(-1))
        return logits, loss


class LogitsReturnedInABranch(_Headed):
    def forward(self, x, target_2d=None):
        logits = self.lm_head(x)
        loss = None
        if target_2d is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), target_2d.view(-1))
        return logits, loss


class LogitsForAccuracy(_Headed):
    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        hits = (logits.argmax(-1) == target_2d).float().mean()
        return F.cross_entropy(logits.flatten(0, 1), target_2d.flatten()), hits


class LogitsCappedByAnother(_Headed):
    """The product is not bounded by the number that divides the logits."""

    numbers_only = True

    def forward(self, x, target_2d):
        logits = 20 * torch.tanh(self.lm_head(x) / 30) + 1e-3 * x[..., :11]
        return F.cross_entropy(logits.flatten(0, 1), target_2d.flatten())


class LogitsScaledByRow(_Headed):
    """A factor for each row, which needs a gradient."""

    numbers_only = True

    def forward(self, x, target_2d):
        logits = self.lm_head(x) * x.mean(-1, keepdim=True)
        return F.cross_entropy(logits.flatten(0, 1), target_2d.flatten())


class LogitsScaledByAParameter(_Headed):
    """CLIP's learned temperature."""

    numbers_only = True

    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x, target_2d):
        logits = self.lm_head(x) * self.logit_scale.exp()
        return F.cross_entropy(logits.flatten(0, 1), target_2d.flatten())


class LogitsShifted(_Headed):
    """A shift of the classes changes the softmax."""

    numbers_only = True

    def forward(self, x, target_2d):
        logits = torch.tanh(self.lm_head(x) + torch.arange(11.0).to(x))
        return F.cross_entropy(logits.flatten(0, 1), target_2d.flatten())


class LogitsOfSomeClasses(_Headed):
    def forward(self, x, target_2d):
        logits = self.lm_head(x)[..., :8]
        return F.cross_entropy(logits.flatten(0, 1), target_2d.clamp(max=7).flatten())


class ClassesWeighted(_Headed):
    def forward(self, x, target_2d):
        balance = torch.linspace(0.5, 2, 11).to(x)
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), target_2d.flatten(), weight=balance)


class RowsTransposed(_Headed):
    """Positions before batches: the targets are laid out otherwise."""

    def forward(self, x, target_2d):
        logits = self.lm_head(x).transpose(0, 1).reshape(-1, 11)
        return F.cross_entropy(logits, target_2d.transpose(0, 1).reshape(-1))


class SmoothedOverTwoLess(nn.Module):
    """The shares do not add up to one."""

    def forward(self, logits, target):
        eps, n = 0.1, logits.size(1)
        smoothed = torch.full_like(logits, eps / (n - 2)).scatter_(1, target.unsqueeze(1), 1 - eps)
        return -(smoothed * F.log_softmax(logits, dim=1)).sum(1).mean()


class SmoothedOverRows(nn.Module):
    """Divided by the number of rows."""

    def forward(self, logits, target):
        eps, n = 0.1, logits.size(0)
        smoothed = torch.full_like(logits, eps / (n - 1)).scatter_(1, target.unsqueeze(1), 1 - eps)
        return -(smoothed * F.log_softmax(logits, dim=1)).sum(1).mean()


class SmoothedByMoreThanAll(nn.Module):
    """torch takes no smoothing above 1."""

    def forward(self, logits, target):
        eps, n = 0.97, logits.size(1)
        smoothed = torch.full_like(logits, eps / (n - 1)).scatter_(1, target.unsqueeze(1), 1 - eps)
        return -(smoothed * F.log_softmax(logits, dim=1)).sum(1).mean()


class SmoothedForOtherTargets(nn.Module):
    """The likelihood and the others' are those of different targets."""

    numbers_only = True  # the likelihoods by themselves may be fused

    def forward(self, logits, target):
        n = logits.size(1)
        log_probs = F.log_softmax(logits, dim=1)
        nll = -log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
        next_one = -log_probs.gather(1, target.flip(0).unsqueeze(1)).squeeze(1)
        return (0.9 * nll + 0.1 / (n - 1) * (-log_probs.sum(1) - next_one)).mean()
