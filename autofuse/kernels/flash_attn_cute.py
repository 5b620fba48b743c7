"""flash-attn-4: attention in CuTe DSL, in flash_attn.cute. flash-attn 2 may be installed next to it.

It has no dropout. This file follows version 4.0.0b36.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.attention_layouts import Window, attend_by_heads, attention_refusal, packed_refusal
from autofuse.kernels.package_functions import PackageFunction, first_result, once_differentiable, twice_differentiable
from autofuse.kernels.packages import FLASH_ATTN_4
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import HALVES, capability, device_capability, first_refusal, multiples_of, no_dropout

_WHOLE = (None, None)  # the window of all keys
_OPTIONS = ("softmax_scale", "causal", "window_size", "softcap", "deterministic")
_ATTENTION = PackageFunction("flash_attn.cute.interface", "flash_attn_func", ("q", "k", "v"), _OPTIONS)
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_VARLEN = PackageFunction(
    "flash_attn.cute.interface", "flash_attn_varlen_func", ("q", "k", "v"), (*_LENGTHS, *_OPTIONS)
)
_SINKS = PackageFunction("flash_attn.cute.interface", "flash_attn_func", ("q", "k", "v"), (*_OPTIONS, "learnable_sink"))
_HOPPER = (9, 0)


def _kernel_refusal(query: Tensor, key: Tensor, value: Tensor) -> str:
    """Supported head sizes by device. Below compute capability 9.0 there is no backward pass."""
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    deterministic = torch.are_deterministic_algorithms_enabled()
    found = device_capability(query)
    return first_refusal(
        capability(query, _HOPPER if training else (8, 0)),
        multiples_of((query.shape[-1], value.shape[-1]), 8),
        _width_refusal((query.shape[-1], value.shape[-1]), found),
        "It is not deterministic on this device." if deterministic and found is not None and found[0] == 12 else "",
    )


def _width_refusal(widths: tuple[int, int], found: tuple[int, int] | None) -> str:
    most = 256 if found is not None and found[0] == 9 else 128
    if found is not None and found[0] in (10, 11) and widths in ((192, 128), (256, 256)):
        return ""
    return "" if max(widths) <= most else f"On this device it supports a head_dim of at most {most}."


def _attention_refusal(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: Any = 1.0, dropout_p: float = 0.0,
    training: bool = False, is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
    window: Window | None = None,
) -> str:  # fmt: skip
    return attention_refusal(query, key, value, mask, scale, is_causal, mask_is_causal, window) or first_refusal(
        no_dropout(dropout_p, training),
        _kernel_refusal(query, key, value),
    )


def _attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: Any = 1.0, dropout_p: float = 0.0,
    training: bool = False, is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
    window: Window | None = None,
) -> Tensor:  # fmt: skip
    causal = is_causal or mask is not None and window is None  # the check accepts causal masks and windows only
    return _attend(query, key, value, scale, causal, 0.0, window)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, softcap: float,
    window: Window | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        deterministic = torch.are_deterministic_algorithms_enabled()
        if sinks is None:
            return first_result(
                _ATTENTION(
                    q, k, v, softmax_scale=scale, causal=causal, window_size=window or _WHOLE, softcap=softcap,
                    deterministic=deterministic,
                )
            )  # fmt: skip
        return first_result(
            _SINKS(
                q, k, v, softmax_scale=scale, causal=causal, softcap=softcap, deterministic=deterministic,
                learnable_sink=sinks,
            )
        )  # fmt: skip

    widths = (query.shape[-1], value.shape[-1])
    return attend_by_heads(attend, query, key, value, causal, equal_widths=widths != (192, 128))


def _soft_capped_refusal(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: Any = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    window: Window | None = None,
) -> str:  # fmt: skip
    return attention_refusal(query, key, value, mask, scale, is_causal, False, window) or first_refusal(
        no_dropout(dropout_p, training),
        "" if cap > 0 else "It needs a cap above 0.",
        "" if max(query.shape[-1], value.shape[-1]) <= 128 else "It supports caps for a head_dim of at most 128.",
        capability(query, _HOPPER),
        _kernel_refusal(query, key, value),
    )


def _soft_capped(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: Any = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
    window: Window | None = None,
) -> Tensor:  # fmt: skip
    # The kernel divides the scaled scores by the cap.
    return _attend(query, key, value, scale * cap, is_causal, cap, window)


def _sink_refusal(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *, mask: Tensor | None = None,
    scale: float | Tensor = 1.0, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
) -> str:  # fmt: skip
    return attention_refusal(query, key, value, mask, scale, is_causal, False) or first_refusal(
        no_dropout(dropout_p, training),
        "" if _is_one_for_each_head(sinks, query) else "It needs one sink for each head, as a floating-point tensor.",
        _device_refusal_of_sinks(query, sinks),
        _kernel_refusal(query, key, value),
    )


def _is_one_for_each_head(sinks: Tensor, query: Tensor) -> bool:
    heads = query.shape[1]
    of_heads = sinks.ndim >= 3 and sinks.shape[-3] == heads and sinks.numel() == heads
    return of_heads and sinks.dtype in (torch.float32, *HALVES) and sinks.device == query.device


def _device_refusal_of_sinks(query: Tensor, sinks: Tensor) -> str:
    """Sinks have a gradient on Hopper and on data center Blackwell. There they have no kernel for heads of 256."""
    found = device_capability(query)
    if found is None:
        return ""
    if found[0] in (10, 11) and query.shape[-1] == 256:
        return "On this device it supports sinks for a head_dim below 256."
    trains = torch.is_grad_enabled() and (query.requires_grad or sinks.requires_grad)
    return "On this device it computes no gradient for sinks." if trains and found[0] not in (9, 10, 11) else ""


def _with_sinks(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *, mask: Tensor | None = None, scale: Any = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
) -> Tensor:  # fmt: skip
    return _attend(query, key, value, scale, is_causal, 0.0, sinks=sinks.reshape(-1))


def _varlen_refusal(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int,
    *, scale: Any = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    return packed_refusal(query, key, value, cu_seqlens_q, cu_seqlens_k, is_causal) or first_refusal(
        no_dropout(dropout_p, training),
        _kernel_refusal(query, key, value),
    )


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int,
    *, scale: Any = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    output = _VARLEN(
        query, key, value, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_q, max_seqlen_k=max_k,
        softmax_scale=scale, causal=is_causal, softcap=0.0, deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return first_result(output)


_ITS_OWN = "flash-attn-4's own backward pass."
PROVIDERS = (
    Provider(
        "attention", "flash-attn-4", FLASH_ATTN_4, twice_differentiable("attention", _attention),
        "flash-attn-4's attention.", _ITS_OWN, _attention_refusal, devices=("cuda",), dtypes=HALVES,
    ),
    Provider(
        "soft_capped_attention", "flash-attn-4", FLASH_ATTN_4,
        twice_differentiable("soft_capped_attention", _soft_capped), "flash-attn-4's attention with soft-capping.",
        _ITS_OWN, _soft_capped_refusal, devices=("cuda",), dtypes=HALVES,
    ),
    Provider(
        "sink_attention", "flash-attn-4", FLASH_ATTN_4, twice_differentiable("sink_attention", _with_sinks),
        "flash-attn-4's attention with a learnable sink for each head.", _ITS_OWN, _sink_refusal, devices=("cuda",),
        dtypes=HALVES,
    ),
    Provider(
        "varlen_attention", "flash-attn-4", FLASH_ATTN_4, once_differentiable("flash-attn-4", _varlen),
        "flash-attn-4's attention of packed sequences.", _ITS_OWN, _varlen_refusal, devices=("cuda",), dtypes=HALVES,
    ),
)  # fmt: skip
