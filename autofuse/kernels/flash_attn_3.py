"""FlashAttention 3: attention for Hopper, in the module flash_attn_interface.

It has no dropout. Whether it is deterministic depends on width and version, so it is not used if results must repeat.
This file follows the repository as of 2026-08-15.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autofuse.kernels.attention_layouts import Window, attend_by_heads, attention_refusal, packed_refusal
from autofuse.kernels.package_functions import PackageFunction, first_result, once_differentiable, twice_differentiable
from autofuse.kernels.packages import FLASH_ATTN_3
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import HALVES, capability, device_capability, first_refusal, multiples_of, no_dropout

_WHOLE = (-1, -1)  # the window of all keys
_OPTIONS = ("softmax_scale", "causal", "window_size", "softcap")
_ATTENTION = PackageFunction("flash_attn_interface", "flash_attn_func", ("q", "k", "v"), _OPTIONS)
_VARLEN = PackageFunction(
    "flash_attn_interface", "flash_attn_varlen_func",
    ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"), _OPTIONS,
)  # fmt: skip
_HOPPER = (9, 0)
_WIDEST = 256


def _kernel_refusal(query: Tensor, value: Tensor) -> str:
    found = device_capability(query)
    widths = (query.shape[-1], value.shape[-1])
    return first_refusal(
        capability(query, _HOPPER),
        "It runs on Hopper (compute capability 9) only." if found is not None and found[0] != 9 else "",
        multiples_of(widths, 8),
        "" if max(widths) <= _WIDEST else f"It supports a head_dim of at most {_WIDEST}, not {max(widths)}.",
    )


def _attention_refusal(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: Any = 1.0, dropout_p: float = 0.0,
    training: bool = False, is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
    window: Window | None = None,
) -> str:  # fmt: skip
    return attention_refusal(query, key, value, mask, scale, is_causal, mask_is_causal, window) or first_refusal(
        no_dropout(dropout_p, training), _kernel_refusal(query, value)
    )


def _attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: Any = 1.0, dropout_p: float = 0.0,
    training: bool = False, is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
    window: Window | None = None,
) -> Tensor:  # fmt: skip
    causal = is_causal or mask is not None and window is None  # the check accepts causal masks and windows only
    return _attend(query, key, value, scale, causal, 0.0, window)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, softcap: float, window: Window | None
) -> Tensor:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return first_result(
            _ATTENTION(q, k, v, softmax_scale=scale, causal=causal, window_size=window or _WHOLE, softcap=softcap)
        )

    return attend_by_heads(attend, query, key, value, causal)


def _soft_capped_refusal(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: Any = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    window: Window | None = None,
) -> str:  # fmt: skip
    return attention_refusal(query, key, value, mask, scale, is_causal, False, window) or first_refusal(
        no_dropout(dropout_p, training),
        "" if cap > 0 else "It needs a cap above 0.",
        _kernel_refusal(query, value),
    )


def _soft_capped(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: Any = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    window: Window | None = None,
) -> Tensor:  # fmt: skip
    # The kernel divides the scaled scores by the cap.
    return _attend(query, key, value, scale * cap, is_causal, cap, window)


def _varlen_refusal(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int,
    *, scale: Any = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    return packed_refusal(query, key, value, cu_seqlens_q, cu_seqlens_k, is_causal) or first_refusal(
        no_dropout(dropout_p, training), _kernel_refusal(query, value)
    )


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int,
    *, scale: Any = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    output = _VARLEN(
        query, key, value, cu_seqlens_q, cu_seqlens_k, max_q, max_k, softmax_scale=scale, causal=is_causal, softcap=0.0
    )
    return first_result(output)


_ITS_OWN = "FlashAttention 3's own backward pass."
PROVIDERS = (
    Provider(
        "attention", "flash-attn-3", FLASH_ATTN_3, twice_differentiable("attention", _attention),
        "FlashAttention 3's attention.", _ITS_OWN, _attention_refusal, devices=("cuda",), dtypes=HALVES,
        deterministic=False,
    ),
    Provider(
        "soft_capped_attention", "flash-attn-3", FLASH_ATTN_3,
        twice_differentiable("soft_capped_attention", _soft_capped), "FlashAttention 3's attention with soft-capping.",
        _ITS_OWN, _soft_capped_refusal, devices=("cuda",), dtypes=HALVES, deterministic=False,
    ),
    Provider(
        "varlen_attention", "flash-attn-3", FLASH_ATTN_3, once_differentiable("flash-attn-3", _varlen),
        "FlashAttention 3's attention of packed sequences.", _ITS_OWN, _varlen_refusal, devices=("cuda",),
        dtypes=HALVES, deterministic=False,
    ),
)  # fmt: skip
