"""Whether a model's parameters are here, and calls with distributed tensors as calls with whole ones.

What a sharded tensor will be is in stand_ins.py. Must not know what is captured or fused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from autofuse.fx.trace.stand_ins import Form, Forms, filled, is_sharded_unit
from autofuse.ops.distributed import is_distributed

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
        if isinstance(value, Tensor):
            form = Form(value.shape, value.dtype, value.device, value.requires_grad)
            made = is_distributed(value)
            return filled(form, next(seeds)).requires_grad_(value.requires_grad) if made else value
        if type(value) in (tuple, list):
            return type(value)(map(whole, value))
        return {k: whole(v) for k, v in value.items()} if type(value) is dict else value

    return (whole(call[0]), whole(call[1])) if any(map(is_distributed, tensors_of(call))) else call


def whole_forms(module: nn.Module, call: ForwardArguments) -> Forms:
    """Forms of the distributed parameters of a module that is handed DTensors: there a program speaks of whole ones."""
    if not any(map(is_distributed, tensors_of(call))):
        return {}
    held = (*module.parameters(), *module.buffers())
    return {id(p): Form(p.shape, p.dtype, p.device, p.requires_grad) for p in held if is_distributed(p)}


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors in plain containers; caches and the like are not opened."""
    if isinstance(value, Tensor):
        yield value
    elif type(value) in (tuple, list):
        for v in value:
            yield from tensors_of(v)
    elif type(value) is dict:
        yield from tensors_of(list(value.values()))
