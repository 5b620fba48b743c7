"""The meaning of the arguments of profile()."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autofuse.profiling.live.workload import OnMeta, workload_of


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def test_a_model_with_inputs_is_stepped_forward_and_backward() -> None:
    model, x = _model(), torch.ones(3, 4)
    workload = workload_of(model, x, None, (), "")
    workload.look()
    assert workload.name == "Sequential"
    assert workload.models == {"": model}
    assert workload.calls[model][0][0] is x
    assert all(p.grad is None for p in model.parameters())


def test_a_custom_step_gets_the_model_and_the_inputs() -> None:
    model, given = _model(), (torch.ones(3, 4),)
    heard = []
    workload_of(model, given, lambda m, i: heard.append((m, i)), (), "mine").step()
    assert heard == [(model, given)]


def test_the_model_and_the_optimizer_of_a_bare_step_are_found() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    met = []

    def train() -> None:
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    workload = workload_of(train, None, None, (), "")
    before = model[0].weight.clone()
    workload.look(lambda module, call: met.append((module, torch.equal(module[0].weight, before))))
    assert workload.name == "train"
    assert workload.models == {"": model}
    assert workload.optimizers == (optimizer,)
    assert met == [(model, True)]


@pytest.mark.parametrize(
    ("subject", "inputs", "step", "words"),
    [
        (_model(), None, None, "needs inputs to call"),
        (3, None, None, "got int"),
        (lambda: None, None, lambda m, i: None, "two steps"),
        (_model(), torch.ones(3, 4), "train", "step= is a str"),
    ],
)
def test_a_step_that_cannot_run_is_refused_with_advice(
    subject: object, inputs: object, step: object, words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        workload_of(subject, inputs, step, (), "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "inputs", "which"),
    [
        (nn.Linear(4, 4, device="meta"), torch.ones(2, 4), "The model is"),
        (_model(), {"input": torch.ones(3, 4, device="meta")}, "The inputs are"),
    ],
)
def test_a_model_on_meta_is_refused_with_advice(model: nn.Module, inputs: object, which: str) -> None:
    with pytest.raises(OnMeta, match=f"{which} on the meta device.*autofuse plan"):
        workload_of(model, inputs, None, (), "")
