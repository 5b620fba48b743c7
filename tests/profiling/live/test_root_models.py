"""Which models and optimizers a step runs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from autofuse.profiling.live.root_models import Roots


def test_the_model_and_the_optimizer_of_a_step_are_found() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    loss, optimizer = nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 4)
    roots = Roots()
    with roots.watching():
        loss(model(x), x).backward()
        optimizer.step()
    assert roots.models == {"": model}
    assert roots.optimizers == [optimizer]
    assert roots.calls[model][0][0] is x


def test_two_models_are_distinguished_by_their_classes() -> None:
    generator, first, second = nn.Bilinear(2, 2, 2), nn.Linear(2, 1), nn.Linear(2, 1)
    roots = Roots()
    with roots.watching():
        made = generator(torch.ones(1, 2), torch.ones(1, 2))
        (first(made) + second(made)).sum().backward()
    assert roots.models == {"Bilinear": generator, "Linear": first, "Linear-2": second}


def test_a_part_that_is_also_called_alone_is_not_a_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    roots = Roots()
    with roots.watching():
        model[0](torch.ones(1, 2))
        model(torch.ones(1, 2))
    assert roots.models == {"": model}


def test_a_step_without_modules_has_no_model() -> None:
    roots = Roots()
    with roots.watching():
        F.relu(torch.ones(2))
    assert not roots.models and not roots.optimizers
