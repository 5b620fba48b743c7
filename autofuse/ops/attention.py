"""Attention: softmax(query @ key.mT, masked) @ value, never forming the (query x key) matrix where a kernel can.

Torch's scaled_dot_product_attention computes it, on CPU too, as long as its flash kernel there takes the operands: not
with dropout, nor a mask that needs a gradient. Those, and half precision on CPUs whose matrix units that kernel does
not use, go by blocks (attention_blocks.py). Knows what each takes; must not know where operands come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels import flex
from autofuse.kernels.operation import Operation, is_eager
from autofuse.kernels.packages import FLEX, TORCH
from autofuse.kernels.provider import Provider
from autofuse.ops.attention_backends import PROVIDERS as BACKENDS
from autofuse.ops.attention_blocks import attention_by_blocks
from autofuse.ops.attention_formula import attention_in_steps
from autofuse.ops.attention_operands import Operands, computed_in, covers_a_square, dtypes_of, operands, with_heads
from autofuse.ops.attention_thresholds import blocks_are_slower, steps_are_slower
from autofuse.ops.derivatives import beyond_kernels, differentiable_twice, unfused
from autofuse.ops.distributed import attention_by_formula, attention_on_parts, is_distributed
from autofuse.ops.finite_fills import (
    attention_step_by_step,
    is_exact_as_sum,
    vanishes,
    weighs_nothing,
)
from autofuse.ops.kernel_masks import as_kernels_mask
from autofuse.ops.readable import can_look
from autofuse.torch_private import get_unwrapped, is_batchedtensor


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | Tensor = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False, fill: float | None = None,
    mask_is_causal: bool = False, kept: Tensor | None = None, repeats: int = 1,
) -> Tensor:  # fmt: skip
    """softmax(query @ key.mT * scale, masked) @ value, never forming the (query x key) matrix.

    Shapes: query (..., T, d), key (..., S, d), value (..., S, dv); leading dimensions broadcast as in matmul, and the
    result is (..., T, dv) in value's dtype. Keys and values may have fewer heads (dimension -3) than the query, a
    divisor: head h of H attends by head h // (H / G) of G, and none is repeated in memory.
    mask: broadcasts to (..., T, S); boolean (True attends) or added to the scores, and then it may get its gradient.
    scale: a number, or a tensor that broadcasts to (..., T, 1), which gets its gradient.
    dropout_p: weights are dropped with this probability while `training`.
    is_causal: query i attends to keys 0 to i (with T != S too).
    fill: None: a row that keeps no key gives 0. A number: dropped scores were filled with it, so that such a row
    attends to all keys evenly, whatever its query. Beside an added mask that is causal it is what that adds.
    mask_is_causal: `mask` is proved to keep exactly keys 0 to i for query i wherever its last sizes are T == S; there
    the kernel's own causal path takes its place.
    kept: beside a mask that is added; where it is False the scores were overwritten before, and count as 0.
    repeats: keys and values stand for as many of each of their heads, one after the other.

    Where a score may be so low that one filled with a number weighs something beside it, or a row is left with fills
    alone, attention is computed step by step (finite_fills.py).

    Source: Vaswani et al., arXiv:1706.03762; the kernel is Dao's, arXiv:2307.08691. The derivatives that kernels do
    not have, forward mode and those of gradients, are taken of the unfused formula (derivatives.py).
    Raises ValueError for a scale that differs from key to key and for a query, key or value that is a vector,
    RuntimeError for more or fewer values than keys.
    """
    if repeats > 1:
        key, value = with_heads(query, key, value, repeats)
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
    if key.shape[-2] != value.shape[-2]:  # torch's kernel does not look
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
    result: Tensor = _OP(
        query, key, value, mask=mask, scale=scale, dropout_p=dropout_p, training=training, is_causal=is_causal,
        fill=fill, mask_is_causal=mask_is_causal,
    )  # fmt: skip
    return result


_VECTORS = (
    "attention was given a query, a key and a value of shapes {}, {} and {}: each needs two dimensions, rows and their "
    "entries. Give a vector a dimension with unsqueeze, and take it out of the result."
)


def _may_be_causal(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float | Tensor, fill: float | None, dtype: torch.dtype
) -> bool:
    """Whether a causal mask that is added may be left out: what it adds has to be low enough."""
    boolean = mask is None or mask.dtype is torch.bool
    return boolean or weighs_nothing(fill, query, key, scale, dtype)


def _is_exact(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float | Tensor, is_causal: bool, fill: float | None,
    mask_is_causal: bool, kept: Tensor | None, dtype: torch.dtype,
) -> bool:  # fmt: skip
    """Whether kernels, which leave dropped scores out, give what the program gives."""
    if mask is None or mask.dtype is torch.bool:
        return weighs_nothing(fill, query, key, scale, dtype)
    if mask_is_causal and covers_a_square(mask, query.shape[-2], key.shape[-2]):
        return True
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, mask))
    return is_exact_as_sum(query, key, scale, mask, kept, fill, dtype, gradients)


def _is_usual(query: Tensor, key: Tensor, value: Tensor, scale: float | Tensor) -> bool:
    """Whether operands are as torch's flash kernel for CPUs takes them, and nobody asks for more than eager execution.

    There is no other provider for such a call. It costs 1 microsecond more than the kernel's own, the long way 16.
    """
    dtype, leading = query.dtype, query.shape[:-2]
    return (
        type(query) is type(key) is type(value) is Tensor  # not distributed, say
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
    mask_is_causal: bool = False,
) -> Tensor:  # fmt: skip
    given = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    return given.restored(_on_equal_widths(given, dropout_p if training else 0.0))


def _on_equal_widths(given: Operands, p: float) -> Tensor:
    """The fused kernels take keys and values of one width only: zeros beside the narrower change nothing."""
    query, key, value, mask, is_causal, scale = given[:6]
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
    if beyond_kernels(query, key, value) or mask is not None and _needs_gradient_below(mask):
        return unfused(query, key, value, mask, p, is_causal, scale)
    if type(query) is not Tensor and is_distributed(query):
        return _on_parts(query, key, value, mask, p, is_causal, scale)
    if p and mask is None and query.is_cpu and query.dtype not in _HALVES:
        # torch has no kernel for that on a CPU: its formula scales query and key apart, and takes 10 to 20 % longer.
        return _with_dropout(query, key, value, p, is_causal, scale)
    if query.shape[1] != key.shape[1]:
        if query.is_cuda and (mask is not None or query.dtype not in _HALVES):  # only its flash kernel takes groups
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


def _on_parts(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float
) -> Tensor:
    """The kernel on each rank's part; dropout is left to torch, which knows how ranks draw."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return _native(query, key, value, mask, p, is_causal, scale)

    found = attention_on_parts(kernel, query, key, value, mask) if p == 0.0 else None
    return attention_by_formula(query, key, value, mask, p, is_causal, scale) if found is None else found


def _needs_gradient_below(mask: Tensor) -> bool:
    """Whether a tensor of vmap's, which never says so, stands for one that needs a gradient, which no kernel gives."""
    if torch.compiler.is_compiling():
        return False
    while is_batchedtensor(mask):
        mask = get_unwrapped(mask)
        if mask.requires_grad:
            return True
    return False


# The formula and blocks, on a CPU.


def _in_steps(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | Tensor = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False, fill: float | None = None,
    mask_is_causal: bool = False,
) -> Tensor:  # fmt: skip
    given = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    return given.restored(attention_in_steps(*given[:6]))


def _by_blocks(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | Tensor = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False, fill: float | None = None,
    mask_is_causal: bool = False,
) -> Tensor:  # fmt: skip
    given = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    p = dropout_p if training else 0.0
    made = attention_by_blocks(given.query, given.key, given.value, given.mask, p, given.is_causal, given.scale)
    return given.restored(made)


def _unsuited(slower: Callable[..., str]) -> Callable[..., str]:
    """The check of a provider that is chosen by sizes: `slower` says why another is faster."""

    def unsuited(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, dropout_p: float = 0.0,
        training: bool = False, **others: object,
    ) -> str:  # fmt: skip
        dtype = computed_in(query, key, value)
        if dtype not in _TAKEN:
            return f"It computes in float32 and bfloat16, not in {dtype}."
        learned = mask is not None and mask.requires_grad and torch.is_grad_enabled()
        return slower(query, key, dtype, training and dropout_p > 0, learned)

    return unsuited


_TAKEN = (torch.float32, torch.bfloat16)


# FlexAttention, where it was measured to be best.


def _by_flex(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | Tensor = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False, fill: float | None = None,
    mask_is_causal: bool = False,
) -> Tensor:  # fmt: skip
    given = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    return given.restored(flex.attend(*given[:6]))


def _unsuited_to_flex(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, dropout_p: float = 0.0,
    training: bool = False, **others: object,
) -> str:  # fmt: skip
    if mask is None:
        return "It is for masks; without one torch's flash kernel computes the same."
    return flex.misfit(query, key, value, mask, dropout_p if training else 0.0)


def _sizes(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, dropout_p: float = 0.0,
    training: bool = False, is_causal: bool = False, **others: object,
) -> tuple[int, ...]:  # fmt: skip
    """Batches and heads, lengths, width, and what decides which kernels there are: the mask's kind, dropout."""
    kind = 0 if mask is None else 1 + (mask.dtype is not torch.bool) + mask.requires_grad
    shape, keys = query.shape, key.shape[-2]
    several = shape[:-2].numel().bit_length()
    return (
        several, shape[-2].bit_length(), keys.bit_length(), shape[-1], kind, is_causal, training and dropout_p > 0
    )  # fmt: skip


_OP = Operation(
    "attention",
    (
        Provider(
            "attention", "torch", TORCH, _by_torch, "torch's scaled_dot_product_attention.", "Torch's own backward."
        ),
        Provider(
            "attention", "steps", TORCH, _in_steps,
            "Matrix products and a softmax one by one, the mask added in the pass that scales.", "Torch's own.",
            _unsuited(steps_are_slower), devices=("cpu",), dtypes=_TAKEN, default=True,
        ),
        Provider(
            "attention", "blocks", TORCH, _by_blocks,
            "Blocks of scores that stay in the cache: torch's matrix products and softmax, dropout drawn from a seed.",
            "Our own, by the same blocks: weights are kept where they are small, else computed again.",
            _unsuited(blocks_are_slower), devices=("cpu",), dtypes=_TAKEN, default=True,
        ),
        Provider(
            "attention", "flex", FLEX, _by_flex, "FlexAttention, compiled, with the mask in its score_mod.",
            "FlexAttention's own; none on a CPU.", _unsuited_to_flex,
        ),
        *BACKENDS,
    ),
    least=1,
    sizes=_sizes,
)  # fmt: skip
