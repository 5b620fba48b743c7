"""Compiles the kernels of a call's backward pass before its forward pass is used for training.

A kernel that does not compile or load on a device would otherwise fail in the backward pass, which has no fallback. So
the provider runs forward and backward on tensors without data that count as tensors of that device. The kernels that it
would launch are compiled (Triton's warmup) and not launched. This works for our own Triton kernels only, because they
are launched in one place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.devices import treat_meta_as
from autofuse.kernels.failures import needs_gradient
from autofuse.kernels.own_thread import run_in_own_thread
from autofuse.kernels.packages import TRITON, load_module
from autofuse.kernels.provider import Provider
from autofuse.torch_private.nested import tensors_in

_LAUNCH = "autofuse.kernels.triton.launch"
_LOG = logging.getLogger("autofuse")


def backward_compile_error(provider: Provider, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The reason why a provider's kernels of a training step do not compile, as a sentence; "" if they do.

    Args:
        provider: the provider.
        args: the arguments of the operation's public function, with the deciding tensor first.
        kwargs: its keyword arguments.

    Returns:
        The sentence. A call that cannot run without data counts as one that compiles, because nothing is known against
        it.
    """
    x = args[0]
    if provider.package is not TRITON or not x.is_cuda or not needs_gradient((*args, *kwargs.values())):
        return ""
    if torch.cuda.is_current_stream_capturing():
        return ""  # nothing may be loaded during a capture; the warm-up before it has compiled the kernels
    return compile_error(provider.run, x.device, args, kwargs)


def compile_error(run: Callable[..., Any], device: torch.device, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The same for tensors that count as tensors on `device`."""
    launcher = load_module(_LAUNCH)
    lowered = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    for dtype in (None, lowered) if lowered is not None else (None,):
        work = lambda dtype=dtype: compile_training_step(run, device, *_without_data(args, kwargs, dtype))
        try:
            run_in_own_thread(work, "compiling the kernels of a backward pass")
        except launcher.DoesNotCompile as error:
            return f"A kernel of a training step does not compile here. {error}"
        except Exception as error:
            _LOG.debug("autofuse could not compile %s ahead of its backward pass.", run, exc_info=error)
    return ""


def compile_training_step(
    run: Callable[..., Any], device: torch.device, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """The names of the kernels that a call and its backward pass launch on `device`, after compiling them.

    Args:
        run: the provider's function.
        device: the device.
        args: arguments with tensors on the meta device.
        kwargs: keyword arguments with tensors on the meta device.

    Returns:
        The names. This raises DoesNotCompile (autofuse/kernels/triton/launch.py), and whatever `run` raises for tensors
        without data.
    """
    with treat_meta_as(device), load_module(_LAUNCH).rehearsing() as compiled, torch.enable_grad():
        result = run(*args, **kwargs)
        results = [t for t in tensors_in((result,)) if t.requires_grad]
        torch.autograd.backward(results, [torch.empty_like(t) for t in results])
    names: list[str] = compiled
    return names


def _without_data(
    args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype | None
) -> tuple[list[Any], dict[str, Any]]:
    return [_meta(a, dtype) for a in args], {name: _meta(a, dtype) for name, a in kwargs.items()}


def _meta(x: Any, dtype: torch.dtype | None) -> Any:
    """A tensor with the same shape, strides and dtype (or in `dtype`) on the meta device."""
    if not isinstance(x, Tensor):
        return x
    dtype_of_meta = dtype if dtype is not None and x.is_floating_point() else x.dtype
    result = torch.empty_strided(x.shape, x.stride(), dtype=dtype_of_meta, device="meta")
    return result.requires_grad_(x.requires_grad)
