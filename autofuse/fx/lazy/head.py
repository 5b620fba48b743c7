"""Gives one linear layer an output that is lazy in training. Its class stays its class.

The layer has a `forward` of its own, as an attribute. A copy of the layer has one, too; a pickle has the forward of the
class, which needs no autofuse.
"""

from __future__ import annotations

import types

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.fx.lazy import losses as losses  # what is done to lazy logits without reading them
from autofuse.fx.lazy.linear import lazy_linear

_WEIGHT = "_autofuse_lazy_weight"  # of which the layer's output may be lazy; FSDP, say, puts another one there


def forward(self: nn.Linear, input: Tensor) -> Tensor:
    """nn.Linear's forward; in training the output is computed when somebody reads it."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        made = _lazy(self, input)
        if made is not None:
            return made
    return F.linear(input, self.weight, self.bias)


@torch.jit.unused
def _lazy(module: nn.Linear, x: Tensor) -> Tensor | None:
    if torch.compiler.is_compiling():
        return None
    inside = module.__dict__
    weight = inside["_parameters"].get("weight")
    return lazy_linear(module, x) if weight is not None and weight is inside.get(_WEIGHT) else None


def may_be_lazy(module: nn.Module) -> bool:
    """Whether the output of `module` may be lazy at all: a plain linear layer that nobody replaced."""
    return type(module) is nn.Linear and "forward" not in module.__dict__ and type(module.weight) is nn.Parameter


def make_lazy(module: nn.Linear) -> None:
    """From here on the output of `module` is lazy in training."""
    module.__dict__[_WEIGHT] = module.weight
    module.__dict__["forward"] = types.MethodType(forward, module)


def restore_lazy(module: nn.Module) -> None:
    """Give `module` the forward of its class back, if it has ours."""
    inside = module.__dict__
    inside.pop(_WEIGHT, None)
    if getattr(inside.get("forward"), "__func__", None) is forward:
        del inside["forward"]
