"""Attention of sequences of several lengths, packed one after another without padding.

Knows where each sequence starts; attention itself is autofuse/ops/attention.py's. Must not know how they were packed.
"""

from __future__ import annotations

import inspect
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import TORCH, Unavailable, loaded
from autofuse.kernels.provider import Provider
from autofuse.ops.attention import attention

_HALVES = (torch.float16, torch.bfloat16)
_NATIVE = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k")


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int, *,
    scale: float | None = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    """Each packed sequence's attention to its own keys: softmax(query @ key.mT * scale) @ value.

    Shapes: query (tokens, H, d), key (key tokens, G, d), value (key tokens, G, dv), G a divisor of H; the result is
    (tokens, H, dv). cu_seqlens_q and cu_seqlens_k: (sequences + 1,), int32 or int64: where sequences start, and the
    number of tokens; max_q, max_k: the longest lengths. scale: 1 / sqrt(d) if None. is_causal: query i of a sequence
    attends to its keys 0 to i. A sequence without keys gives 0.
    Raises ValueError where cumulative lengths do not fit the tokens.
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
    told = {"scale": scale, "is_causal": is_causal, "dropout_p": p, "training": True}
    if torch.compiler.is_compiling() or query.is_meta:
        return _as_one(query, key, value, cu_seqlens_q, cu_seqlens_k, told)
    return _one_by_one(query, key, value, cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), told)


def _check(query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> None:
    if not query.ndim == key.ndim == value.ndim == 3:
        raise ValueError(
            f"varlen_attention takes (tokens, heads, width), and was given shapes {tuple(query.shape)}, "
            f"{tuple(key.shape)} and {tuple(value.shape)}. Pack batches into one dimension of tokens."
        )
    if cu_seqlens_q.ndim != 1 or cu_seqlens_q.shape != cu_seqlens_k.shape or not cu_seqlens_q.numel():
        raise ValueError(
            "varlen_attention takes one start for each sequence and the number of tokens, for queries and keys alike, "
            f"and was given cumulative lengths of shapes {tuple(cu_seqlens_q.shape)} and {tuple(cu_seqlens_k.shape)}."
        )


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, starts: list[int], key_starts: list[int], told: dict[str, Any]
) -> Tensor:
    """Sequences of equal lengths that follow one another form a batch; each batch is a call."""
    for cumulative, x in ((starts, query), (key_starts, key)):
        if cumulative[0] != 0 or cumulative[-1] != x.shape[0] or cumulative != sorted(cumulative):
            raise ValueError(
                f"varlen_attention was given {x.shape[0]} tokens and cumulative lengths {cumulative}: they have to "
                "start at 0, not to fall, and to end at the number of tokens."
            )
    parts = []
    for first, last in _runs(starts, key_starts):
        q = _batch(query[starts[first] : starts[last]], last - first)
        k, v = (_batch(x[key_starts[first] : key_starts[last]], last - first) for x in (key, value))
        parts.append(attention(q, k, v, **told).transpose(1, 2).flatten(0, 1))
    if not parts:
        return query.new_empty(0, query.shape[1], value.shape[2])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _runs(starts: list[int], key_starts: list[int]) -> list[tuple[int, int]]:
    """Neighbouring sequences of equal lengths: the first, and the one after the last."""
    lengths = [(starts[i + 1] - starts[i], key_starts[i + 1] - key_starts[i]) for i in range(len(starts) - 1)]
    cuts = [i for i in range(1, len(lengths)) if lengths[i] != lengths[i - 1]]
    edges = [0, *cuts, len(lengths)] if lengths else []
    return list(pairwise(edges))


def _batch(x: Tensor, sequences: int) -> Tensor:
    """(tokens, heads, width) -> (sequences, heads, length, width)."""
    return x.reshape(sequences, x.shape[0] // sequences, *x.shape[1:]).transpose(1, 2)


def _as_one(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, told: dict[str, Any]
) -> Tensor:
    """All tokens as one sequence, in which a mask keeps each to its own: for compilers, which cannot know lengths."""
    rows, columns = (
        torch.arange(x.shape[0], device=x.device, dtype=starts.dtype) for x, starts in
        ((query, cu_seqlens_q), (key, cu_seqlens_k))
    )  # fmt: skip
    of_query, of_key = (
        torch.searchsorted(starts, places, right=True) - 1
        for starts, places in ((cu_seqlens_q, rows), (cu_seqlens_k, columns))
    )
    mask = of_query[:, None] == of_key
    if told["is_causal"]:
        mask = mask & ((rows - cu_seqlens_q[of_query])[:, None] >= columns - cu_seqlens_k[of_key])
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    return attention(q, k, v, mask=mask, **{**told, "is_causal": False})[0].transpose(0, 1)


# Torch's own kernel for packed sequences, on GPUs.


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
        return False  # it is causal from the bottom right, which is the same for as many keys as queries
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
    """torch.nn.attention.varlen.varlen_attn where it is there, and takes what is passed here; else None."""
    try:
        found = loaded("torch.nn.attention.varlen").varlen_attn
        parameters = inspect.signature(found).parameters
    except (Unavailable, AttributeError, TypeError, ValueError):
        return None
    takes = tuple(parameters)[: len(_NATIVE)] == _NATIVE and {"scale", "window_size"} <= set(parameters)
    return found if takes else None


_OP = Operation(
    "varlen_attention",
    (
        Provider(
            "varlen_attention", "torch", TORCH, _by_torch,
            "torch's varlen_attn on GPUs, in half precision; elsewhere attention of each run of equal lengths.",
            "Torch's own, or that of autofuse.ops.attention.",
        ),
    ),
)  # fmt: skip
