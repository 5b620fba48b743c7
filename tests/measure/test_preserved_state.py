"""Tests of the state that is restored after a measurement."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from torch import Tensor, nn

from autofuse.measure.preserved_state import preserve_state


class Counting(nn.Module):
    """Replaces one buffer and writes the other."""

    seen: Tensor
    written: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("written", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        self.written.add_(1)
        out: Tensor = self.linear(x)
        return out


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_same_state(module: nn.Module, state: dict[str, Tensor]) -> None:
    assert list(module.state_dict()) == list(state)
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_parameters_and_buffers_are_restored_after_training() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    state, parameters = state_of(model), list(model.parameters())
    with preserve_state([model]):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
        assert not torch.equal(model[0].weight, state["0.weight"])
    assert_same_state(model, state)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))


def test_a_replaced_buffer_is_the_original_tensor_again() -> None:
    model = Counting()
    buffer = model.seen
    with preserve_state([model]):
        model(torch.randn(2, 3))
        assert model.seen.item() == 1
    assert model.seen is buffer
    assert_same_state(model, {**state_of(model), "seen": torch.zeros(()), "written": torch.zeros(3)})


def test_each_module_keeps_its_own_mode() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Dropout())
    model[1].eval()
    with preserve_state([model]):
        model.eval()
    assert [part.training for part in model.modules()] == [True, True, False]


def test_gradients_start_as_none_and_the_old_ones_are_restored() -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    model(x).sum().backward()
    gradients = [model.weight.grad, model.bias.grad, x.grad]
    values = [None if gradient is None else gradient.clone() for gradient in gradients]
    with preserve_state([model], [x]):
        assert model.weight.grad is None and x.grad is None
        model(x).square().sum().backward()
    for tensor, gradient, value in zip((model.weight, model.bias, x), gradients, values, strict=True):
        assert tensor.grad is gradient
        assert gradient is not None and value is not None and torch.equal(gradient, value)


def test_random_generators_continue_from_their_old_state() -> None:
    draws = []
    for measuring in (False, True):
        torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
        if measuring:
            with preserve_state([]):
                torch.rand(5), random.random(), numpy.random.rand(5)
        draws.append((torch.rand(1).item(), random.random(), float(numpy.random.rand())))
    assert draws[0] == draws[1]


def test_everything_is_restored_after_an_error() -> None:
    model = Counting()
    state = state_of(model)
    with pytest.raises(RuntimeError), preserve_state([model]):
        model.eval()
        model(torch.randn(2, 3))
        model(torch.randn(2, 5))
    assert_same_state(model, state)
    assert model.training


def test_modules_that_share_parameters_are_restored_correctly() -> None:
    shared = nn.Linear(3, 3)
    models = [nn.Sequential(shared), nn.Sequential(shared, nn.ReLU())]
    state = state_of(shared)
    with preserve_state(models), torch.no_grad():
        shared.weight.add_(1)
    assert_same_state(shared, state)


def test_an_existing_autograd_graph_can_still_run_backward() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(2, 3)
    loss = model(x).square().sum()
    with preserve_state([model]):
        model(x)
    loss.backward()
    assert model[0].weight.grad is not None
