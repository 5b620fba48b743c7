"""Hand-written losses -> torch's cross entropy; linear layer and cross entropy -> one operation that stores no logits.

The logits of a language model (rows x classes) are the largest tensor of a training step. Their softmax and its
gradient have the same size. AF502 saves that memory, and the time to write and read it: it computes the gradient for a
block of rows at a time, together with the logits of these rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Captures, Fails, Fused, Holds, Kept, Rule, Verdict

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from autofuse import ops

_REDUCTIONS = ("mean", "sum", "none")


class HandWrittenCrossEntropy(Rule):
    """Hand-written cross entropy."""

    code = "AF501"
    native = "cross_entropy"
    benefit = 3

    @staticmethod
    def before(
        logits: Tensor, axis: int, target: Tensor, dim: int = 1, weight: Tensor | None = None,
        ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, lookup: str | None = None,
        count: int | None = None,
    ) -> Tensor:  # fmt: skip
        # Other ways of selecting the log-probability of the target match too: autofuse/canonical/recognise/losses.py.
        return ops.nll(
            F.log_softmax(logits, axis), target, dim=dim, weight=weight, ignore_index=ignore_index,
            reduction=reduction, label_smoothing=label_smoothing, lookup=lookup, count=count,
        )  # fmt: skip

    @staticmethod
    def after(
        logits: Tensor, axis: int, target: Tensor, dim: int, weight: Tensor | None, ignore_index: int,
        reduction: str, label_smoothing: float, lookup: str | None, count: int | None,
    ) -> Tensor:  # fmt: skip
        return ops.cross_entropy(
            logits, target, dim=dim, weight=weight, ignore_index=ignore_index, reduction=reduction,
            label_smoothing=label_smoothing, lookup=lookup, count=count,
        )  # fmt: skip

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return check_loss_arguments(captures)

    examples = (
        Fused(
            "log_softmax over the classes, then nll_loss",
            before="""
                import torch.nn.functional as F

                def loss_of(logits, target):
                    return F.nll_loss(F.log_softmax(logits, dim=1), target)
            """,
            after="F.cross_entropy(logits, target)",
        ),
        Fused(
            "the log-probabilities of the targets are gathered, with the classes in the last dimension",
            before="""
                import torch

                def loss_of(logits, target):
                    log_probs = torch.log_softmax(logits, dim=-1)
                    return -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).mean()
            """,
            after="cross_entropy(",
        ),
        Fused(
            "labels are smoothed by hand: the other classes share a probability of 0.1",
            before="""
                import torch
                import torch.nn.functional as F

                def loss_of(logits, target):
                    classes = logits.size(1)
                    smoothed = torch.full_like(logits, 0.1 / (classes - 1)).scatter(1, target.unsqueeze(1), 0.9)
                    return -(smoothed * F.log_softmax(logits, dim=1)).sum(1).mean()
            """,
            after="label_smoothing=",
        ),
        Fused(
            "the log-probabilities of the targets are masked before they are averaged",
            before="""
                import torch

                def loss_of(logits, target, mask):
                    log_probs = torch.log_softmax(logits, dim=-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
                    return -(log_probs * mask).sum() / mask.sum()
            """,
            after="cross_entropy(",
        ),
        Kept(
            "the log-probabilities are returned",
            """
                import torch.nn.functional as F

                def loss_of(logits, target):
                    log_probs = F.log_softmax(logits, dim=1)
                    return F.nll_loss(log_probs, target), log_probs
            """,
        ),
        Kept(
            "the text does not show whether `classes` is a number or a tensor",
            """
                import torch.nn.functional as F

                def loss_of(logits, target, classes, eps=0.1):
                    chosen = F.one_hot(target, classes).float()
                    chosen = chosen * (1 - eps) + (1 - chosen) * eps / (classes - 1)
                    return -(chosen * F.log_softmax(logits, dim=1)).sum(dim=1).mean()
            """,
        ),
    )


class LinearCrossEntropy(Rule):
    """A linear layer, then cross entropy: the logits need not be stored."""

    code = "AF502"
    benefit = 7
    advice = "return the logits only if no targets are passed: then AF502 applies to the loss"
    shares_steps = True

    @staticmethod
    def before(
        x: Tensor, weight: Tensor, axis: int, target: Tensor, bias: Tensor | None = None, dim: int = 1,
        ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, lookup: str | None = None,
        count: int | None = None, in_float32: bool = False, scale: float = 1.0, soft_cap: float | None = None,
    ) -> Tensor:  # fmt: skip
        # Other ways of selecting the log-probability of the target match too: autofuse/canonical/recognise/losses.py.
        log_probs = F.log_softmax(ops.rows(F.linear(x, weight, bias), in_float32, scale, soft_cap), axis)
        return ops.nll(
            log_probs, target, dim=dim, ignore_index=ignore_index, reduction=reduction,
            label_smoothing=label_smoothing, lookup=lookup, count=count,
        )  # fmt: skip

    @staticmethod
    def after(
        x: Tensor, weight: Tensor, axis: int, target: Tensor, bias: Tensor | None, dim: int, ignore_index: int,
        reduction: str, label_smoothing: float, lookup: str | None, count: int | None,
        in_float32: bool, scale: float, soft_cap: float | None,
    ) -> Tensor:  # fmt: skip
        return ops.linear_cross_entropy(
            x, weight, target, bias=bias, ignore_index=ignore_index, label_smoothing=label_smoothing,
            reduction=reduction, in_float32=in_float32, lookup=lookup, count=count, scale=scale, soft_cap=soft_cap,
        )  # fmt: skip

    @staticmethod
    def where(captures: Captures) -> Verdict:
        verdict = check_loss_arguments(captures)
        if not isinstance(verdict, Holds):
            return verdict
        return check_logit_arithmetic(captures, "assumes that targets are class indices, not probabilities")

    examples = (
        Fused(
            "the loss of a language model, whose logits are used for nothing else",
            before="""
                import torch.nn as nn
                import torch.nn.functional as F

                class Loss(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, x, target):
                        logits = self.head(x)
                        return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1), ignore_index=0)
            """,
            after="linear_cross_entropy(",
        ),
        Fused(
            "the logits have a soft cap and a temperature",
            before="""
                import torch
                import torch.nn as nn
                import torch.nn.functional as F

                class Loss(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, x, target):
                        logits = 30.0 * torch.tanh(self.head(x) / 30.0) / 0.7
                        return F.cross_entropy(logits.flatten(0, -2), target.flatten())
            """,
            after="soft_cap=30.0",
        ),
        Fused(
            "the log-probabilities of a preference loss, as in DPO and GRPO",
            before="""
                import torch
                import torch.nn as nn

                class Policy(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, hidden, labels, mask):
                        logits = self.head(hidden)
                        log_probs = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
                        return (log_probs * mask).sum(-1)
            """,
            after="linear_cross_entropy(",
        ),
        Kept(
            "the logits are returned",
            """
                import torch.nn as nn
                import torch.nn.functional as F

                class Model(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, x, target):
                        logits = self.head(x)
                        return logits, F.cross_entropy(logits, target)
            """,
        ),
    )


class LinearDivergence(Rule):
    """A linear layer, then a divergence of its distribution: the logits need not be stored."""

    code = "AF502"
    benefit = 7
    advice = LinearCrossEntropy.advice
    shares_steps = True

    @staticmethod
    def before(
        x: Tensor, weight: Tensor, axis: int, target: Tensor, kind: str = "kl", log_target: bool = False,
        reduction: str = "rows", bias: Tensor | None = None, in_float32: bool = False, scale: float = 1.0,
        soft_cap: float | None = None,
    ) -> Tensor:  # fmt: skip
        # F.kl_div and the sums that people write match too: autofuse/canonical/recognise/divergences.py.
        log_probs = F.log_softmax(ops.rows(F.linear(x, weight, bias), in_float32, scale, soft_cap), axis)
        return ops.divergence(log_probs, target, kind=kind, log_target=log_target, reduction=reduction)

    @staticmethod
    def after(
        x: Tensor, weight: Tensor, axis: int, target: Tensor, kind: str, log_target: bool, reduction: str,
        bias: Tensor | None, in_float32: bool, scale: float, soft_cap: float | None,
    ) -> Tensor:  # fmt: skip
        return ops.linear_divergence(
            x, weight, target, bias=bias, kind=kind, log_target=log_target, reduction=reduction,
            in_float32=in_float32, scale=scale, soft_cap=soft_cap,
        )  # fmt: skip

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return check_logit_arithmetic(captures, "assumes that the other distribution has an entry for each logit")

    examples = (
        Fused(
            "the divergence of a student from a teacher, as in distillation",
            before="""
                import torch
                import torch.nn as nn
                import torch.nn.functional as F

                class Student(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, hidden, teacher_logits):
                        log_probs = F.log_softmax(self.head(hidden) / 2.0, dim=-1)
                        teacher = F.softmax(teacher_logits / 2.0, dim=-1)
                        return F.kl_div(log_probs, teacher, reduction="batchmean") * 4.0
            """,
            after="linear_divergence(",
        ),
        Fused(
            "the divergence of the teacher from the student, written out",
            before="""
                import torch
                import torch.nn as nn

                class Student(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, hidden, teacher_logits):
                        own = self.head(hidden).log_softmax(-1)
                        other = teacher_logits.log_softmax(-1)
                        return (own.exp() * (own - other)).sum(-1).mean()
            """,
            after='kind="reverse_kl"',
        ),
        Kept(
            "the log-probabilities are returned, too",
            """
                import torch.nn as nn
                import torch.nn.functional as F

                class Student(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, hidden, teacher):
                        log_probs = F.log_softmax(self.head(hidden), dim=-1)
                        return F.kl_div(log_probs, teacher, reduction="batchmean"), log_probs
            """,
        ),
    )


class LinearEntropy(Rule):
    """A linear layer, then the entropy of its distribution: the logits need not be stored."""

    code = "AF502"
    benefit = 6
    advice = LinearCrossEntropy.advice
    shares_steps = True

    @staticmethod
    def before(
        x: Tensor, weight: Tensor, axis: int, bias: Tensor | None = None, in_float32: bool = False,
        scale: float = 1.0, soft_cap: float | None = None, flat: bool = False,
    ) -> Tensor:  # fmt: skip
        # The sums that people write match too: autofuse/canonical/recognise/divergences.py.
        logits = ops.rows(F.linear(x, weight, bias), in_float32, scale, soft_cap, flat)
        return ops.entropy(F.log_softmax(logits, axis))

    @staticmethod
    def after(
        x: Tensor, weight: Tensor, axis: int, bias: Tensor | None, in_float32: bool, scale: float,
        soft_cap: float | None, flat: bool,
    ) -> Tensor:  # fmt: skip
        return ops.linear_entropy(
            x, weight, bias=bias, in_float32=in_float32, scale=scale, soft_cap=soft_cap, flat=flat
        )

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return check_logit_arithmetic(captures, "")

    examples = (
        Fused(
            "the entropy of a policy",
            before="""
                import torch.nn as nn
                import torch.nn.functional as F

                class Policy(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, hidden):
                        log_probs = F.log_softmax(self.head(hidden), -1)
                        return -(log_probs.exp() * log_probs).sum(-1)
            """,
            after="linear_entropy(",
        ),
        Kept(
            "the entropy is summed over the rows",
            """
                import torch.nn as nn
                import torch.nn.functional as F

                class Policy(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, hidden):
                        log_probs = F.log_softmax(self.head(hidden), -1)
                        return -(log_probs.exp() * log_probs).sum(0)
            """,
        ),
    )


class LinearLogSumExp(Rule):
    """A linear layer, then the log-sum-exp of its output: the logits need not be stored."""

    code = "AF502"
    benefit = 5
    advice = LinearCrossEntropy.advice
    shares_steps = True

    @staticmethod
    def before(
        x: Tensor, weight: Tensor, axis: int, keepdim: bool = False, bias: Tensor | None = None,
        in_float32: bool = False, scale: float = 1.0, soft_cap: float | None = None, flat: bool = False,
    ) -> Tensor:  # fmt: skip
        return torch.logsumexp(ops.rows(F.linear(x, weight, bias), in_float32, scale, soft_cap, flat), axis, keepdim)

    @staticmethod
    def after(
        x: Tensor, weight: Tensor, axis: int, keepdim: bool, bias: Tensor | None, in_float32: bool, scale: float,
        soft_cap: float | None, flat: bool,
    ) -> Tensor:  # fmt: skip
        return ops.linear_logsumexp(
            x, weight, bias=bias, keepdim=keepdim, in_float32=in_float32, scale=scale, soft_cap=soft_cap, flat=flat
        )

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return check_logit_arithmetic(captures, "")

    examples = (
        Fused(
            "a z-loss",
            before="""
                import torch
                import torch.nn as nn

                class Loss(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, x):
                        return 1e-4 * torch.logsumexp(self.head(x), dim=-1).pow(2).mean()
            """,
            after="linear_logsumexp(",
        ),
        Kept(
            "the sum is over the rows",
            """
                import torch
                import torch.nn as nn

                class Loss(nn.Module):
                    def __init__(self, dim: int, classes: int):
                        super().__init__()
                        self.head = nn.Linear(dim, classes, bias=False)

                    def forward(self, x):
                        return torch.logsumexp(self.head(x), dim=0)
            """,
        ),
    )


def check_loss_arguments(captures: Captures) -> Verdict:
    """Check the arguments of a loss: torch's losses take one of three reductions, and numbers for the other options."""
    reduction = captures.literal("reduction")  # also None for a variable: torch checks its value at run time
    if reduction is not None and reduction not in _REDUCTIONS:
        why = f"torch has no reduction {reduction!r}"
        return Fails(why, advice='write "mean", "sum" or "none"')
    for name in ("ignore_index", "label_smoothing"):
        if not captures.absent(name) and captures.number(name) is False:
            return Fails(
                f"{name} is a tensor, but torch's losses take a number", advice="make {value} a number", capture=name
            )
    return Holds()


def check_logit_arithmetic(captures: Captures, assumed: str) -> Verdict:
    """Check that the factor of the logits and their cap are numbers; `assumed` is what the match assumes anyway."""
    known = [captures.absent(name) or captures.number(name) for name in ("scale", "soft_cap")]
    if False in known:
        return Fails("the factor of the logits is a tensor, but the loss takes a number")
    number = "" if all(known) else "assumes that the factor of the logits is a number"
    return Holds("unsafe", "; ".join(filter(None, (assumed, number))))
