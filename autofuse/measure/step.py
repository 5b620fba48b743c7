"""One training step of any model. `compare` runs it if the caller passes no step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.torch_private.nested import tensors_in

Model = Callable[..., Any]
Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
Step = Callable[[Any, Any], object]


def training_step(model: Model, inputs: Inputs) -> None:
    """Runs forward and backward, and clears the gradients.

    The loss is the sum of the mean squares of all floating-point outputs. If no output requires a gradient (a frozen
    model, or under no_grad), only the forward runs.
    """
    outputs = tensors_in(call_model(model, inputs))
    losses = [output.square().mean() for output in outputs if output.requires_grad and output.is_floating_point()]
    if not losses:
        return
    torch.autograd.backward(losses)
    clear_gradients((model,), inputs)


def call_model(model: Model, inputs: Inputs) -> Any:
    """Calls the model and returns its output.

    Args:
        model: The model.
        inputs: A tensor as the only argument, a tuple of positional arguments, or a mapping of keyword arguments.

    Raises:
        TypeError: `inputs` has another type.
    """
    if isinstance(inputs, Tensor):
        return model(inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    raise TypeError(
        f"The inputs are a {type(inputs).__name__}, which does not say how to call the model: "
        "pass a tensor, a tuple of positional arguments or a dict of keywords."
    )


def clear_gradients(models: Iterable[Model], inputs: Inputs) -> None:
    """Sets the gradients of the models' parameters and of the input tensors to None."""
    modules = (model for model in models if isinstance(model, nn.Module))
    for tensor in (*chain.from_iterable(module.parameters() for module in modules), *tensors_in(inputs)):
        if tensor.is_leaf:
            tensor.grad = None
