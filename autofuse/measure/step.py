"""One training step of any model: what compare runs unless given a step. It knows inputs and outputs, not clocks."""

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
    """Forward, a loss made of every floating output (the sum of their mean squares), backward, gradients cleared.

    Where no output asks for a gradient (frozen, or under no_grad) this is the forward alone.
    """
    outputs = tensors_in(called(model, inputs))
    losses = [output.square().mean() for output in outputs if output.requires_grad and output.is_floating_point()]
    if not losses:
        return
    torch.autograd.backward(losses)
    clear_gradients((model,), inputs)


def called(model: Model, inputs: Inputs) -> Any:
    """The model's output. A tensor is the only argument, a tuple the positional ones, a mapping the keywords.

    Raises TypeError for anything else.
    """
    if isinstance(inputs, Tensor):
        return model(inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    raise TypeError(
        f"The inputs are a {type(inputs).__name__}, and how to call the model with them is not clear: "
        "pass a tensor, a tuple of positional arguments or a dict of keywords."
    )


def clear_gradients(models: Iterable[Model], inputs: Inputs) -> None:
    """Drop the gradients of the models' parameters and of the tensors among the inputs."""
    modules = (model for model in models if isinstance(model, nn.Module))
    for tensor in (*chain.from_iterable(module.parameters() for module in modules), *tensors_in(inputs)):
        if tensor.is_leaf:
            tensor.grad = None
