"""Losses of lazy logits: in blocks of rows, and equal to torch's, with all gradients, in fp64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.fx.lazy.head import make_lazy
from autofuse.fx.lazy.linear import lazy_at_any_size
from autofuse.fx.lazy.losses import record_losses
from autofuse.fx.lazy.tensor import LazyLogits

WIDTH, CLASSES = 8, 200
Loss = Callable[[Tensor, Tensor], Tensor]


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """As in trl, for logits in fp32."""
    selected = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
    return selected - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])


def dpo(logits: Tensor, labels: Tensor) -> Tensor:
    logits, labels = logits[:, :-1, :], labels[:, 1:].clone()
    mask = labels != 0
    labels[~mask] = 0
    chosen = (logits.log_softmax(-1).gather(2, labels.unsqueeze(2)).squeeze(2) * mask).sum(-1)
    return -F.logsigmoid(0.1 * (chosen[:1] - chosen[1:])).mean()


def soft_capped(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy((torch.tanh(logits / 3.0) * 3.0).view(-1, CLASSES), y.view(-1))


def class_weights(x: Tensor) -> Tensor:
    return torch.linspace(0, 1, CLASSES, dtype=x.dtype)


def of_a_teacher(x: Tensor) -> Tensor:
    """The log-probabilities of a teacher, (..., V)."""
    drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return F.log_softmax(3 * drawn, -1).to(x.dtype)


def distillation(x: Tensor, y: Tensor) -> Tensor:
    """Hinton et al., arXiv:1503.02531, with a temperature of 2."""
    soft = F.kl_div(F.log_softmax(x / 2.0, -1), of_a_teacher(x).exp(), reduction="batchmean") * 4.0
    return 0.5 * soft + 0.5 * F.cross_entropy(x.flatten(0, 1), y.flatten())


FUSED: dict[str, Loss] = {
    "class weights": lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), weight=class_weights(x)),
    "class weights, ignored, smoothed": lambda x, y: F.cross_entropy(
        x.transpose(1, 2), y.where(y % 3 > 0, -100), weight=class_weights(x), label_smoothing=0.2
    ),
    "class weights of each row": lambda x, y: (
        F.cross_entropy(x.flatten(0, 1), y.flatten(), class_weights(x), reduction="none", ignore_index=5).sin().sum()
    ),
    "weighted nll_loss": lambda x, y: (
        F.nll_loss(x.flatten(0, 1).log_softmax(-1), y.flatten(), class_weights(x), reduction="sum") / 90
    ),
    "probabilities as targets": lambda x, y: F.cross_entropy(x.flatten(0, 1), of_a_teacher(x).exp().flatten(0, 1)),
    "probabilities, classes second": lambda x, y: (
        F.cross_entropy(x.transpose(1, 2), of_a_teacher(x).exp().transpose(1, 2), label_smoothing=0.1, reduction="none")
        .pow(2)
        .sum()
        / 90
    ),
    "distillation": distillation,
    "KL of log-probabilities": lambda x, y: (
        F.kl_div(F.log_softmax(x[:, :-1], -1), of_a_teacher(x)[:, 1:], log_target=True, reduction="sum") / 80
    ),
    "mean of KL": lambda x, y: F.kl_div(x.log_softmax(-1), of_a_teacher(x).exp()),
    "flattened": lambda x, y: F.cross_entropy(x.view(-1, CLASSES), y.view(-1)),
    "torchtitan's": lambda x, y: F.cross_entropy(x.flatten(0, 1).float(), y.flatten(0, 1)),
    "shifted": lambda x, y: F.cross_entropy(
        x[..., :-1, :].contiguous().view(-1, CLASSES), y[..., 1:].reshape(-1), ignore_index=7
    ),
    "classes second": lambda x, y: F.cross_entropy(x.transpose(1, 2), y),
    "permuted": lambda x, y: F.cross_entropy(x.permute(0, 2, 1), y, reduction="sum") / 37,
    "by num_items_in_batch": lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="sum") / 37,
    "rows, smoothed": lambda x, y: F.cross_entropy(
        x.flatten(0, 1), y.flatten(), reduction="none", label_smoothing=0.1
    ).mean(),
    "the module": lambda x, y: nn.CrossEntropyLoss()(x.view(-1, CLASSES), y.view(-1)),
    "nll_loss": lambda x, y: F.nll_loss(F.log_softmax(x.view(-1, CLASSES), -1), y.view(-1)),
    "log-probabilities": lambda x, y: x.log_softmax(-1).gather(-1, y.unsqueeze(-1)).mean(),
    "trl's, with a temperature": lambda x, y: selective_log_softmax(x[:, :-1] / 0.7, y[:, 1:]).exp().mean(),
    "DPO": dpo,
    "z-loss": lambda x, y: (
        F.cross_entropy(x.view(-1, CLASSES), y.view(-1)) + 0.01 * torch.logsumexp(x, -1, keepdim=True).pow(2).mean()
    ),
    "soft cap": soft_capped,
}
READ: dict[str, Loss] = {
    "probabilities over positions": lambda x, y: F.cross_entropy(x, torch.softmax(x.detach(), 1)),
    "probabilities with class weights": lambda x, y: F.cross_entropy(
        x.view(-1, CLASSES), of_a_teacher(x).exp().view(-1, CLASSES), weight=class_weights(x)
    ),
    "a target that gets a gradient": lambda x, y: F.kl_div(
        x.log_softmax(-1), (x * 0.5).softmax(-1), reduction="batchmean"
    ),
    "KL of each entry": lambda x, y: F.kl_div(x.log_softmax(-1), of_a_teacher(x).exp(), reduction="none").mean(),
    "KL over positions": lambda x, y: F.kl_div(F.log_softmax(x, 1), of_a_teacher(x).exp(), reduction="sum") / 90,
    "a learned temperature": lambda x, y: F.cross_entropy(
        (x * torch.full((), 0.5, dtype=x.dtype)).view(-1, CLASSES), y.view(-1)
    ),
    "softmax over rows": lambda x, y: F.log_softmax(x, 1).gather(-1, y.unsqueeze(-1)).mean(),
    "several classes": lambda x, y: x.log_softmax(-1).gather(-1, y.unsqueeze(-1).expand(-1, -1, 2)).mean(),
    "some classes": lambda x, y: F.cross_entropy(x[..., :-5].reshape(-1, CLASSES - 5), y.clamp(max=99).view(-1)),
    "entropy": lambda x, y: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1).mean(),
}


def computed(loss: Loss, lazy: bool, dtype: torch.dtype) -> tuple[list[Tensor], bool, bool]:
    """The loss and all gradients; whether a loss was computed in blocks, and whether the logits were computed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)).to(dtype)
    if lazy:
        make_lazy(model[1])  # type: ignore[arg-type]
    x = (4 * torch.randn(2, 40, WIDTH, dtype=dtype)).requires_grad_()
    y = torch.randint(CLASSES, (2, 40))
    with lazy_at_any_size():
        logits = model(x)
    with record_losses() as fused:
        made = loss(logits, y)
    made.backward()
    read = isinstance(logits, LazyLogits) and (logits.is_computed or logits.node.source.value is not None)
    assert x.grad is not None
    return [made.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)], bool(fused), read


@pytest.mark.parametrize("loss", FUSED.values(), ids=FUSED)
def test_a_loss_is_computed_without_the_logits(loss: Loss) -> None:
    plain, _, _ = computed(loss, False, torch.float64)
    found, fused, read = computed(loss, True, torch.float64)
    assert fused and not read
    tolerance = 1e-6 if loss is FUSED["torchtitan's"] else 1e-11
    torch.testing.assert_close(found, plain, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("loss", READ.values(), ids=READ)
def test_other_losses_read_the_logits(loss: Loss) -> None:
    plain, _, _ = computed(loss, False, torch.float64)
    found, fused, read = computed(loss, True, torch.float64)
    assert read and not fused
    torch.testing.assert_close(found, plain, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("loss", FUSED.values(), ids=FUSED)
def test_under_autocast_results_have_the_dtypes_of_torchs(loss: Loss) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, _, _ = computed(loss, False, torch.float32)
        found, fused, _ = computed(loss, True, torch.float32)
    assert fused
    assert [t.dtype for t in found] == [t.dtype for t in plain]
    for ours, theirs in zip(found, plain, strict=True):
        assert (ours - theirs).abs().max() <= 0.03 * theirs.abs().max() + 1e-4


@pytest.mark.parametrize("hooked", [False, True])
def test_class_weights_may_be_written_before_the_backward_pass(hooked: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, CLASSES).double()
    x, y = torch.randn(40, WIDTH).double(), torch.randint(CLASSES, (40,))
    wanted = torch.autograd.grad(F.cross_entropy(model(x), y, class_weights(x), reduction="none").sum(), model.weight)
    make_lazy(model)
    with lazy_at_any_size():
        logits = model(x)
    if hooked:
        logits.register_hook(lambda gradient: None)
    weight = class_weights(x)
    loss = F.cross_entropy(logits, y, weight, reduction="none").sum()
    weight.mul_(3)
    loss.backward()
    torch.testing.assert_close(model.weight.grad, wanted[0], rtol=1e-11, atol=1e-12)


def test_a_target_out_of_range_raises_as_torch_does() -> None:
    for lazy in (False, True):
        with pytest.raises(IndexError):
            computed(lambda x, y: F.cross_entropy(x.view(-1, CLASSES), y.view(-1) + CLASSES), lazy, torch.float32)
