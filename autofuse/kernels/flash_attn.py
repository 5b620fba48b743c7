"""flash-attn 2: attention. Its other kernels are in flash_attn_parts.py. This file follows version 2.8.3."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.attention_layouts import Window, attend_by_heads, attention_refusal, packed_refusal
from autofuse.kernels.package_functions import PackageFunction, once_differentiable, twice_differentiable
from autofuse.kernels.packages import FLASH_ATTN
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import HALVES, capability, device_capability, first_refusal, no_dropout

_LEAST = (8, 0)
_WHOLE = (-1, -1)  # the window of all keys
_OPTIONS = ("dropout_p", "softmax_scale", "causal", "window_size", "softcap", "deterministic")
_ATTENTION = PackageFunction("flash_attn.flash_attn_interface", "flash_attn_func", ("q", "k", "v"), _OPTIONS)
_VARLEN = PackageFunction(
    "flash_attn.flash_attn_interface", "flash_attn_varlen_func",
    ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"), _OPTIONS,
)  # fmt: skip


def _attention_refusal(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: Any = 1.0, dropout_p: float = 0.0,
    training: bool = False, is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
    window: Window | None = None,
) -> str:  # fmt: skip
    p = dropout_p if training else 0.0
    refusal = attention_refusal(query, key, value, mask, scale, is_causal, mask_is_causal, window)
    return refusal or _kernel_refusal(query, value, p)


def _kernel_refusal(query: Tensor, value: Tensor, p: float) -> str:
    width = max(query.shape[-1], value.shape[-1])
    return first_refusal(
        "" if width <= 256 else f"It supports a head_dim of at most 256, not {width}.",
        "" if p < 1 else "It needs a dropout probability below 1.",
        capability(query, _LEAST),
        _wide_dropout_refusal(query, width, p),
    )


def _wide_dropout_refusal(query: Tensor, width: int, p: float) -> str:
    """The backward pass of wide heads with dropout needs the shared memory of data center GPUs."""
    if width <= 192 or not p or device_capability(query) in (None, (8, 0), (9, 0), (10, 0)):
        return ""
    return "On this device its backward pass supports dropout only for a head_dim of at most 192."


def _attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: Any = 1.0, dropout_p: float = 0.0,
    training: bool = False, is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
    window: Window | None = None,
) -> Tensor:  # fmt: skip
    causal = is_causal or mask is not None and window is None  # the check accepts causal masks and windows only

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result: Tensor = _ATTENTION(
            q, k, v, dropout_p=dropout_p if training else 0.0, softmax_scale=scale, causal=causal,
            window_size=window or _WHOLE, softcap=0.0,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
        return result

    return attend_by_heads(attend, query, key, value, causal)


def _derived_attention(*args: Any, dropout_p: float = 0.0, training: bool = False, **kwargs: Any) -> Any:
    """Attention with its derivatives. With dropout it has no second one: only the kernel knows the dropped weights."""
    run = _attention_with_dropout if training and dropout_p else _attention_without_dropout
    return run(*args, dropout_p=dropout_p, training=training, **kwargs)


_attention_with_dropout = once_differentiable("flash-attn", _attention)
_attention_without_dropout = twice_differentiable("attention", _attention)


def _soft_capped_refusal(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: Any = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    window: Window | None = None,
) -> str:  # fmt: skip
    return attention_refusal(query, key, value, mask, scale, is_causal, False, window) or first_refusal(
        no_dropout(dropout_p, training),
        "" if cap > 0 else "It needs a cap above 0.",
        _kernel_refusal(query, value, 0.0),
    )


def _soft_capped(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: Any = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    window: Window | None = None,
) -> Tensor:  # fmt: skip
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result: Tensor = _ATTENTION(  # the kernel divides the scaled scores by the cap
            q, k, v, dropout_p=0.0, softmax_scale=scale * cap, causal=is_causal,
            window_size=window or _WHOLE, softcap=cap,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
        return result

    return attend_by_heads(attend, query, key, value, is_causal)


def _varlen_refusal(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int,
    *, scale: Any = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    p = dropout_p if training else 0.0
    refusal = packed_refusal(query, key, value, cu_seqlens_q, cu_seqlens_k, is_causal)
    return refusal or _kernel_refusal(query, value, p)


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int,
    *, scale: Any = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> Any:  # fmt: skip
    return _VARLEN(
        query, key, value, cu_seqlens_q, cu_seqlens_k, max_q, max_k, dropout_p=dropout_p if training else 0.0,
        softmax_scale=scale, causal=is_causal, softcap=0.0,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip


_ITS_OWN = "flash-attn's own backward pass."
PROVIDERS = (
    Provider(
        "attention", "flash-attn", FLASH_ATTN, _derived_attention, "flash-attn 2's attention.", _ITS_OWN,
        _attention_refusal, devices=("cuda",), dtypes=HALVES,
    ),
    Provider(
        "soft_capped_attention", "flash-attn", FLASH_ATTN, twice_differentiable("soft_capped_attention", _soft_capped),
        "flash-attn 2's attention with soft-capping.", _ITS_OWN, _soft_capped_refusal, devices=("cuda",), dtypes=HALVES,
    ),
    Provider(
        "varlen_attention", "flash-attn", FLASH_ATTN, once_differentiable("flash-attn", _varlen),
        "flash-attn 2's attention of packed sequences.", _ITS_OWN, _varlen_refusal, devices=("cuda",), dtypes=HALVES,
    ),
)  # fmt: skip
