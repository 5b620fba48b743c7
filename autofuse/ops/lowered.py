"""Operations for operands whose kind is known when code is written, and little is left to decide at run time.

Each computes what the operation of the same name in `autofuse.ops` computes, for any operands; the usual ones, which
the caller promises to be likely, go straight to torch's kernel. Its `seen` is the same for a call that no compiler, no
tracer, no mode of torch's dispatcher and no transform of torch.func looks at: it need not ask for them. A settled
operation, whose operands are arguments of the forward, has a `quiet` one too: no operand requires grad or has a
tangent, and each has fewer than `below` elements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

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
from autofuse.torch_private import forward_ad, get_tracing_state, lazy_clone, peek_interpreter_stack, storage_users

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


@cache
def settled_activation(name: str) -> Callable[[Tensor], Tensor]:
    """`activation` of an argument of the forward, of which is known what `seen` asks."""
    of_any, operation = activation(name), OPERATIONS[name]

    def lowered(x: Tensor) -> Tensor:
        return of_any(x)

    lowered.__name__ = lowered.__qualname__ = f"{name}_of_an_argument"
    lowered.seen = of_any.seen  # type: ignore[attr-defined]
    lowered.quiet, lowered.below = operation.torch.run, operation.least  # type: ignore[attr-defined]
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


@cache
def settled_attention(scale: float | None, is_causal: bool, masked: bool, leaves: bool) -> Callable[..., Tensor]:
    """`attention` of (query, key, value), and of a mask where it is `masked`, of which all is known but the numbers.

    The operands lie on a CPU in fp32 or fp64, all in one dtype, with as many values as keys. `leaves`: the result is
    one that the caller may write to (`writable`).
    """

    def lowered(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        made = attention(query, key, value, mask, scale, is_causal, True, True, True)
        return writable(made) if leaves else made

    given: dict[str, Any] = {"is_causal": True} if is_causal else {}
    if scale is not None:
        given["scale"] = scale
    kernel: Callable[..., Tensor] = partial(F.scaled_dot_product_attention, **given) if given else _sdpa

    def of_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if type(query) is not Tensor or forward_ad._current_level >= 0:
            return lowered(query, key, value)
        made = kernel(query, key, value)
        return after(made) if made.requires_grad else made

    def of_kept(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if type(query) is not Tensor or forward_ad._current_level >= 0 or is_causal:
            return lowered(query, key, value, mask)
        made = kernel(query, key, value, mask)
        return after(made) if made.requires_grad else made

    def after(made: Tensor) -> Tensor:
        made = differentiable_twice(made)
        return writable(made) if leaves else made

    lowered.__name__ = lowered.__qualname__ = "attention_of_known_operands"
    lowered.seen = of_kept if masked else of_all  # type: ignore[attr-defined]
    if not (masked and is_causal):
        lowered.quiet = kernel  # type: ignore[attr-defined]
    lowered.leaving = lambda: settled_attention(scale, is_causal, masked, True)  # type: ignore[attr-defined]
    return lowered


_sdpa = F.scaled_dot_product_attention


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


def unshared(x: Tensor) -> Tensor:
    """What equals `x` now, and is not changed by a later write to `x`; `x` itself where no backward pass needs it.

    Only on a CPU, where the memory of what was computed is copied only if somebody writes; elsewhere autograd raises an
    error for such a write.
    """
    return _apart(x) if x.requires_grad and torch.is_grad_enabled() else x


def _apart(x: Tensor) -> Tensor:
    if type(x) not in _PLAIN or not x.is_cpu or torch.compiler.is_compiling() or get_tracing_state() is not None:
        return x
    plain = peek_interpreter_stack() is None and forward_ad._current_level < 0
    if not plain or x.grad_fn is None or x._is_view() or not _is_held_once(x):
        return x.clone()
    try:
        made: Tensor = lazy_clone(x)
    except RuntimeError:  # the memory is another's
        return x.clone()
    return made if made is not x else x.clone()  # a torch that has none


def _is_held_once(x: Tensor) -> bool:
    """Whether nobody else has the address of what `x` holds: a write moves `x` where its memory is shared, and an array
    of numpy would go on with the place where it was. torch forbids to resize what numpy was given."""
    storage = x.untyped_storage()
    return storage.resizable() and storage_users(storage._cdata) == 2  # by `x`, and by `storage` here


_PLAIN = (Tensor, torch.nn.Parameter)


def _is_whole(x: Tensor) -> bool:
    """Whether torch alone computes attention of such operands: others have more than one provider."""
    return x.is_cpu and (x.dtype is torch.float32 or x.dtype is torch.float64)


def _seen_layer_norm(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    if RECORDERS or type(x) is not Tensor or x.numel() >= LEAST:
        return layer_norm(x, weight, bias, eps)
    return layer_norm_by_torch(x, weight, bias, eps)


def _layer_norm_apart(norm: Callable[..., Tensor], names: frozenset[str]) -> Callable[..., Tensor]:
    of_x, of_bias = "x" in names, "bias" in names

    def apart(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
        if torch.is_grad_enabled() and (x.requires_grad or isinstance(weight, Tensor) and weight.requires_grad):
            x = _apart(x) if of_x else x
            bias = _apart(bias) if of_bias and isinstance(bias, Tensor) else bias
        return norm(x, weight, bias, eps)

    apart.__name__ = apart.__qualname__ = f"layer_norm_apart_from_{'_and_'.join(sorted(names))}"
    return apart


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

    def lowered(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
        return norm(x, weight, bias, eps)

    def quiet(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
        if type(weight) not in _PLAIN or type(bias) not in _PLAIN or torch.is_grad_enabled():
            return of_any(x, weight, bias, eps)
        sizes, dtype = weight.shape, x.dtype  # type: ignore[union-attr]
        if len(sizes) != 1 or x.size(-1) != sizes[0] or not weight.dtype is bias.dtype is dtype:  # type: ignore[union-attr]
            return of_any(x, weight, bias, eps)
        return torch.layer_norm(x, sizes, weight, bias, eps)  # type: ignore[arg-type]  # which compares the bias's sizes

    lowered.__name__ = lowered.__qualname__ = f"{norm.__name__}_of_an_argument"
    lowered.seen, lowered.quiet, lowered.below = of_any, quiet, LEAST  # type: ignore[attr-defined]
    return lowered


LAYER_NORMS_APART = _layer_norms_apart()  # layer norms that later writes to these operands do not reach
