"""Whether a model's parameters are here, and calls with distributed tensors as calls with whole ones.

What a sharded tensor will be is in stand_ins.py. Must not know what is captured or fused.
"""

from __future__ import annotations

import itertools
from typing import Any

from torch import Tensor, nn

from autofuse.fx.trace.stand_ins import Form, Forms, filled, is_sharded_unit
from autofuse.ops.distributed import is_distributed
from autofuse.torch_private.nested import mapped, plain_parts, tensors_in

ForwardArguments = tuple[tuple[Any, ...], dict[str, Any]]


def postponed(model: nn.Module) -> str:
    """Why a model cannot be looked at before its modules are called: a clause, or "" where it can."""
    if any(is_sharded_unit(m) for m in model.modules()):
        return "its parameters are sharded, and gathered only while a module runs"
    tensors = (*model.parameters(), *model.buffers())
    if any(is_distributed(t) for t in tensors):
        return "its parameters are distributed over ranks"
    return "its parameters are on the meta device" if any(t.is_meta for t in tensors) else ""


def is_empty(module: nn.Module) -> bool:
    """Whether tensors of a module, or of those below it, have no numbers yet."""
    return any(t.is_meta for t in (*module.parameters(), *module.buffers()))


def register_views(original: nn.Module, copied: nn.Module) -> None:
    """Make parameters of what FSDP1 left as views in the place of parameters, so that their gradients are asked for."""
    for name, value in vars(original).items():
        if isinstance(value, Tensor) and value._is_view() and value.requires_grad:
            copied._parameters[name] = nn.Parameter(copied.__dict__.pop(name))


def undistributed(call: ForwardArguments) -> ForwardArguments:
    """A call with DTensors as one with tensors of the whole size, whose numbers are made up."""
    seeds = itertools.count()

    def whole(value: Any) -> Any:
        if not isinstance(value, Tensor) or not is_distributed(value):
            return value
        form = Form(value.shape, value.dtype, value.device, value.requires_grad)
        return filled(form, next(seeds)).requires_grad_(value.requires_grad)

    return (mapped(whole, call[0]), mapped(whole, call[1])) if _is_given_distributed(call) else call


def whole_forms(module: nn.Module, call: ForwardArguments) -> Forms:
    """Forms of the distributed parameters of a module that is handed DTensors: there a program speaks of whole ones."""
    if not _is_given_distributed(call):
        return {}
    held = (*module.parameters(), *module.buffers())
    return {id(p): Form(p.shape, p.dtype, p.device, p.requires_grad) for p in held if is_distributed(p)}


def _is_given_distributed(call: ForwardArguments) -> bool:
    return any(map(is_distributed, tensors_in(call, plain_parts)))
