"""Attention: softmax(query @ key.mT, masked) @ value, if possible without forming the (query x key) matrix.

torch's scaled_dot_product_attention computes it, also on a CPU, if its flash kernel there accepts the operands. That
kernel supports neither dropout nor a mask that requires a gradient. These two cases, and half precision on CPUs whose
matrix units the flash kernel does not use, are computed in blocks (attention_blocks.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from autofuse.kernels import flex
from autofuse.kernels.attention_layouts import Window
from autofuse.kernels.operation import Operation, is_eager
from autofuse.kernels.packages import FLEX, TORCH
from autofuse.kernels.provider import Provider
from autofuse.ops.attention_backends import PROVIDERS as BACKENDS
from autofuse.ops.attention_blocks import attention_by_blocks
from autofuse.ops.attention_formula import attention_in_steps
from autofuse.ops.attention_operands import Operands, compute_dtype, dtypes_of, is_square_mask, operands, with_heads
from autofuse.ops.attention_thresholds import blocks_are_slower, steps_are_slower
from autofuse.ops.derivatives import differentiable_twice, needs_unfused_formula, unfused_attention
from autofuse.ops.distributed import attention_by_formula, attention_on_parts, is_distributed
from autofuse.ops.finite_fills import (
    attention_step_by_step,
    is_exact_as_sum,
    vanishes,
    weighs_nothing,
)
from autofuse.ops.kernel_masks import as_kernels_mask, window_of
from autofuse.ops.readable import can_look
from autofuse.torch_private import functional as F
from autofuse.torch_private import get_unwrapped, is_batchedtensor


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | Tensor = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False, fill: float | None = None,
    mask_is_causal: bool = False, kept: Tensor | None = None, repeats: int = 1,
) -> Tensor:  # fmt: skip
    """softmax(query @ key.mT * scale, masked) @ value, without forming the (query x key) matrix.

    Leading dimensions broadcast as in matmul. Keys and values may have fewer heads (dimension -3) than the query: with
    H heads of the query and G heads of keys, G a divisor of H, head h attends to head h // (H / G), and nothing is
    repeated in memory.

    Scores that a finite `fill` replaced still take part in the program's softmax. If they may have a weight there, or
    if a row contains nothing else, attention is computed in steps (finite_fills.py). Kernels have no forward-mode
    derivatives and no derivatives of gradients; these come from the unfused formula (derivatives.py).

    Args:
        query: shape (..., T, d).
        key: shape (..., S, d).
        value: shape (..., S, dv).
        mask: broadcasts to (..., T, S). A boolean mask is True where the query attends. Any other mask is added to the
            scores, and may require a gradient.
        scale: a number, or a tensor that broadcasts to (..., T, 1) and gets its gradient.
        dropout_p: the probability with which weights are dropped while `training`.
        training: whether dropout is active.
        is_causal: query i attends to keys 0 to i, also if T != S.
        fill: the number that replaces masked scores; a row without a key then attends to all keys evenly. None: such a
            row gives 0. With an added causal mask, the number that the mask adds.
        mask_is_causal: `mask` is proven to keep exactly keys 0 to i for query i if its last two sizes are T == S. The
            kernel's own causal path then replaces it.
        kept: for an added mask: the scores at False were overwritten before the mask was added, and count as 0.
        repeats: each head of keys and values stands for this many heads in a row.

    Returns:
        A tensor of shape (..., T, dv) in value's dtype.

    Raises:
        ValueError: if the scale differs from key to key, or query, key or value has one dimension only.
        RuntimeError: if the numbers of keys and values differ.

    Source: Vaswani et al., arXiv:1706.03762. The kernel: Dao, arXiv:2307.08691.
    """
    if repeats > 1:
        key, value = with_heads(query, key, value, repeats)
    if type(scale) in (float, int) and scale < 0:  # flash kernels subtract the largest score before they scale it
        query, scale = -query, -scale
    if mask is not None and kept is None and not is_causal:
        mask, is_causal, fill = as_kernels_mask(
            query, key, mask, fill, lambda f: weighs_nothing(f, query, key, scale, dtypes_of(query, key, value)[0])
        )
    if (
        mask is None
        and (fill is None or vanishes(fill, query.dtype))
        and not (training and dropout_p)
        and _is_usual(query, key, value, scale)
    ):
        return differentiable_twice(
            F.scaled_dot_product_attention(query, key, value, None, 0.0, is_causal, scale=scale)  # type: ignore[arg-type]
        )
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ValueError(_VECTORS.format(*(tuple(t.shape) for t in (query, key, value))))
    if key.shape[-2] != value.shape[-2]:  # torch's kernel does not check this, and would read out of bounds
        p = dropout_p if training else 0.0
        return attention_step_by_step(
            query, key, value, mask, scale, p, is_causal, fill, kept, dtypes_of(query, key, value)
        )
    if fill is not None or kept is not None or mask is not None and mask.dtype is not torch.bool:
        dtypes = dtypes_of(query, key, value)
        mask_is_causal = mask_is_causal and _may_be_causal(query, key, mask, scale, fill, dtypes[0])
        if not _is_exact(query, key, mask, scale, is_causal, fill, mask_is_causal, kept, dtypes[0]):
            p = dropout_p if training else 0.0
            return attention_step_by_step(query, key, value, mask, scale, p, is_causal, fill, kept, dtypes)
        if kept is not None and not can_look(query, kept):
            query = query.masked_fill(~kept.any(-1, keepdim=True), 0.0)
    window = window_of(
        query, key, mask, is_causal or mask_is_causal,
        lambda f: weighs_nothing(f, query, key, scale, dtypes_of(query, key, value)[0]),
    )  # fmt: skip
    result: Tensor = _OP(
        query, key, value, mask=mask, scale=scale, dropout_p=dropout_p, training=training, is_causal=is_causal,
        fill=fill, mask_is_causal=mask_is_causal, **window,
    )  # fmt: skip
    return result


_VECTORS = (
    "attention got a query, a key and a value of shapes {}, {} and {}: each needs at least two dimensions. Add a "
    "dimension to a vector with unsqueeze, and remove it from the result."
)


def _may_be_causal(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float | Tensor, fill: float | None, dtype: torch.dtype
) -> bool:
    """Whether the kernel's causal path may replace a causal mask: an added mask must add low enough numbers."""
    boolean = mask is None or mask.dtype is torch.bool
    return boolean or weighs_nothing(fill, query, key, scale, dtype)


def _is_exact(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float | Tensor, is_causal: bool, fill: float | None,
    mask_is_causal: bool, kept: Tensor | None, dtype: torch.dtype,
) -> bool:  # fmt: skip
    """Whether kernels, which leave out dropped scores, compute what the program computes."""
    if mask is None or mask.dtype is torch.bool:
        return weighs_nothing(fill, query, key, scale, dtype)
    if mask_is_causal and is_square_mask(mask, query.shape[-2], key.shape[-2]):
        return True
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, mask))
    return is_exact_as_sum(query, key, scale, mask, kept, fill, dtype, gradients)


def _is_usual(query: Tensor, key: Tensor, value: Tensor, scale: float | Tensor) -> bool:
    """Whether torch's flash kernel for CPUs accepts the operands unchanged, and the call is plain eager execution.

    No other provider competes for such a call. This check adds 1 microsecond to the kernel; the general path adds 16.
    """
    dtype, leading = query.dtype, query.shape[:-2]
    return (
        type(query) is type(key) is type(value) is Tensor  # excludes DTensor and other subclasses
        and query.is_cpu
        and (dtype is torch.float32 or dtype is torch.float64)
        and key.dtype is dtype
        and value.dtype is dtype
        and len(leading) == 2
        and key.shape[:-2] == leading
        and value.shape[:-2] == leading
        and key.shape[-2] == value.shape[-2]
        and query.shape[-1] == value.shape[-1]
        and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        and type(scale) is float
        and not torch.is_autocast_enabled("cpu")
        and is_eager()
    )


# Torch's scaled_dot_product_attention.

_HALVES = (torch.float16, torch.bfloat16)


def _by_torch(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | Tensor = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False, fill: float | None = None,
    mask_is_causal: bool = False, window: Window | None = None,
) -> Tensor:  # fmt: skip
    inputs = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    return inputs.restore(_attend_on_equal_widths(inputs, dropout_p if training else 0.0))


def _attend_on_equal_widths(inputs: Operands, p: float) -> Tensor:
    """Pads the narrower of keys and values with zeros. The fused kernels need equal widths; zeros change nothing."""
    query, key, value, mask, is_causal, scale = inputs[:6]
    missing = query.shape[-1] - value.shape[-1]
    if missing == 0:
        return _native(query, key, value, mask, p, is_causal, scale)
    if missing < 0:
        return _native(F.pad(query, (0, -missing)), F.pad(key, (0, -missing)), value, mask, p, is_causal, scale)
    return _native(query, key, F.pad(value, (0, missing)), mask, p, is_causal, scale)[..., : value.shape[-1]]


def _native(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float
) -> Tensor:
    query, key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
    if needs_unfused_formula(query, key, value) or mask is not None and _needs_gradient_below(mask):
        return unfused_attention(query, key, value, mask, p, is_causal, scale)
    if type(query) is not Tensor and is_distributed(query):
        return _attend_on_parts(query, key, value, mask, p, is_causal, scale)
    if p and mask is None and query.is_cpu and query.dtype not in _HALVES:
        # On a CPU torch falls back to its formula here, which scales query and key separately: 10 to 20 % slower.
        return _with_dropout(query, key, value, p, is_causal, scale)
    if query.shape[1] != key.shape[1]:
        if query.is_cuda and (mask is not None or query.dtype not in _HALVES):  # only the flash kernel supports groups
            key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
        return differentiable_twice(
            F.scaled_dot_product_attention(
                query, key, value, mask, p, is_causal, scale=scale, enable_gqa=key.shape[1] != query.shape[1]
            )
        )
    return differentiable_twice(F.scaled_dot_product_attention(query, key, value, mask, p, is_causal, scale=scale))


def _with_dropout(query: Tensor, key: Tensor, value: Tensor, p: float, is_causal: bool, scale: float) -> Tensor:
    if query.shape[1] != key.shape[1]:
        key, value = (t.repeat_interleave(query.shape[1] // key.shape[1], 1) for t in (key, value))
    scores = torch.matmul(query, key.mT) * scale
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -math.inf)
    return torch.matmul(torch.dropout(torch.softmax(scores, -1), p, True), value)


def _attend_on_parts(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float
) -> Tensor:
    """Runs the kernel on each rank's part. With dropout torch's own rules coordinate the ranks' generators."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return _native(query, key, value, mask, p, is_causal, scale)

    result = attention_on_parts(kernel, query, key, value, mask) if p == 0.0 else None
    return attention_by_formula(query, key, value, mask, p, is_causal, scale) if result is None else result


def _needs_gradient_below(mask: Tensor) -> bool:
    """Whether a tensor of vmap wraps one that requires a gradient. No kernel computes that gradient.

    A tensor of vmap itself always reports requires_grad=False.
    """
    if torch.compiler.is_compiling():
        return False
    while is_batchedtensor(mask):
        mask = get_unwrapped(mask)
        if mask.requires_grad:
            return True
    return False


# On a CPU: the formula in steps, and blocks.


def _in_steps(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | Tensor = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False, fill: float | None = None,
    mask_is_causal: bool = False, window: Window | None = None,
) -> Tensor:  # fmt: skip
    inputs = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    return inputs.restore(attention_in_steps(*inputs[:6]))


def _by_blocks(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | Tensor = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False, fill: float | None = None,
    mask_is_causal: bool = False, window: Window | None = None,
) -> Tensor:  # fmt: skip
    inputs = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    p = dropout_p if training else 0.0
    result = attention_by_blocks(inputs.query, inputs.key, inputs.value, inputs.mask, p, inputs.is_causal, inputs.scale)
    return inputs.restore(result)


def _size_check(slower: Callable[..., str]) -> Callable[..., str]:
    """The check of a provider that sizes decide about. `slower` returns the reason why another provider is faster."""

    def check(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, dropout_p: float = 0.0,
        training: bool = False, **others: object,
    ) -> str:  # fmt: skip
        dtype = compute_dtype(query, key, value)
        if dtype not in _DTYPES:
            return f"It computes in float32 and bfloat16, not in {dtype}."
        mask_gets_gradient = mask is not None and mask.requires_grad and torch.is_grad_enabled()
        return slower(query, key, dtype, training and dropout_p > 0, mask_gets_gradient)

    return check


_DTYPES = (torch.float32, torch.bfloat16)


# FlexAttention. It runs only where a measurement selects it.


def _by_flex(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | Tensor = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False, fill: float | None = None,
    mask_is_causal: bool = False, window: Window | None = None,
) -> Tensor:  # fmt: skip
    inputs = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    return inputs.restore(flex.attend(*inputs[:6], window=window))


def _flex_refusal(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, dropout_p: float = 0.0,
    training: bool = False, **others: object,
) -> str:  # fmt: skip
    if mask is None:
        return "It is for calls with a mask; without one torch's flash kernel computes the same."
    return flex.refusal(query, key, value, mask, dropout_p if training else 0.0)


def _sizes(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, dropout_p: float = 0.0,
    training: bool = False, is_causal: bool = False, window: Window | None = None, **others: object,
) -> tuple[int, ...]:  # fmt: skip
    """The key of a measurement: batches and heads, lengths, width, the kind of mask, causal, dropout."""
    kind = 0 if mask is None else 1 + (mask.dtype is not torch.bool) + mask.requires_grad
    kind = kind if window is None else 4 + sum(window).bit_length()  # kernels skip what is outside of a window
    shape, keys = query.shape, key.shape[-2]
    several = shape[:-2].numel().bit_length()
    return (
        several, shape[-2].bit_length(), keys.bit_length(), shape[-1], kind, is_causal, training and dropout_p > 0
    )  # fmt: skip


_OP = Operation(
    "attention",
    (
        Provider(
            "attention", "torch", TORCH, _by_torch, "torch's scaled_dot_product_attention.", "torch's own backward."
        ),
        Provider(
            "attention", "steps", TORCH, _in_steps,
            "Matrix products and a softmax in steps; the mask is added in the pass that scales.", "torch's own.",
            _size_check(steps_are_slower), devices=("cpu",), dtypes=_DTYPES, default=True,
        ),
        Provider(
            "attention", "blocks", TORCH, _by_blocks,
            "Blocks of scores that stay in the cache: torch's matrix products and softmax, dropout drawn from a seed.",
            "Our own, in the same blocks: small weights are saved, others are computed again.",
            _size_check(blocks_are_slower), devices=("cpu",), dtypes=_DTYPES, default=True,
        ),
        Provider(
            "attention", "flex", FLEX, _by_flex, "FlexAttention, compiled, with the mask in its score_mod.",
            "FlexAttention's own; none on a CPU.", _flex_refusal,
        ),
        *BACKENDS,
    ),
    least=1,
    sizes=_sizes,
)  # fmt: skip
