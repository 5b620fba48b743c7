"""Tests of the default step, with every kind of input and output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autofuse.measure.step import call_model, clear_gradients, training_step
from autofuse.torch_private.nested import tensors_in

X = torch.randn(2, 3)


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


def scaled_loss(x: Tensor, by: float = 1.0) -> Tensor:
    return x * by


@pytest.mark.parametrize("inputs", [X, (X,), {"x": X}, (X, 1.0), {"x": X, "by": 1.0}])
def test_inputs_can_be_a_tensor_a_tuple_or_a_dict(inputs: Any) -> None:
    assert torch.equal(call_model(scaled_loss, inputs), X)


def test_inputs_of_another_type_raise_an_error_with_advice() -> None:
    with pytest.raises(TypeError, match="pass a tensor, a tuple"):
        call_model(scaled_loss, [X])  # type: ignore[arg-type]


def test_tensors_are_found_in_nested_containers() -> None:
    nest = {"a": X, "b": [X, (X, None)], "c": Output(X, (X,)), "d": "text", "e": Output}
    assert len(list(tensors_in(nest))) == 5


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda y: y, id="tensor"),
        pytest.param(lambda y: (y, y.argmax(-1)), id="tuple with integers"),
        pytest.param(lambda y: {"logits": y, "loss": None}, id="dict with None"),
        pytest.param(lambda y: Output(y, (y,)), id="dataclass"),
    ],
)
def test_every_floating_point_output_contributes_gradients(shape: Callable[[Tensor], Any]) -> None:
    gradients: list[Tensor] = []
    linear = nn.Linear(3, 3)
    linear.weight.register_hook(gradients.append)
    training_step(lambda x: shape(linear(x)), (X,))
    assert gradients and gradients[0].abs().sum() > 0


def test_gradients_of_parameters_and_inputs_are_cleared() -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    training_step(model, x)
    assert model.weight.grad is None and x.grad is None


def test_a_frozen_model_runs_forward_only() -> None:
    frozen, trained = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)
    forwards, backwards = list[nn.Module](), list[nn.Module]()
    for model in (frozen, trained):
        model.register_forward_hook(lambda m, *_: forwards.append(m))
        model.register_full_backward_hook(lambda m, *_: backwards.append(m))
    training_step(frozen, X)
    with torch.no_grad():
        training_step(trained, X)
    assert forwards == [frozen, trained] and backwards == []
    training_step(trained, X)
    assert backwards == [trained]


def test_gradients_of_nested_tensors_are_cleared() -> None:
    x = torch.randn(3, requires_grad=True)
    x.sum().backward()
    clear_gradients((scaled_loss,), ({"deep": [x]},))
    assert x.grad is None
