"""Makes stand-ins for tensors: fakes with the form that a tensor has while its module runs, and random numbers.

Random numbers take the place of tensors that are not on this rank. FSDP gathers a parameter before a module runs.
Tensor parallelism gives each rank one shard. This file knows how torch's two FSDPs, DTensor and the meta device hold
parameters. It recognises them by their attributes, so torch.distributed need not be imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace.twin import Twins
from autofuse.fx.trace.wrappers import FSDP1
from autofuse.ops.distributed import is_distributed
from autofuse.torch_private import FakeTensorMode


@dataclass(frozen=True)
class Form:
    """The form of a sharded tensor after it is gathered.

    Attributes:
        shape: The full shape.
        dtype: The dtype in which the module computes.
        device: The device on which the module runs.
        requires_grad: Whether the tensor requires a gradient.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


Forms = dict[int, Form]  # id of a tensor that is not gathered -> its form when it is gathered


def fake_world(mode: FakeTensorMode, sharded: Forms | None = None) -> Twins:
    """Returns a factory of twins whose tensors are fakes. Tensors in `sharded` get the form that they will have."""
    return Twins(partial(stand_in, mode=mode, known=sharded or {}))


def forms(modules: Iterable[nn.Module]) -> Forms:
    """Returns the forms of the tensors below `modules` that FSDP has not gathered yet."""
    found: Forms = {}
    for module in dict.fromkeys(below for m in modules for below in m.modules()):
        if is_sharded_unit(module):
            with contextlib.suppress(AttributeError):  # this version of torch has other attributes: skip the module
                found.update(_flat_forms(module) if type(module).__name__ == FSDP1 else _parameter_forms(module))
    return found


def stand_in(x: Tensor, mode: FakeTensorMode, known: Forms) -> Tensor:
    """Returns a fake with the form that `x` has on this rank while its module runs."""
    form = known.get(id(x))
    if form is not None:
        with mode:
            return _like(x, torch.empty(form.shape, dtype=form.dtype, device=form.device), form.requires_grad)
    if not is_distributed(x):
        try:
            copy = mode.from_tensor(x, static_shapes=True)
            return copy if copy.is_leaf or not isinstance(x, nn.Parameter) else _like(x, copy.detach(), x.requires_grad)
        except RuntimeError:
            pass  # FSDP1's views may have a gradient of another shape, or a base that was modified
    wanted = x.requires_grad
    return _like(x, mode.from_tensor(local_shard(x).detach(), static_shapes=True), wanted)


def _like(x: Tensor, copy: Tensor, requires_grad: bool) -> Tensor:
    """Sets `requires_grad`, and makes a parameter of `copy` if `x` is one."""
    return nn.Parameter(copy, requires_grad) if isinstance(x, nn.Parameter) else copy.requires_grad_(requires_grad)


def random_tensor(form: Form, seed: int) -> Tensor:
    """Returns random numbers in place of an absent tensor, scaled like those of a newly initialized layer.

    Args:
        form: The shape, dtype and device of the result.
        seed: The seed of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    width = form.shape[-1] if form.shape else 1
    numbers = torch.randn(form.shape, generator=generator) / max(width, 1) ** 0.5
    found: Tensor = numbers.to(form.device, form.dtype)
    return found


def local_shard(x: Tensor) -> Tensor:
    """Returns this rank's shard of `x`, detached, or `x` itself if it is not distributed."""
    if not is_distributed(x):
        return x
    part: Tensor = x.detach().to_local()  # type: ignore[attr-defined]
    return part


def is_sharded_unit(module: nn.Module) -> bool:
    """Returns whether FSDP gathers parameters when the module is called."""
    return type(module).__name__ == FSDP1 or hasattr(module, "_get_fsdp_state")


def _parameter_forms(module: Any) -> Iterator[tuple[int, Form]]:
    """Yields forms for FSDP2, which shards each parameter on its own."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for sharded_parameter in (p for group in groups if group is not None for p in group.fsdp_params):
        place = sharded_parameter._module_info
        current = place.module._parameters.get(place.param_name)
        if current is None or getattr(sharded_parameter.sharded_state, "name", "") == "UNSHARDED":
            continue
        dtype = getattr(sharded_parameter, "param_dtype", None) or current.dtype  # set when FSDP is first run
        yield id(current), Form(sharded_parameter._orig_size, dtype, sharded_parameter.device, current.requires_grad)


def _flat_forms(module: Any) -> Iterator[tuple[int, Form]]:
    """Yields forms for FSDP1. Parameters are parts of one flat tensor, and each module holds views of it."""
    handle = getattr(module, "_handle", None)
    if handle is None:
        return
    flat = handle.flat_param
    dtype = handle._fwd_bwd_param_dtype or flat.dtype
    for (name, owner, _), shape in zip(flat._param_infos, flat._shapes, strict=True):
        current = owner._parameters.get(name)
        current = vars(owner).get(name) if current is None else current
        if isinstance(current, Tensor) and not (
            current.shape == shape and current.dtype == dtype and _has_memory(current)
        ):
            yield id(current), Form(shape, dtype, handle.device, flat.requires_grad)


def _has_memory(x: Tensor) -> bool:
    return x.untyped_storage().nbytes() >= x.numel() * x.element_size()
