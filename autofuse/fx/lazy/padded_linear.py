"""Gives one linear layer a forward that calls autofuse.ops.linear. The class and the parameters of the layer stay.

layer_forward.py describes how the layer gets it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse import ops
from autofuse.fx.lazy.layer_forward import forward_of_class, has_original_forward, remove_forward, set_forward


def linear_of(module: nn.Linear, x: Tensor) -> Tensor:
    """The output of a linear layer by autofuse.ops.linear; by F.linear for tensors that are not dense and plain."""
    if type(x) is not Tensor or x.is_nested or x.layout is not torch.strided:
        return F.linear(x, module.weight, module.bias)
    return ops.linear(x, module.weight, module.bias)


def forward(self: nn.Linear, input: Tensor) -> Tensor:
    """nn.Linear's forward. Which calls are padded was measured; all others run F.linear."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        return _by_operation(self, input)
    return F.linear(input, self.weight, self.bias)


@torch.jit.unused
def _by_operation(module: nn.Linear, x: Tensor) -> Tensor:
    if not has_original_forward(type(module)):
        of_class: Tensor = forward_of_class(module)(x)
        return of_class
    return linear_of(module, x)


def use_padded_products(module: nn.Linear) -> None:
    """Make `module` call autofuse.ops.linear."""
    set_forward(module, forward)


def restore_products(module: nn.Module) -> None:
    """Remove that forward of `module`, if it has one."""
    remove_forward(module, forward)
