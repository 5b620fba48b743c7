"""Tells whether a model's parameters are materialized on this rank, and replaces distributed tensors in calls.

stand_ins.py computes what a sharded tensor will be. This file does not know what is captured or fused.
"""

from __future__ import annotations

import itertools
from typing import Any

from torch import Tensor, nn

from autofuse.fx.trace.stand_ins import Form, Forms, is_sharded_unit, random_tensor
from autofuse.ops.distributed import is_distributed
from autofuse.torch_private.nested import mapped, plain_parts, tensors_in

ForwardArguments = tuple[tuple[Any, ...], dict[str, Any]]


def why_not_yet_traceable(model: nn.Module) -> str:
    """Returns why a model cannot be traced before its modules are called: a clause, or ""."""
    if any(is_sharded_unit(m) for m in model.modules()):
        return "its parameters are sharded, and gathered only while a module runs"
    tensors = (*model.parameters(), *model.buffers())
    if any(is_distributed(t) for t in tensors):
        return "its parameters are distributed over ranks"
    return "its parameters are on the meta device" if any(t.is_meta for t in tensors) else ""


def has_meta_tensors(module: nn.Module) -> bool:
    """Returns whether any tensor of a module or of its submodules is on the meta device."""
    return any(t.is_meta for t in (*module.parameters(), *module.buffers()))


def register_views(original: nn.Module, copied: nn.Module) -> None:
    """Registers views that FSDP1 left in place of parameters, so that their gradients are computed."""
    for name, value in vars(original).items():
        if isinstance(value, Tensor) and value._is_view() and value.requires_grad:
            copied._parameters[name] = nn.Parameter(copied.__dict__.pop(name))


def without_dtensors(call: ForwardArguments) -> ForwardArguments:
    """Returns a call in which each DTensor is replaced by a tensor of the global shape with random numbers."""
    seeds = itertools.count()

    def with_global_shape(value: Any) -> Any:
        if not isinstance(value, Tensor) or not is_distributed(value):
            return value
        form = Form(value.shape, value.dtype, value.device, value.requires_grad)
        return random_tensor(form, next(seeds)).requires_grad_(value.requires_grad)

    return (
        (mapped(with_global_shape, call[0]), mapped(with_global_shape, call[1])) if _receives_dtensors(call) else call
    )


def global_forms(module: nn.Module, call: ForwardArguments) -> Forms:
    """Returns the global forms of distributed parameters if the module receives DTensors.

    The program then uses global shapes.
    """
    if not _receives_dtensors(call):
        return {}
    tensors = (*module.parameters(), *module.buffers())
    return {id(p): Form(p.shape, p.dtype, p.device, p.requires_grad) for p in tensors if is_distributed(p)}


def _receives_dtensors(call: ForwardArguments) -> bool:
    return any(map(is_distributed, tensors_in(call, plain_parts)))
