"""Preference training loops as in trl: a policy with lazy logits, and a frozen reference model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.fx.lazy.linear import lazy_at_any_size
from autofuse.fx.lazy.tensor import LazyLogits

WIDTH, CLASSES, LENGTH = 8, 400, 12


@pytest.fixture(autouse=True)
def small_logits_are_lazy() -> Iterator[None]:
    """Make small logits lazy too."""
    with lazy_at_any_size():
        yield


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embedding(ids))).cumsum(1))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Token ids of chosen and then rejected answers, and a mask of answer tokens."""
    drawn = torch.Generator().manual_seed(step)
    ids = torch.randint(1, CLASSES, (4, LENGTH), generator=drawn)
    return ids, torch.arange(LENGTH).expand(4, -1) >= torch.tensor([[2], [3], [5], [4]])


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """The log-probability of one class in each row."""
    selected = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
    return selected - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])


def log_probabilities(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    logits, labels, mask = model(ids)[:, :-1], ids[:, 1:].clone(), mask[:, 1:]
    labels[~mask] = 0
    return selective_log_softmax(logits, labels).masked_fill(~mask, 0.0)


def dpo(policy: nn.Module, reference: nn.Module, step: int) -> Tensor:
    """Rafailov et al., arXiv:2305.18290."""
    found = log_probabilities(policy, *batch(step)).sum(-1)
    with torch.no_grad():
        before = log_probabilities(reference, *batch(step)).sum(-1)
    chosen, rejected = (found - before).chunk(2)
    return -F.logsigmoid(0.3 * (chosen - rejected)).mean()


def orpo(policy: nn.Module, reference: nn.Module, step: int) -> Tensor:
    """Hong et al., arXiv:2403.07691."""
    ids, mask = batch(step)
    logits = policy(ids)[:, :-1]
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(4, -1)
    mean = -(losses * mask[:, 1:]).sum(-1) / mask[:, 1:].sum(-1)
    chosen, rejected = mean.chunk(2)
    odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return -chosen.mean() - 0.1 * F.logsigmoid(odds).mean()


def grpo(policy: nn.Module, reference: nn.Module, step: int) -> Tensor:
    """Clipped ratios with a KL term: Schulman et al., arXiv:1707.06347; Shao et al., arXiv:2402.03300."""
    ids, mask = batch(step)
    new = log_probabilities(policy, ids, mask)
    with torch.no_grad():
        old, before = new.detach() - 0.1, log_probabilities(reference, ids, mask)
    ratio = torch.exp(new - old)
    advantage = torch.tensor([1.0, 0.5, -0.5, -1.0], dtype=new.dtype)[:, None]
    gained = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    kl = torch.exp(before - new) - (before - new) - 1
    return -((gained - 0.04 * kl) * mask[:, 1:]).sum() / mask[:, 1:].sum()


def distillation(policy: nn.Module, reference: nn.Module, step: int) -> Tensor:
    """The KL divergence from a teacher, with its logits, and the cross entropy of the labels."""
    ids, _ = batch(step)
    logits = policy(ids)[:, :-1].flatten(0, 1)
    with torch.no_grad():
        teacher = F.softmax(reference(ids)[:, :-1].flatten(0, 1) / 2.0, -1)
    soft = F.kl_div(F.log_softmax(logits / 2.0, -1), teacher, reduction="batchmean") * 4.0
    return 0.5 * soft + 0.5 * F.cross_entropy(logits, ids[:, 1:].flatten())


@pytest.mark.parametrize("loss", [dpo, orpo, grpo, distillation])
def test_steps_of_a_loop_are_equal_and_logits_are_never_computed(
    loss: Callable[[nn.Module, nn.Module, int], Tensor],
) -> None:
    torch.manual_seed(0)
    reference, plain = Gpt().double().eval(), Gpt().double()
    model = autofuse.optimize(copy.deepcopy(plain), (batch(0)[0],), tune=False, loss_fn=F.cross_entropy)
    seen: list[Tensor] = []
    call = model.head.forward  # type: ignore[union-attr]
    model.head.__dict__["forward"] = lambda x: seen.append(call(x)) or seen[-1]  # type: ignore[func-returns-value]
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2) for m in (plain, model)]
    for step in range(4):
        losses = []
        for each, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            made = loss(each, reference, step)
            made.backward()
            optimizer.step()
            losses.append(made.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=1e-11)
        assert isinstance(seen[-1], LazyLogits) and not seen[-1].is_computed
        seen.clear()
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-7, atol=1e-9)
