"""Label smoothing over the other classes is torch's label smoothing with a larger factor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse


class OverOthers(nn.Module):
    """Distributes `smoothing` over all classes but the target's."""

    def __init__(self, classes: int, smoothing: float) -> None:
        super().__init__()
        self.classes, self.smoothing = classes, smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        log_probs = F.log_softmax(logits, dim=-1)
        smoothed = torch.full_like(logits, self.smoothing / (self.classes - 1))
        smoothed.scatter_(1, target.unsqueeze(1), 1 - self.smoothing)
        return -(smoothed * log_probs).sum(-1)


class ByLikelihoods(OverOthers):
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        log_probs = F.log_softmax(logits, dim=-1)
        likely = -log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
        others = -log_probs.sum(-1) - likely
        return (1 - self.smoothing) * likely + self.smoothing / (logits.size(-1) - 1) * others


def random_logits(classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, classes, generator=generator, dtype=torch.float64, requires_grad=True)
    return logits, torch.randint(classes, (9,), generator=generator)


def loss_and_gradient(module: nn.Module, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    losses = module(logits, target)
    (gradient,) = torch.autograd.grad((losses * torch.arange(1.0, 10.0)).sum(), logits)
    return losses, gradient


@pytest.mark.parametrize("cls", [OverOthers, ByLikelihoods])
@pytest.mark.parametrize("classes", [2, 3, 11])
@pytest.mark.parametrize("smoothing", [0.1, 0.37, 0.5])
def test_the_loss_is_torchs_with_smoothing_over_all_classes(
    cls: type[OverOthers], classes: int, smoothing: float
) -> None:
    logits, target = random_logits(classes)
    module = autofuse.optimize(cls(classes, smoothing), (logits.detach(), target), tune=False)
    assert [s.rule for s in autofuse.report(module).sites if s.status == "fused"] == ["AF501"]
    wanted = loss_and_gradient(cls(classes, smoothing), logits, target)
    for got, exact in zip(loss_and_gradient(module, logits, target), wanted, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-14)


def test_the_original_runs_for_another_number_of_classes() -> None:
    logits, target = random_logits(11)
    module = autofuse.optimize(OverOthers(11, 0.1), (logits.detach(), target), tune=False)
    logits, target = random_logits(7)
    wanted = loss_and_gradient(OverOthers(11, 0.1), logits, target)
    for got, exact in zip(loss_and_gradient(module, logits, target), wanted, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.6, 0.95, -0.1])
def test_smoothing_beyond_torchs_limit_is_left_alone(smoothing: float) -> None:
    logits, target = random_logits(11)
    module = autofuse.optimize(ByLikelihoods(11, smoothing), (logits.detach(), target), tune=False)
    torch.testing.assert_close(module(logits, target), ByLikelihoods(11, smoothing)(logits, target))
