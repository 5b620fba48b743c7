"""Compiles the kernels of a call's backward pass before its forward pass is used for training.

A kernel that does not compile for a device, or does not load there, would otherwise be found out in the backward pass,
where nobody can turn to another provider any more. The provider is run, forward and backward, on tensors without data
that count as tensors of that device, and what it would launch is compiled (Triton's warmup), not launched. Only our own
Triton kernels can be rehearsed: they are launched in one place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.devices import treat_meta_as
from autofuse.kernels.failures import needs_gradient
from autofuse.kernels.own_thread import in_own_thread
from autofuse.kernels.packages import TRITON, loaded
from autofuse.kernels.provider import Provider
from autofuse.torch_private.nested import tensors_in

_LAUNCH = "autofuse.kernels.triton.launch"
_LOG = logging.getLogger("autofuse")


def backward_trouble(provider: Provider, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Why a provider's kernels of a training step with these arguments do not compile, as a sentence; "" where they do.

    args: those of the operation's public function, the deciding tensor first. A call that cannot be run without data
    counts as one that compiles: nothing is known against it.
    """
    x = args[0]
    if provider.package is not TRITON or not x.is_cuda or not needs_gradient((*args, *kwargs.values())):
        return ""
    if torch.cuda.is_current_stream_capturing():
        return ""  # nothing may be loaded meanwhile; what warmed up for the capture was rehearsed
    return compiled_trouble(provider.run, x.device, args, kwargs)


def compiled_trouble(
    run: Callable[..., Any], device: torch.device, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """The same for tensors that count as tensors on `device`."""
    launcher = loaded(_LAUNCH)
    lowered = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    for dtype in (None, lowered) if lowered is not None else (None,):
        work = lambda dtype=dtype: rehearsed(run, device, *_without_data(args, kwargs, dtype))
        try:
            in_own_thread(work, "compiling the kernels of a backward pass")
        except launcher.DoesNotCompile as error:
            return f"A kernel of a training step does not compile here. {error}"
        except Exception as error:
            _LOG.debug("autofuse could not compile %s ahead of its backward pass.", run, exc_info=error)
    return ""


def rehearsed(
    run: Callable[..., Any], device: torch.device, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """The names of the kernels that a call and its backward pass launch on `device`, compiled for it.

    args and kwargs: with tensors on the meta device. Raises DoesNotCompile (autofuse/kernels/triton/launch.py), and
    whatever `run` raises for tensors without data.
    """
    with treat_meta_as(device), loaded(_LAUNCH).rehearsing() as compiled, torch.enable_grad():
        made = run(*args, **kwargs)
        results = [t for t in tensors_in((made,)) if t.requires_grad]
        torch.autograd.backward(results, [torch.empty_like(t) for t in results])
    names: list[str] = compiled
    return names


def _without_data(
    args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype | None
) -> tuple[list[Any], dict[str, Any]]:
    return [_meta(a, dtype) for a in args], {name: _meta(a, dtype) for name, a in kwargs.items()}


def _meta(x: Any, dtype: torch.dtype | None) -> Any:
    """A tensor of the same shape, strides and dtype, or in `dtype` if that is given, on the meta device."""
    if not isinstance(x, Tensor):
        return x
    of = dtype if dtype is not None and x.is_floating_point() else x.dtype
    made = torch.empty_strided(x.shape, x.stride(), dtype=of, device="meta")
    return made.requires_grad_(x.requires_grad)
