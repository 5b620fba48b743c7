"""A linear layer with a lazy output, and the condition for it: plain eager training on plain tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.lazy.nodes import Source
from autofuse.fx.lazy.tensor import LazyLogits, lazy_of
from autofuse.fx.trace.ambient_state import saves_as_autograd
from autofuse.kernels.operation import is_eager
from autofuse.torch_private import (
    GLOBAL_MODULE_HOOKS,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    saved_tensors_hooks_is_enabled,
    top_saved_tensors_default_hooks,
)
from autofuse.torch_private.autocast import is_autocast_on

LEAST_LOGITS = 2**16  # fewer are computed at once
_LEAST = ContextVar("least", default=LEAST_LOGITS)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # a hook may write the weight while gradients come


@contextmanager
def lazy_at_any_size() -> Iterator[None]:
    """In the block, any number of logits is lazy. For trials on small inputs."""
    token = _LEAST.set(0)
    try:
        yield
    finally:
        _LEAST.reset(token)


def lazy_linear(module: nn.Linear, x: Tensor) -> LazyLogits | None:
    """The lazy output of a linear layer for `x` (..., D); None if the output must be computed now."""
    weight, bias = module._parameters["weight"], module._parameters["bias"]
    if not module.training or not _is_alone() or not _are_plain(x, weight, bias) or _is_watched(module, weight, bias):
        return None
    assert weight is not None
    if x.shape[:-1].numel() * weight.shape[0] < max(_LEAST.get(), 1):
        return None
    on = is_autocast_on(x.device.type)
    lower = torch.get_autocast_dtype(x.device.type) if on and x.dtype is not torch.float64 else None
    if lower is None and x.dtype is not weight.dtype:
        return None  # torch raises an error
    made: LazyLogits = _Linear.apply(x, weight, bias, Source(x, weight, bias, lower))  # type: ignore[no-untyped-call]
    return made


def runs_alone() -> bool:
    """Whether nothing traces, transforms, records or saves the current computation."""
    if not torch.is_grad_enabled() or not is_unobserved():
        return False
    return saved_tensors_hooks_is_enabled() and saves_as_autograd(top_saved_tensors_default_hooks(False))


def is_unobserved() -> bool:
    """Whether nothing traces, transforms or records the current computation."""
    if torch.compiler.is_compiling() or not is_eager() or len_torch_dispatch_stack() or len_torch_function_stack():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


_is_alone = runs_alone


def _are_plain(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    if type(x) is not Tensor or type(weight) is not nn.Parameter or bias is not None and type(bias) is not nn.Parameter:
        return False
    if x.ndim < 2 or not x.is_floating_point() or x.shape[-1] != weight.shape[1] or x.is_inference():
        return False
    given = [t for t in (x, weight, bias) if t is not None]
    if not any(t.requires_grad for t in given) or any(t.layout is not torch.strided for t in given):
        return False
    return all(t.device == x.device and t.dtype is weight.dtype for t in (weight, *given[2:]))


def _is_watched(module: nn.Module, *parameters: Tensor | None) -> bool:
    """Whether a hook reads the layer's output, or the gradients of its parameters."""
    inside = module.__dict__
    if any(inside.get(h) for h in _HOOKS) or any(GLOBAL_MODULE_HOOKS):
        return True
    return any(getattr(p, h, None) for p in parameters if p is not None for h in _TENSOR_HOOKS)


class _Linear(torch.autograd.Function):
    """F.linear, computed later. The gradients are those of F.linear; under autocast, of F.linear in the lower dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, source: Source) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        ctx.lower, ctx.bias = source.lower, None if bias is None else bias.dtype
        like = torch.empty(*x.shape[:-1], weight.shape[0], dtype=source.lower or x.dtype, device="meta")
        return lazy_of(source, like)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if gradient is None:
            return None, None, None, None
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        dtype = ctx.lower or x.dtype
        flat = gradient.reshape(-1, gradient.shape[-1])
        return (
            (flat @ weight.to(dtype)).reshape(x.shape).to(x.dtype) if of_x else None,
            (flat.T @ x.reshape(-1, x.shape[-1]).to(dtype)).to(weight.dtype) if of_weight else None,
            flat.sum(0).to(ctx.bias) if of_bias else None,
            None,
        )
