"""Operations for operands whose kind is known when code is written, and little is left to decide at run time.

Each computes what the operation of the same name in `autofuse.ops` computes, for any operands; the usual ones, which
the caller promises to be likely, go straight to torch's kernel. Its `seen` is the same for a call that no compiler, no
tracer, no mode of torch's dispatcher and no transform of torch.func looks at: it need not ask for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.operation import LEAST, OPERATIONS, RECORDERS
from autofuse.ops.activation_table import ACTIVATIONS
from autofuse.ops.affine import Affine
from autofuse.ops.attention import attention as whole_attention
from autofuse.ops.derivatives import differentiable_twice
from autofuse.ops.dropout_add_norm import dropout_add_norm
from autofuse.ops.layer_norm import layer_norm
from autofuse.ops.layer_norm import normed_by_torch as layer_norm_by_torch
from autofuse.torch_private import forward_ad, get_tracing_state, lazy_clone, peek_interpreter_stack

_is_compiling = torch.compiler.is_dynamo_compiling  # what else compiles hands in tensors of other types


@cache
def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation `name` for tensors of any shape, which go straight to torch where they are few elements."""
    operation, whole = OPERATIONS[name], ACTIVATIONS[name]
    of_torch, least = operation.torch.run, operation.least

    def lowered(x: Tensor) -> Tensor:
        watched = _is_compiling() or get_tracing_state() is not None or RECORDERS
        return whole(x) if watched or type(x) is not Tensor or x.numel() >= least else of_torch(x)

    def seen(x: Tensor) -> Tensor:
        return whole(x) if RECORDERS or type(x) is not Tensor or x.numel() >= least else of_torch(x)

    lowered.__name__ = lowered.__qualname__ = f"{name}_of_few_elements"
    lowered.seen = seen  # type: ignore[attr-defined]
    return lowered


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, is_causal: bool,
    same_dtype: bool, whole: bool, same_length: bool, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    """ops.attention outside of autocast, where the kernel likely takes its operands as they are.

    Shapes: query (B, H, T, d), key (B, H, S, d), value (B, H, S, d), contiguous in the last dimension. mask: boolean.
    scale: None for the kernel's own, 1 / sqrt(d). same_dtype: whether the operands are known to have one dtype; whole:
    whether they are known to lie on a CPU in fp32 or fp64, where torch alone computes attention; same_length: whether
    there are known to be as many values as keys, which torch's kernel does not ask.
    """
    if (
        type(query) is not Tensor  # distributed, say
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
    if is_causal:  # torch reads fewer arguments faster
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


def writable(x: Tensor) -> Tensor:
    """`x`, or what equals it where a backward pass needs `x` as it is: a write to the result leaves `x` alone.

    On a CPU the memory is copied only if somebody writes.
    """
    if not x.requires_grad:
        return x
    plain = type(x) is Tensor and x.is_cpu and not torch.compiler.is_compiling() and peek_interpreter_stack() is None
    if not plain or forward_ad._current_level >= 0 or get_tracing_state() is not None:
        return x.clone()
    made: Tensor = lazy_clone(x)
    return made if made is not x else x.clone()  # a torch that has none


def _is_whole(x: Tensor) -> bool:
    """Whether torch alone computes attention of such operands: others have more than one provider."""
    return x.is_cpu and (x.dtype is torch.float32 or x.dtype is torch.float64)


def _seen_layer_norm(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    if RECORDERS or type(x) is not Tensor or x.numel() >= LEAST:
        return layer_norm(x, weight, bias, eps)
    return layer_norm_by_torch(x, weight, bias, eps)


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
