"""Attention of packed sequences of different lengths, without padding."""

from __future__ import annotations

import inspect
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import TORCH, Unavailable, load_module
from autofuse.kernels.provider import Provider
from autofuse.ops.attention import attention

_HALVES = (torch.float16, torch.bfloat16)
_NATIVE = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k")


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int, *,
    scale: float | None = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(query @ key.mT * scale) @ value, for each packed sequence with its own keys.

    Args:
        query: shape (tokens, H, d).
        key: shape (key tokens, G, d), G a divisor of H.
        value: shape (key tokens, G, dv).
        cu_seqlens_q: shape (sequences + 1,), int32 or int64: where each sequence starts, and the number of tokens.
        cu_seqlens_k: the same for keys.
        max_q: the length of the longest sequence.
        max_k: the length of the longest sequence of keys.
        scale: the factor of the scores; None means 1 / sqrt(d).
        is_causal: query i of a sequence attends to its keys 0 to i.
        dropout_p: the probability with which weights are dropped while `training`.
        training: whether dropout is active.

    Returns:
        A tensor of shape (tokens, H, dv). A sequence without keys gives 0.

    Raises:
        ValueError: if cumulative lengths do not fit the tokens.
    """
    result: Tensor = _OP(
        query, key, value, cu_seqlens_q, cu_seqlens_k, max_q, max_k, scale=scale, is_causal=is_causal,
        dropout_p=dropout_p, training=training,
    )  # fmt: skip
    return result


def _by_torch(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int, *,
    scale: float | None = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    _check(query, key, value, cu_seqlens_q, cu_seqlens_k)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    p = dropout_p if training else 0.0
    if _has_kernel(query, key, value, cu_seqlens_q, cu_seqlens_k, is_causal, p):
        return _by_kernel(query, key, value, cu_seqlens_q, cu_seqlens_k, max_q, max_k, scale, is_causal)
    options = {"scale": scale, "is_causal": is_causal, "dropout_p": p, "training": True}
    if torch.compiler.is_compiling() or query.is_meta:
        return _as_one(query, key, value, cu_seqlens_q, cu_seqlens_k, options)
    return _one_by_one(query, key, value, cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), options)


def _check(query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> None:
    if not query.ndim == key.ndim == value.ndim == 3:
        raise ValueError(
            f"varlen_attention takes (tokens, heads, head_dim), but got shapes {tuple(query.shape)}, "
            f"{tuple(key.shape)} and {tuple(value.shape)}. Pack batches into one dimension of tokens."
        )
    if cu_seqlens_q.ndim != 1 or cu_seqlens_q.shape != cu_seqlens_k.shape or not cu_seqlens_q.numel():
        raise ValueError(
            "varlen_attention takes cumulative lengths of shape (sequences + 1,), for queries and keys alike, "
            f"but got shapes {tuple(cu_seqlens_q.shape)} and {tuple(cu_seqlens_k.shape)}."
        )


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, starts: list[int], key_starts: list[int], options: dict[str, Any]
) -> Tensor:
    """Consecutive sequences of equal lengths form a batch. Each batch is one call.

    Raises:
        ValueError: if the cumulative lengths do not fit the tokens.
    """
    for cumulative, x in ((starts, query), (key_starts, key)):
        if cumulative[0] != 0 or cumulative[-1] != x.shape[0] or cumulative != sorted(cumulative):
            raise ValueError(
                f"varlen_attention got {x.shape[0]} tokens and cumulative lengths {cumulative}. They must start at 0, "
                "never decrease, and end at the number of tokens."
            )
    parts = []
    for first, last in _runs(starts, key_starts):
        q = _batch(query[starts[first] : starts[last]], last - first)
        k, v = (_batch(x[key_starts[first] : key_starts[last]], last - first) for x in (key, value))
        parts.append(attention(q, k, v, **options).transpose(1, 2).flatten(0, 1))
    if not parts:
        return query.new_empty(0, query.shape[1], value.shape[2])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _runs(starts: list[int], key_starts: list[int]) -> list[tuple[int, int]]:
    """Runs of consecutive sequences with equal lengths: the first sequence, and the one after the last."""
    lengths = [(starts[i + 1] - starts[i], key_starts[i + 1] - key_starts[i]) for i in range(len(starts) - 1)]
    cuts = [i for i in range(1, len(lengths)) if lengths[i] != lengths[i - 1]]
    edges = [0, *cuts, len(lengths)] if lengths else []
    return list(pairwise(edges))


def _batch(x: Tensor, sequences: int) -> Tensor:
    """(tokens, heads, head_dim) -> (sequences, heads, length, head_dim)."""
    return x.reshape(sequences, x.shape[0] // sequences, *x.shape[1:]).transpose(1, 2)


def _as_one(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, options: dict[str, Any]
) -> Tensor:
    """Treats all tokens as one sequence with a mask. For compilers, which do not know the lengths."""
    rows, columns = (
        torch.arange(x.shape[0], device=x.device, dtype=starts.dtype) for x, starts in
        ((query, cu_seqlens_q), (key, cu_seqlens_k))
    )  # fmt: skip
    of_query, of_key = (
        torch.searchsorted(starts, places, right=True) - 1
        for starts, places in ((cu_seqlens_q, rows), (cu_seqlens_k, columns))
    )
    mask = of_query[:, None] == of_key
    if options["is_causal"]:
        mask = mask & ((rows - cu_seqlens_q[of_query])[:, None] >= columns - cu_seqlens_k[of_key])
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    return attention(q, k, v, mask=mask, **{**options, "is_causal": False})[0].transpose(0, 1)


# torch's kernel for packed sequences, on GPUs.


def _has_kernel(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, key_starts: Tensor, is_causal: bool, p: float
) -> bool:
    if query.device.type != "cuda" or query.dtype not in _HALVES or p or torch.is_autocast_enabled("cuda"):
        return False
    if not query.dtype is key.dtype is value.dtype or not query.shape[-1] == key.shape[-1] == value.shape[-1] <= 256:
        return False
    if not query.numel() or not key.numel() or query.shape[1] != key.shape[1]:
        return False
    if is_causal and starts is not key_starts:
        return False  # the kernel aligns causal masks at the bottom right, which is equal only for equal lengths
    return starts.dtype is torch.int32 and key_starts.dtype is torch.int32 and _kernel() is not None


def _by_kernel(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, key_starts: Tensor, max_q: int, max_k: int,
    scale: float, is_causal: bool,
) -> Tensor:  # fmt: skip
    kernel: Any = _kernel()
    window = (-1, 0) if is_causal else (-1, -1)
    result: Tensor = kernel(query, key, value, starts, key_starts, max_q, max_k, scale=scale, window_size=window)
    return result


@cache
def _kernel() -> Any:
    """torch.nn.attention.varlen.varlen_attn, or None if it is missing or has other parameters."""
    try:
        found = load_module("torch.nn.attention.varlen").varlen_attn
        parameters = inspect.signature(found).parameters
    except (Unavailable, AttributeError, TypeError, ValueError):
        return None
    accepts_our_arguments = tuple(parameters)[: len(_NATIVE)] == _NATIVE and {"scale", "window_size"} <= set(parameters)
    return found if accepts_our_arguments else None


_OP = Operation(
    "varlen_attention",
    (
        Provider(
            "varlen_attention", "torch", TORCH, _by_torch,
            "torch's varlen_attn on GPUs in half precision; otherwise attention of each run of equal lengths.",
            "torch's own, or that of autofuse.ops.attention.",
        ),
    ),
)  # fmt: skip
