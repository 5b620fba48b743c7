"""Variants of operations for operands that are known when code is generated, so that little is decided at run time.

Each variant computes what the operation of the same name in `autofuse.ops` computes, for any operands. The caller
promises that the usual operands are likely; these go directly to torch's kernel. A variant has further variants as
attributes:

- `seen` is for a call that no compiler, tracer, dispatch mode or torch.func transform observes, so it does not check
  for them.
- `quiet` is for operands that are arguments of the forward: none requires grad or has a tangent, and each has fewer
  than `below` elements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.operation import LEAST, OPERATIONS, RECORDERS
from autofuse.ops.activation_table import ACTIVATIONS
from autofuse.ops.affine import Affine
from autofuse.ops.attention import attention as whole_attention
from autofuse.ops.derivatives import differentiable_twice
from autofuse.ops.dropout_add_norm import dropout_add_norm
from autofuse.ops.layer_norm import layer_norm
from autofuse.ops.layer_norm import layer_norm_by_torch as layer_norm_by_torch
from autofuse.torch_private import forward_ad, get_tracing_state, lazy_clone, peek_interpreter_stack, storage_users
from autofuse.torch_private import functional as F

_is_compiling = torch.compiler.is_dynamo_compiling  # other compilers pass tensors of other types


@cache
def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation `name` for tensors of any shape. Tensors with few elements go directly to torch."""
    operation, whole = OPERATIONS[name], ACTIVATIONS[name]
    of_torch, least = operation.torch.run, operation.least

    def run(x: Tensor) -> Tensor:
        watched = _is_compiling() or get_tracing_state() is not None or RECORDERS
        return whole(x) if watched or type(x) is not Tensor or x.numel() >= least else of_torch(x)

    def unobserved(x: Tensor) -> Tensor:
        return whole(x) if RECORDERS or type(x) is not Tensor or x.numel() >= least else of_torch(x)

    run.__name__ = run.__qualname__ = f"{name}_of_few_elements"
    run.seen = unobserved  # type: ignore[attr-defined]
    return run


@cache
def settled_activation(name: str) -> Callable[[Tensor], Tensor]:
    """`activation` for an argument of the forward, about which everything that `seen` checks is known."""
    of_any, operation = activation(name), OPERATIONS[name]

    def run(x: Tensor) -> Tensor:
        return of_any(x)

    run.__name__ = run.__qualname__ = f"{name}_of_an_argument"
    run.seen = of_any.seen  # type: ignore[attr-defined]
    run.quiet, run.below = operation.torch.run, operation.least  # type: ignore[attr-defined]
    return run


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, is_causal: bool,
    same_dtype: bool, whole: bool, same_length: bool, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    """ops.attention outside of autocast, for operands that the kernel is likely to accept unchanged.

    Args:
        query: shape (B, H, T, d), contiguous in the last dimension.
        key: shape (B, H, S, d), contiguous in the last dimension.
        value: shape (B, H, S, d), contiguous in the last dimension.
        mask: boolean, or None.
        scale: the factor of the scores; None for the kernel's default, 1 / sqrt(d).
        is_causal: query i attends to keys 0 to i.
        same_dtype: whether the operands are known to have one dtype.
        whole: whether the operands are known to be on a CPU in fp32 or fp64, where only torch computes attention.
        same_length: whether the numbers of keys and values are known to be equal; torch's kernel does not check this.
        dropout_p: the probability with which weights are dropped while `training`.
        training: whether dropout is active.
    """
    if (
        type(query) is not Tensor  # DTensor and other subclasses
        or training
        and dropout_p
        or _is_compiling()
        or forward_ad._current_level >= 0
        or peek_interpreter_stack() is not None
        or not (whole or _is_whole(query))
        or not (same_length or key.shape[-2] == value.shape[-2])
        or not same_dtype
        and not (query.dtype is key.dtype is value.dtype)
    ):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return whole_attention(
            query, key, value, mask=mask, scale=scale, is_causal=is_causal, dropout_p=dropout_p, training=training
        )
    if scale is None:
        result = F.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal)
    else:
        result = F.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, scale=scale)
    return differentiable_twice(result) if result.requires_grad else result


def _seen_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, is_causal: bool,
    same_dtype: bool, whole: bool, same_length: bool, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    if (
        type(query) is not Tensor
        or training
        and dropout_p
        or forward_ad._current_level >= 0
        or is_causal
        and mask is not None
        or not (whole or _is_whole(query))
        or not (same_length or key.shape[-2] == value.shape[-2])
        or not same_dtype
        and not (query.dtype is key.dtype is value.dtype)
    ):
        return attention(
            query, key, value, mask, scale, is_causal, same_dtype, whole, same_length, dropout_p, training
        )  # fmt: skip
    if is_causal:  # torch parses a call with fewer arguments faster
        if scale is None:
            result = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            result = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    elif scale is None:
        if mask is None:
            result = F.scaled_dot_product_attention(query, key, value)
        else:
            result = F.scaled_dot_product_attention(query, key, value, mask)
    else:
        result = F.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    return differentiable_twice(result) if result.requires_grad else result


attention.seen = _seen_attention  # type: ignore[attr-defined]


@cache
def settled_attention(scale: float | None, is_causal: bool, masked: bool, leaves: bool) -> Callable[..., Tensor]:
    """`attention` of (query, key, value), and a mask if `masked`, where everything but the values is known.

    The operands are on a CPU in fp32 or fp64, in one dtype, with equal numbers of keys and values. With `leaves`, the
    caller may write to the result (`writable`).
    """

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        made = attention(query, key, value, mask, scale, is_causal, True, True, True)
        return writable(made) if leaves else made

    options: dict[str, Any] = {"is_causal": True} if is_causal else {}
    if scale is not None:
        options["scale"] = scale
    kernel: Callable[..., Tensor] = partial(F.scaled_dot_product_attention, **options) if options else _sdpa

    def of_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if type(query) is not Tensor or forward_ad._current_level >= 0:
            return run(query, key, value)
        made = kernel(query, key, value)
        return after(made) if made.requires_grad else made

    def of_kept(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if type(query) is not Tensor or forward_ad._current_level >= 0 or is_causal:
            return run(query, key, value, mask)
        made = kernel(query, key, value, mask)
        return after(made) if made.requires_grad else made

    def after(made: Tensor) -> Tensor:
        made = differentiable_twice(made)
        return writable(made) if leaves else made

    run.__name__ = run.__qualname__ = "attention_of_known_operands"
    run.seen = of_kept if masked else of_all  # type: ignore[attr-defined]
    if not (masked and is_causal):
        run.quiet = kernel  # type: ignore[attr-defined]
    run.leaving = lambda: settled_attention(scale, is_causal, masked, True)  # type: ignore[attr-defined]
    return run


_sdpa = F.scaled_dot_product_attention


def writable(x: Tensor) -> Tensor:
    """`x`, or an equal tensor if a backward pass needs `x` unchanged. The caller may write to the result.

    On a CPU the memory is copied only at a write.
    """
    if not x.requires_grad:
        return x
    plain = type(x) is Tensor and x.is_cpu and not torch.compiler.is_compiling() and peek_interpreter_stack() is None
    if not plain or forward_ad._current_level >= 0 or get_tracing_state() is not None:
        return x.clone()
    made: Tensor = lazy_clone(x)
    return made if made is not x else x.clone()  # this version of torch has no lazy clone


def unshared(x: Tensor) -> Tensor:
    """A tensor equal to `x` that later writes to `x` do not change; `x` itself if no backward pass needs it.

    On a CPU only, where memory is copied at a write. Elsewhere autograd raises an error for such a write.
    """
    return _lazy_copy_if_needed(x) if x.requires_grad and torch.is_grad_enabled() else x


def _lazy_copy_if_needed(x: Tensor) -> Tensor:
    if type(x) not in _PLAIN or not x.is_cpu or torch.compiler.is_compiling() or get_tracing_state() is not None:
        return x
    plain = peek_interpreter_stack() is None and forward_ad._current_level < 0
    if not plain or x.grad_fn is None or x._is_view() or not _is_held_once(x):
        return x.clone()
    try:
        made: Tensor = lazy_clone(x)
    except RuntimeError:  # torch does not own the memory
        return x.clone()
    return made if made is not x else x.clone()  # this version of torch has no lazy clone


def _is_held_once(x: Tensor) -> bool:
    """Whether no other object has the address of x's memory.

    A write moves `x` if its memory is shared. A numpy array would then keep the old address. torch does not allow to
    resize memory that it passed to numpy.
    """
    storage = x.untyped_storage()
    return storage.resizable() and storage_users(storage._cdata) == 2  # `x`, and `storage` here


_PLAIN = (Tensor, torch.nn.Parameter)


def _is_whole(x: Tensor) -> bool:
    """Whether only torch computes attention of such operands. Others have more than one provider."""
    return x.is_cpu and (x.dtype is torch.float32 or x.dtype is torch.float64)


def _seen_layer_norm(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    if RECORDERS or type(x) is not Tensor or x.numel() >= LEAST:
        return layer_norm(x, weight, bias, eps)
    return layer_norm_by_torch(x, weight, bias, eps)


def _layer_norm_apart(norm: Callable[..., Tensor], names: frozenset[str]) -> Callable[..., Tensor]:
    of_x, of_bias = "x" in names, "bias" in names

    def layer_norm_of_copies(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
        if torch.is_grad_enabled() and (x.requires_grad or isinstance(weight, Tensor) and weight.requires_grad):
            x = _lazy_copy_if_needed(x) if of_x else x
            bias = _lazy_copy_if_needed(bias) if of_bias and isinstance(bias, Tensor) else bias
        return norm(x, weight, bias, eps)

    name = f"layer_norm_apart_from_{'_and_'.join(sorted(names))}"
    layer_norm_of_copies.__name__ = layer_norm_of_copies.__qualname__ = name
    return layer_norm_of_copies


def _seen_dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    if RECORDERS or type(x) is not Tensor or x.numel() >= LEAST or norm != "layer" or training and dropout_p:
        return dropout_add_norm(  # type: ignore[call-overload, no-any-return]
            x, residual, weight, bias, eps=eps, dropout_p=dropout_p, training=training, norm=norm, prenorm=prenorm
        )
    total = residual + x
    normed = _seen_layer_norm(total, weight, bias, eps)
    return (total, normed) if prenorm else normed


layer_norm.seen = _seen_layer_norm  # type: ignore[attr-defined]
dropout_add_norm.seen = _seen_dropout_add_norm  # type: ignore[attr-defined]


def _layer_norms_apart() -> dict[frozenset[str], Callable[..., Tensor]]:
    found = {}
    for names in (frozenset({"x"}), frozenset({"bias"}), frozenset({"x", "bias"})):
        found[names] = _layer_norm_apart(layer_norm, names)
        found[names].seen = _layer_norm_apart(_seen_layer_norm, names)  # type: ignore[attr-defined]
    return found


@cache
def settled_layer_norm(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`norm`, a layer norm of this file or `ops.layer_norm`, of an argument of the forward."""
    of_any: Callable[..., Tensor] = norm.seen  # type: ignore[attr-defined]

    def run(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
        return norm(x, weight, bias, eps)

    def quiet(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
        if type(weight) not in _PLAIN or type(bias) not in _PLAIN or torch.is_grad_enabled():
            return of_any(x, weight, bias, eps)
        sizes, dtype = weight.shape, x.dtype  # type: ignore[union-attr]
        if len(sizes) != 1 or x.size(-1) != sizes[0] or not weight.dtype is bias.dtype is dtype:  # type: ignore[union-attr]
            return of_any(x, weight, bias, eps)
        return torch.layer_norm(x, sizes, weight, bias, eps)  # type: ignore[arg-type]  # it checks the sizes of the bias

    run.__name__ = run.__qualname__ = f"{norm.__name__}_of_an_argument"
    run.seen, run.quiet, run.below = of_any, quiet, LEAST  # type: ignore[attr-defined]
    return run


LAYER_NORMS_APART = _layer_norms_apart()  # layer norms whose gradients later writes to these operands do not change
