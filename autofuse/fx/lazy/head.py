"""Gives one linear layer an output that is lazy in training. The class of the layer does not change.

The layer gets a `forward` as an attribute, and so does a deep copy of the layer. A pickle and a shallow copy do not
contain it: a pickle loads without autofuse, and a shallow copy must not run the forward of another layer.

An attribute of a layer hides what its class defines. So this forward runs that of the class if the class is another
one, or if its forward was replaced.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from inspect import getattr_static
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.fx.lazy import losses as losses  # registers the functions that do not read lazy logits
from autofuse.fx.lazy.linear import lazy_linear

_WEIGHT = (
    "_autofuse_lazy_weight"  # the weight with which the output may be lazy; FSDP, for example, replaces the weight
)


_FORWARD = "forward"
_STATE = "__getstate__"
_ORIGINAL = nn.Linear.forward
_CODE = _ORIGINAL.__code__


def forward(self: nn.Linear, input: Tensor) -> Tensor:
    """nn.Linear's forward. In training the output is computed when it is read."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if not _has_original_forward(type(self)):
            return cast(Tensor, forward_of_class(self)(input))
        made = _lazy_output(self, input)
        if made is not None:
            return made
    return F.linear(input, self.weight, self.bias)


@torch.jit.unused
def _lazy_output(module: nn.Linear, x: Tensor) -> Tensor | None:
    if torch.compiler.is_compiling():
        return None
    inside = module.__dict__
    weight = inside["_parameters"].get("weight")
    return lazy_linear(module, x) if weight is not None and weight is inside.get(_WEIGHT) else None


def may_be_lazy(module: nn.Module) -> bool:
    """Whether the output of `module` may be lazy: whether it is a plain linear layer with the forward of its class."""
    if type(module) is not nn.Linear or not _has_original_forward(nn.Linear) or not _is_of_torch(_CODE):
        return False
    return _FORWARD not in module.__dict__ and type(module.weight) is nn.Parameter


def make_lazy(module: nn.Linear) -> None:
    """Make the output of `module` lazy in training."""
    inside = module.__dict__
    inside[_WEIGHT] = module.weight
    inside[_FORWARD] = types.MethodType(forward, module)
    inside[_STATE] = types.MethodType(_state, module)


def restore_lazy(module: nn.Module) -> None:
    """Remove the lazy forward of `module`, if it has one."""
    inside = module.__dict__
    inside.pop(_WEIGHT, None)
    for name, made in ((_FORWARD, forward), (_STATE, _state)):
        if getattr(inside.get(name), "__func__", None) is made:
            del inside[name]


def forward_of_class(module: nn.Module) -> Callable[..., Any]:
    """The forward that `module` would have without an attribute of that name."""
    cls = type(module)
    found = getattr_static(cls, _FORWARD)
    bind = getattr(type(found), "__get__", None)
    return cast(Callable[..., Any], found if bind is None else bind(found, module, cls))


def _has_original_forward(cls: type) -> bool:
    return cls.forward is _ORIGINAL and _ORIGINAL.__code__ is _CODE  # type: ignore[attr-defined]


def _is_of_torch(code: types.CodeType) -> bool:
    """Whether this is the code of torch, and not that of a program which replaced it earlier."""
    return code.co_filename == nn.Linear.reset_parameters.__code__.co_filename


class _State(dict[str, Any]):
    """The attributes of a layer without those of `make_lazy`. A deep copy has them again, for the copied layer."""

    def __init__(self, module: nn.Linear, attributes: dict[str, Any]) -> None:
        super().__init__(attributes)
        self.module = module

    def __reduce__(self) -> tuple[Any, ...]:  # a pickle holds a plain dict
        return dict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        copied = copy.deepcopy(dict(self), memo)
        made = memo.get(id(self.module))
        weight = copied.get("_parameters", {}).get("weight")
        if made is None or self.module.__dict__.get(_WEIGHT) is not self.module._parameters.get("weight"):
            return copied
        parts = {_FORWARD: types.MethodType(forward, made), _STATE: types.MethodType(_state, made)}
        return {**copied, _WEIGHT: weight, **parts}


def _state(self: nn.Linear) -> dict[str, Any]:
    """The attributes that copies and pickles of a layer hold."""
    ours = {_FORWARD: forward, _STATE: _state}
    kept = {
        name: value
        for name, value in self.__dict__.items()
        if name != _WEIGHT and (name not in ours or getattr(value, "__func__", None) is not ours[name])
    }
    return _State(self, kept)
