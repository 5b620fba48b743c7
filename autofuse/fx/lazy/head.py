"""Gives one linear layer an output that is lazy in training. The class of the layer does not change.

The layer gets a `forward` as an attribute, and so does a copy of the layer. A pickle does not contain it, so that it
loads without autofuse.
"""

from __future__ import annotations

import types

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.fx.lazy import losses as losses  # registers the functions that do not read lazy logits
from autofuse.fx.lazy.linear import lazy_linear
from autofuse.fx.lazy.padded_linear import linear_of

_WEIGHT = (
    "_autofuse_lazy_weight"  # the weight with which the output may be lazy; FSDP, for example, replaces the weight
)


def forward(self: nn.Linear, input: Tensor) -> Tensor:
    """nn.Linear's forward. In training the output is computed when it is read; products may be padded otherwise."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        return _output(self, input)
    return F.linear(input, self.weight, self.bias)


@torch.jit.unused
def _output(module: nn.Linear, x: Tensor) -> Tensor:
    made = _lazy_output(module, x)
    return linear_of(module, x) if made is None else made


def _lazy_output(module: nn.Linear, x: Tensor) -> Tensor | None:
    if torch.compiler.is_compiling():
        return None
    inside = module.__dict__
    weight = inside["_parameters"].get("weight")
    return lazy_linear(module, x) if weight is not None and weight is inside.get(_WEIGHT) else None


def may_be_lazy(module: nn.Module) -> bool:
    """Whether the output of `module` may be lazy: whether it is a plain linear layer with its own forward."""
    return type(module) is nn.Linear and "forward" not in module.__dict__ and type(module.weight) is nn.Parameter


def make_lazy(module: nn.Linear) -> None:
    """Make the output of `module` lazy in training."""
    module.__dict__[_WEIGHT] = module.weight
    module.__dict__["forward"] = types.MethodType(forward, module)


def restore_lazy(module: nn.Module) -> None:
    """Remove the lazy forward of `module`, if it has one."""
    inside = module.__dict__
    inside.pop(_WEIGHT, None)
    if getattr(inside.get("forward"), "__func__", None) is forward:
        del inside["forward"]
