"""Stand-ins for tensors: fakes of what a tensor is while its module runs, and made-up numbers where it is elsewhere.

FSDP gathers a parameter before a module runs, tensor parallelism leaves each rank its part. Knows how torch's two
FSDPs, DTensor and the meta device hold parameters, by what these objects have, not by importing torch.distributed.
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
    """What a tensor that is sharded now will be: its shape, dtype, device, and whether it wants a gradient."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


Forms = dict[int, Form]  # id of a tensor that is not gathered -> what it will be


def fake_world(mode: FakeTensorMode, sharded: Forms | None = None) -> Twins:
    """Twins whose tensors have shapes and dtypes but no numbers; those that are `sharded` are as they will be."""
    return Twins(partial(stand_in, mode=mode, known=sharded or {}))


def forms(modules: Iterable[nn.Module]) -> Forms:
    """What the tensors below `modules` will be that FSDP has not gathered now."""
    found: Forms = {}
    for module in dict.fromkeys(below for m in modules for below in m.modules()):
        if is_sharded_unit(module):
            with contextlib.suppress(AttributeError):  # a torch that keeps this elsewhere: such a module is not read
                found.update(_flat_forms(module) if type(module).__name__ == FSDP1 else _parameter_forms(module))
    return found


def stand_in(x: Tensor, mode: FakeTensorMode, known: Forms) -> Tensor:
    """A fake of what `x` will be: a tensor of this rank's, without numbers."""
    form = known.get(id(x))
    if form is not None:
        with mode:
            return _as(x, torch.empty(form.shape, dtype=form.dtype, device=form.device), form.requires_grad)
    if not is_distributed(x):
        try:
            made = mode.from_tensor(x, static_shapes=True)
            return made if made.is_leaf or not isinstance(x, nn.Parameter) else _as(x, made.detach(), x.requires_grad)
        except RuntimeError:
            pass  # FSDP1's views may have a gradient of another shape, or a base that was written to
    wanted = x.requires_grad
    return _as(x, mode.from_tensor(local(x).detach(), static_shapes=True), wanted)


def _as(x: Tensor, made: Tensor, requires_grad: bool) -> Tensor:
    """`made` as a parameter, if `x` is one."""
    return nn.Parameter(made, requires_grad) if isinstance(x, nn.Parameter) else made.requires_grad_(requires_grad)


def filled(form: Form, seed: int) -> Tensor:
    """Numbers for a tensor that is elsewhere: as large as those of a layer that was just made."""
    generator = torch.Generator().manual_seed(seed)
    width = form.shape[-1] if form.shape else 1
    numbers = torch.randn(form.shape, generator=generator) / max(width, 1) ** 0.5
    found: Tensor = numbers.to(form.device, form.dtype)
    return found


def local(x: Tensor) -> Tensor:
    """This rank's part of `x`, without its history; `x` itself where it has no parts."""
    if not is_distributed(x):
        return x
    part: Tensor = x.detach().to_local()  # type: ignore[attr-defined]
    return part


def is_sharded_unit(module: nn.Module) -> bool:
    """Whether a module gathers parameters when it is called."""
    return type(module).__name__ == FSDP1 or hasattr(module, "_get_fsdp_state")


def _parameter_forms(module: Any) -> Iterator[tuple[int, Form]]:
    """FSDP2: each parameter is sharded by itself."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for held in (p for group in groups if group is not None for p in group.fsdp_params):
        place = held._module_info
        now = place.module._parameters.get(place.param_name)
        if now is None or getattr(held.sharded_state, "name", "") == "UNSHARDED":
            continue
        dtype = getattr(held, "param_dtype", None) or now.dtype  # set when FSDP is first run
        yield id(now), Form(held._orig_size, dtype, held.device, now.requires_grad)


def _flat_forms(module: Any) -> Iterator[tuple[int, Form]]:
    """FSDP1: parameters are parts of one flat tensor, and each module has views of it under their names."""
    handle = getattr(module, "_handle", None)
    if handle is None:
        return
    flat = handle.flat_param
    dtype = handle._fwd_bwd_param_dtype or flat.dtype
    for (name, owner, _), shape in zip(flat._param_infos, flat._shapes, strict=True):
        now = owner._parameters.get(name)
        now = vars(owner).get(name) if now is None else now
        if isinstance(now, Tensor) and not (now.shape == shape and now.dtype == dtype and _has_memory(now)):
            yield id(now), Form(shape, dtype, handle.device, flat.requires_grad)


def _has_memory(x: Tensor) -> bool:
    return x.untyped_storage().nbytes() >= x.numel() * x.element_size()
