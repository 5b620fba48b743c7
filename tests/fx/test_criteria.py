"""Losses that are children of a model: their constructor's arguments are part of the trace."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import autofuse


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)
        self.loss = nn.CrossEntropyLoss(ignore_index=0)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.head(x), target)


def example() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 8), torch.tensor([0, 1, 2, 3, 4, 0])


def test_a_loss_that_is_changed_afterwards_is_not_what_was_fused() -> None:
    torch.manual_seed(0)
    model, (x, target) = Model(), example()
    plain = Model()
    plain.load_state_dict(model.state_dict())
    autofuse.optimize(model, (x, target))
    assert [site.rule for site in autofuse.report(model).sites if site.status == "fused"] == ["AF502"]
    for change in ({}, {"ignore_index": 4}, {"reduction": "sum"}, {"label_smoothing": 0.3}):
        for m in (model, plain):
            vars(m.loss).update(change)
        torch.testing.assert_close(model(x, target), plain(x, target))


def test_a_hook_on_a_bypassed_layer_still_runs() -> None:
    model, (x, target) = Model(), example()
    autofuse.optimize(model, (x, target))
    seen = list[Tensor]()
    model.head.register_forward_hook(lambda module, args, output: seen.append(output))
    model(x, target)
    assert len(seen) == 1


def test_weights_of_the_classes_are_read_at_each_call() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.NLLLoss(weight=torch.ones(5))

        def forward(self, logits: Tensor, target: Tensor) -> Tensor:
            return self.loss(torch.log_softmax(logits, 1), target)

    torch.manual_seed(0)
    logits, target = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    model, plain = Weighted(), Weighted()
    autofuse.optimize(model, (logits, target))
    assert [site.rule for site in autofuse.report(model).sites if site.status == "fused"] == ["AF501"]
    for m in (model, plain):
        m.loss.weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    torch.testing.assert_close(model(logits, target), plain(logits, target))
