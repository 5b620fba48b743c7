# ruff: noqa
"""Looks like a divergence, an entropy or several losses of one layer, and must be left alone or compute the same."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(24, 11, bias=False)


class KlAndLogProbs(Linear):
    def forward(self, x, y):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        return F.kl_div(log_probs, F.softmax(y[..., :11], dim=-1), reduction="batchmean"), log_probs


class KlOfLogits(Linear):
    """A common mistake; it stays one."""

    def forward(self, x, y):
        return F.kl_div(self.lm_head(x), F.softmax(y[..., :11], dim=-1), reduction="batchmean")


class KlOfProbabilities(Linear):
    def forward(self, x, y):
        return F.kl_div(F.softmax(self.lm_head(x), dim=-1), F.softmax(y[..., :11], dim=-1), reduction="sum")


class KlOverRows(Linear):
    def forward(self, x, y):
        return F.kl_div(F.log_softmax(self.lm_head(x), dim=0), F.softmax(y[..., :11], dim=0), reduction="sum")


class KlSummedOverRows(Linear):
    def forward(self, x, y):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        return F.kl_div(log_probs, F.softmax(y[..., :11], dim=-1), reduction="none").sum(1)


class KlTransposed(Linear):
    """The target has the classes second: shapes agree only by chance."""

    def forward(self, x, y):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1).transpose(1, 2)
        return F.kl_div(log_probs, F.softmax(y[..., :11], dim=-1).transpose(1, 2), reduction="sum")


class WeightsOfAnother(Linear):
    """The weights are not the exponentials of the second logarithms."""

    def forward(self, x, y):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        q, other = F.softmax(y[..., :11], dim=-1), F.log_softmax(y[..., 11:22], dim=-1)
        return (q * (other - log_probs)).sum(-1)


class EntropyOfAnother(Linear):
    """Another temperature: a cross entropy of two distributions, both of which need gradients."""

    numbers_only = True

    def forward(self, x):
        logits = self.lm_head(x)
        return -(F.softmax(logits / 2.0, dim=-1) * F.log_softmax(logits, dim=-1)).sum(-1)


class EntropyOverRows(Linear):
    def forward(self, x):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        return -(log_probs.exp() * log_probs).sum(1)


class EntropyOfDetached(Linear):
    """No gradient flows through the weights."""

    numbers_only = True

    def forward(self, x):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        return -(log_probs.exp().detach() * log_probs).sum(-1)


class EntropyKept(Linear):
    """The entropy keeps its dimension."""

    def forward(self, x):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        return -(log_probs.exp() * log_probs).sum(-1, keepdim=True)


class LogZOverRows(Linear):
    def forward(self, x):
        return torch.logsumexp(self.lm_head(x), dim=0)


class LogZOfAll(Linear):
    def forward(self, x):
        return torch.logsumexp(self.lm_head(x), dim=(1, 2))


class ZLossAndLogits(Linear):
    """The logits are returned, so that neither loss gains."""

    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, 11), target_2d.view(-1))
        return loss + 1e-2 * logits.logsumexp(-1).pow(2).mean(), logits


class ZLossAndAccuracy(Linear):
    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, 11), target_2d.view(-1))
        hits = (logits.argmax(-1) == target_2d).float().mean()
        return loss + 1e-2 * logits.logsumexp(-1).pow(2).mean(), hits


class LogitsChangedBetween(Linear):
    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, 11), target_2d.view(-1))
        logits += 1.0
        return loss + 1e-2 * logits.logsumexp(-1).pow(2).mean()


class LogitsSquared(Linear):
    """The second loss is one of the logits themselves."""

    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, 11), target_2d.view(-1)) + 1e-4 * logits.pow(2).mean()


class ChosenAndBest(Linear):
    def forward(self, x, target_2d):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        chosen = log_probs.gather(-1, target_2d.unsqueeze(-1)).squeeze(-1)
        return chosen - log_probs.max(-1).values


class FocalOfTwo(Linear):
    """The probability of the target weighs its own loss, and the distribution is returned."""

    def forward(self, x, target_2d):
        probabilities = self.lm_head(x).softmax(-1)
        chosen = probabilities.gather(-1, target_2d.unsqueeze(-1)).squeeze(-1)
        return (1 - chosen) ** 2, probabilities


class JensenShannon(Linear):
    """The logarithm of a mixture."""

    def forward(self, x, y):
        own, other = F.log_softmax(self.lm_head(x), dim=-1), F.log_softmax(y[..., :11], dim=-1)
        mixed = torch.logsumexp(torch.stack([own, other]), dim=0) - 0.6931471805599453
        return F.kl_div(mixed, own, log_target=True, reduction="batchmean")


class MaskedSum(Linear):
    """A mask of rows, and no distribution."""

    numbers_only = True
    arguments = {"mask": "padding"}

    def forward(self, x, mask):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        return (log_probs * mask.unsqueeze(-1)).sum(-1)


class PriorOfClasses(Linear):
    """One distribution for all rows: it is broadcast."""

    numbers_only = True
    arguments = {"prior": "soft_targets"}

    def forward(self, x, prior):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        return -(prior[0] * log_probs).sum(-1).mean()


class NegativeReturnedToo(Linear):
    """The log-probability is returned with both signs."""

    numbers_only = True

    def forward(self, x, target_2d):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        chosen = log_probs.gather(-1, target_2d.unsqueeze(-1)).squeeze(-1)
        return chosen, -chosen
