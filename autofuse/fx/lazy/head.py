"""Gives one linear layer an output that is lazy in training. layer_forward.py describes how the layer gets it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.fx.lazy import losses as losses  # registers the functions that do not read lazy logits
from autofuse.fx.lazy.layer_forward import (
    WEIGHT,
    forward_of_class,
    has_original_forward,
    remove_forward,
    set_forward,
)
from autofuse.fx.lazy.linear import lazy_linear
from autofuse.fx.lazy.padded_linear import linear_of


def forward(self: nn.Linear, input: Tensor) -> Tensor:
    """nn.Linear's forward. In training the output is computed when it is read; products may be padded otherwise."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        return _output(self, input)
    return F.linear(input, self.weight, self.bias)


@torch.jit.unused
def _output(module: nn.Linear, x: Tensor) -> Tensor:
    if not has_original_forward(type(module)):
        of_class: Tensor = forward_of_class(module)(x)
        return of_class
    made = _lazy_output(module, x)
    return linear_of(module, x) if made is None else made


def _lazy_output(module: nn.Linear, x: Tensor) -> Tensor | None:
    if torch.compiler.is_compiling():
        return None
    inside = module.__dict__
    weight = inside["_parameters"].get("weight")
    return lazy_linear(module, x) if weight is not None and weight is inside.get(WEIGHT) else None


def make_lazy(module: nn.Linear) -> None:
    """Make the output of `module` lazy in training."""
    module.__dict__[WEIGHT] = module.weight
    set_forward(module, forward)


def restore_lazy(module: nn.Module) -> None:
    """Remove the lazy forward of `module`, if it has one."""
    module.__dict__.pop(WEIGHT, None)
    remove_forward(module, forward)
