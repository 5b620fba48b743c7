"""Gives one linear layer a forward of its own. The class of the layer does not change.

The layer gets a `forward` as an attribute, and so does a deep copy of the layer. A pickle and a shallow copy do not
contain it: a pickle loads without autofuse, and a shallow copy must not run the forward of another layer.

An attribute of a layer hides what its class defines. So a forward of this kind must run that of the class
(`forward_of_class`) if the class is another one, or if its forward was replaced.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from inspect import getattr_static
from typing import Any, cast

from torch import Tensor, nn

WEIGHT = "_autofuse_lazy_weight"  # the weight with which the output may be lazy; FSDP, for example, replaces the weight
_FORWARD, _STATE = "forward", "__getstate__"
_ORIGINAL = nn.Linear.forward
_CODE = _ORIGINAL.__code__
_OURS: set[Callable[..., Tensor]] = set()  # the functions that layers got


def set_forward(module: nn.Linear, function: Callable[[nn.Linear, Tensor], Tensor]) -> None:
    """Make `module` run `function`."""
    _OURS.add(function)
    module.__dict__[_FORWARD] = types.MethodType(function, module)
    module.__dict__[_STATE] = types.MethodType(_state, module)


def remove_forward(module: nn.Module, function: Callable[..., Tensor]) -> None:
    """Remove `function` from `module`, if `module` runs it."""
    inside = module.__dict__
    if getattr(inside.get(_FORWARD), "__func__", None) is function:
        del inside[_FORWARD]
        if getattr(inside.get(_STATE), "__func__", None) is _state:
            del inside[_STATE]


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a layer is nn.Linear as torch has it, and runs the forward of its class."""
    if type(module) is not nn.Linear or not has_original_forward(nn.Linear) or not _is_of_torch(_CODE):
        return False
    return _FORWARD not in module.__dict__ and type(module.weight) is nn.Parameter


def has_original_forward(cls: type) -> bool:
    """Whether a class has the forward that nn.Linear had when autofuse was imported."""
    return cls.forward is _ORIGINAL and _ORIGINAL.__code__ is _CODE  # type: ignore[attr-defined]


def forward_of_class(module: nn.Module) -> Callable[..., Any]:
    """The forward that `module` would have without an attribute of that name."""
    cls = type(module)
    found = getattr_static(cls, _FORWARD)
    bind = getattr(type(found), "__get__", None)
    return cast(Callable[..., Any], found if bind is None else bind(found, module, cls))


def _is_of_torch(code: types.CodeType) -> bool:
    """Whether this is the code of torch, and not that of a program which replaced it earlier."""
    return code.co_filename == nn.Linear.reset_parameters.__code__.co_filename


def _own_function(module: nn.Module) -> Callable[..., Tensor] | None:
    function = getattr(module.__dict__.get(_FORWARD), "__func__", None)
    return function if function in _OURS else None


class _State(dict[str, Any]):
    """The attributes of a layer without those of `set_forward`. A deep copy has them again, for the copied layer."""

    def __init__(self, module: nn.Linear, attributes: dict[str, Any]) -> None:
        super().__init__(attributes)
        self.module = module

    def __reduce__(self) -> tuple[Any, ...]:  # a pickle holds a plain dict
        return dict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        copied = copy.deepcopy(dict(self), memo)
        made, function = memo.get(id(self.module)), _own_function(self.module)
        weight = self.module.__dict__.get(WEIGHT)
        is_current = weight is None or weight is self.module._parameters.get("weight")
        if made is None or function is None or not is_current:
            return copied
        parts = {_FORWARD: types.MethodType(function, made), _STATE: types.MethodType(_state, made)}
        if weight is not None:
            parts[WEIGHT] = copied.get("_parameters", {}).get("weight")
        return {**copied, **parts}


def _state(self: nn.Linear) -> dict[str, Any]:
    """The contents of copies and pickles of a layer."""
    left_out = {WEIGHT}
    if _own_function(self) is not None:
        left_out.add(_FORWARD)
    if getattr(self.__dict__.get(_STATE), "__func__", None) is _state:
        left_out.add(_STATE)
    return _State(self, {name: value for name, value in self.__dict__.items() if name not in left_out})
