# ruff: noqa
"""Divergences, entropies and several losses of one linear layer's output."""

import torch
import torch.nn as nn
import torch.nn.functional as F

rule = "AF502"


class Linear(nn.Module):
    safety = "unsafe"
    also = ("AF501",)

    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(24, 11, bias=False)


class Two(nn.Module):
    safety = "unsafe"

    def __init__(self):
        super().__init__()
        self.student_head = nn.Linear(24, 11, bias=False)
        self.teacher_head = nn.Linear(24, 11, bias=False)
        self.temperature = 2.0


class KlPlain(Two):
    """Two heads of one body."""

    def forward(self, x):
        return F.kl_div(
            F.log_softmax(self.student_head(x), dim=-1), F.softmax(self.teacher_head(x), dim=-1), reduction="batchmean"
        )


class KlNoGradTeacher(Two):
    """The teacher needs no gradient."""

    def forward(self, x, y):
        student_logits = self.student_head(x)
        with torch.no_grad():
            teacher_logits = self.teacher_head(y)
        return F.kl_div(F.log_softmax(student_logits, dim=-1), F.softmax(teacher_logits, dim=-1), reduction="batchmean")


class KlTemperature(Two):
    """Hinton et al., arXiv:1503.02531."""

    def forward(self, x, y):
        T = self.temperature
        s = F.log_softmax(self.student_head(x) / T, dim=-1)
        with torch.no_grad():
            t = F.softmax(self.teacher_head(y) / T, dim=-1)
        return F.kl_div(s, t, reduction="batchmean") * (T**2)


class KlLogTarget(Two):
    """The teacher's log-probabilities."""

    def forward(self, x, y):
        s = F.log_softmax(self.student_head(x), dim=-1)
        t = F.log_softmax(self.teacher_head(y), dim=-1).detach()
        return F.kl_div(s, t, log_target=True, reduction="sum")


class KlByHand(Two):
    """The sum written out."""

    def forward(self, x, y):
        logp = self.student_head(x).log_softmax(-1)
        with torch.no_grad():
            logq = self.teacher_head(y).log_softmax(-1)
        return (logq.exp() * (logq - logp)).sum(-1).mean()


class KlByHandProbs(Two):
    """With probabilities and their logarithms."""

    def forward(self, x, y):
        logp = F.log_softmax(self.student_head(x), -1)
        with torch.no_grad():
            tl = self.teacher_head(y)
            q, logq = F.softmax(tl, -1), F.log_softmax(tl, -1)
        return torch.sum(q * (logq - logp), dim=-1)


class KlModule(nn.Module):
    """torch's module."""

    safety = "unsafe"

    def __init__(self):
        super().__init__()
        self.student_head = nn.Linear(24, 11, bias=False)
        self.kl = nn.KLDivLoss(reduction="batchmean")

    def forward(self, x, soft_targets):
        s = self.student_head(x)
        return self.kl(F.log_softmax(s.view(-1, s.size(-1)), dim=-1), soft_targets)


class KlNone(Two):
    """One number for each row."""

    def forward(self, x, y):
        s = F.log_softmax(self.student_head(x), dim=-1)
        with torch.no_grad():
            t = F.softmax(self.teacher_head(y), dim=-1)
        return F.kl_div(s, t, reduction="none").sum(-1)


class KlMasked(Two):
    """Rows without padding."""

    arguments = {"mask": "padding"}

    def forward(self, x, y, mask):
        s = F.log_softmax(self.student_head(x), dim=-1)
        with torch.no_grad():
            t = F.softmax(self.teacher_head(y), dim=-1)
        kl = F.kl_div(s, t, reduction="none").sum(-1)
        return (kl * mask).sum() / mask.sum()


class SoftCrossEntropy(Two):
    """As in MiniLLM."""

    def forward(self, x, y):
        with torch.no_grad():
            t = F.softmax(self.teacher_head(y), dim=-1)
        s = F.log_softmax(self.student_head(x), dim=-1)
        return -(t * s).sum(-1).mean()


class SoftCrossEntropyTorch(Two):
    """torch's cross entropy with probabilities."""

    def forward(self, x, y):
        with torch.no_grad():
            t = F.softmax(self.teacher_head(y), dim=-1)
        return F.cross_entropy(self.student_head(x).view(-1, 11), t.view(-1, 11))


class ReverseKl(Two):
    """The student comes first."""

    def forward(self, x, y):
        s = F.log_softmax(self.student_head(x), dim=-1)
        with torch.no_grad():
            t = F.log_softmax(self.teacher_head(y), dim=-1)
        return F.kl_div(t, s, log_target=True, reduction="batchmean")


class KlAndCe(Two):
    """With the labels' loss."""

    def forward(self, x, y, target_2d):
        logits = self.student_head(x)
        with torch.no_grad():
            t = F.softmax(self.teacher_head(y) / 2.0, dim=-1)
        soft = F.kl_div(F.log_softmax(logits / 2.0, dim=-1), t, reduction="batchmean") * 4.0
        hard = F.cross_entropy(logits.view(-1, 11), target_2d.view(-1))
        return 0.5 * soft + 0.5 * hard


class ZLoss(Linear):
    """PaLM's z-loss."""

    sites = 2

    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        ce = F.cross_entropy(logits.view(-1, 11), target_2d.view(-1))
        z = torch.logsumexp(logits, dim=-1).pow(2).mean()
        return ce + 1e-2 * z


class ZLossReturned(Linear):
    """Both losses are returned."""

    sites = 2

    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        ce = F.cross_entropy(logits.view(-1, 11), target_2d.view(-1), reduction="none")
        lse = logits.logsumexp(-1)
        return ce.mean(), 1e-2 * (lse**2).mean()


class ZLossOlmo(Linear):
    """OLMo's."""

    sites = 2

    def forward(self, x, target_2d):
        logits = self.lm_head(x).view(-1, 11)
        labels = target_2d.view(-1)
        loss = F.cross_entropy(logits, labels, ignore_index=0, reduction="sum")
        z_squared = logits.logsumexp(-1).pow(2)
        z_loss = (z_squared * (labels != 0)).sum()
        return loss, 1e-3 * z_loss


class ChosenRejected(Linear):
    """One distribution, two answers."""

    sites = 2

    arguments = {"chosen": "target_2d", "rejected": "target_2d"}

    def forward(self, x, chosen, rejected):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        c = log_probs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).sum(-1)
        r = log_probs.gather(-1, rejected.unsqueeze(-1)).squeeze(-1).sum(-1)
        return -F.logsigmoid(0.1 * (c - r)).mean()


class ChosenRejectedHalves(Linear):
    """Both answers in one batch."""

    sites = 2

    arguments = {"chosen": "target_2d", "rejected": "target_2d"}

    def forward(self, x, y, chosen, rejected):
        both = self.lm_head(torch.cat([x, y]))
        n = x.shape[0]
        chosen_logits, rejected_logits = both[:n], both[n:]
        c = chosen_logits.log_softmax(-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1).sum(-1)
        r = rejected_logits.log_softmax(-1).gather(-1, rejected.unsqueeze(-1)).squeeze(-1).sum(-1)
        return -F.logsigmoid(0.1 * (c - r)).mean()


class NllAndDpo(Linear):
    """RPO: the chosen answers have a supervised loss, too."""

    sites = 2

    arguments = {"labels": "target_2d"}

    def forward(self, x, labels):
        logits = self.lm_head(x)
        logps = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2).sum(-1)
        nll = F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))
        return nll - F.logsigmoid(logps).mean()


class PolicyEntropy(Linear):
    """PPO's entropy bonus."""

    sites = 2

    def forward(self, x, target_2d):
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        chosen = log_probs.gather(-1, target_2d.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return chosen, entropy


class PolicyEntropyVerl(Linear):
    """verl's entropy_from_logits."""

    sites = 2

    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        pd = torch.nn.functional.softmax(logits, dim=-1)
        entropy = torch.logsumexp(logits, dim=-1) - torch.sum(pd * logits, dim=-1)
        logp = F.log_softmax(logits, dim=-1)
        logpy = torch.gather(logp, dim=-1, index=target_2d.unsqueeze(-1)).squeeze(-1)
        return logpy, entropy


class PolicyEntropyMean(Linear):
    """A loss with an entropy bonus."""

    sites = 2

    def forward(self, x, target_2d):
        logits = self.lm_head(x)
        logp = torch.log_softmax(logits, dim=-1)
        action = logp.gather(2, target_2d.unsqueeze(-1)).squeeze(-1)
        p = torch.softmax(logits, dim=-1)
        entropy = -(p * logp).sum(dim=-1).mean()
        return -(action.mean() + 0.01 * entropy)


class EntropyAlone(Linear):
    def forward(self, x):
        logits = self.lm_head(x)
        p = F.softmax(logits, dim=-1)
        return -(p * F.log_softmax(logits, dim=-1)).sum(-1)


class LogZAlone(Linear):
    def forward(self, x):
        return torch.logsumexp(self.lm_head(x), dim=-1)
