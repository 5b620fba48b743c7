"""flash-attn-4: attention in CuTe DSL, in the part of the flash_attn namespace that is called cute.

Knows how it is called and which devices and heads it takes; flash-attn 2 may or may not lie beside it. It has no
dropout. Version 4.0.0b36 was read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.attention_layouts import attendable, by_heads, packed_misfit
from autofuse.kernels.package_functions import PackageFunction, once_differentiable, result_alone, twice_differentiable
from autofuse.kernels.packages import FLASH_ATTN_4
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import HALVES, capability, device_capability, divides, first, no_dropout

_OPTIONS = ("softmax_scale", "causal", "softcap", "deterministic")
_ATTENTION = PackageFunction("flash_attn.cute.interface", "flash_attn_func", ("q", "k", "v"), _OPTIONS)
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_VARLEN = PackageFunction(
    "flash_attn.cute.interface", "flash_attn_varlen_func", ("q", "k", "v"), (*_LENGTHS, *_OPTIONS)
)
_HOPPER = (9, 0)


def _kernel_misfit(query: Tensor, key: Tensor, value: Tensor) -> str:
    """Head sizes by device, forward and backward alike; without a backward pass before compute capability 9.0."""
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    deterministic = torch.are_deterministic_algorithms_enabled()
    found = device_capability(query)
    return first(
        capability(query, _HOPPER if training else (8, 0)),
        divides((query.shape[-1], value.shape[-1]), 8),
        _width_misfit((query.shape[-1], value.shape[-1]), found),
        "It is not deterministic on this device." if deterministic and found is not None and found[0] == 12 else "",
    )


def _width_misfit(widths: tuple[int, int], found: tuple[int, int] | None) -> str:
    most = 256 if found is not None and found[0] == 9 else 128
    if found is not None and found[0] in (10, 11) and widths in ((192, 128), (256, 256)):
        return ""
    return "" if max(widths) <= most else f"On this device it takes heads of at most {most} entries."


def _attention_misfit(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: Any = 1.0, dropout_p: float = 0.0,
    training: bool = False, is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
) -> str:  # fmt: skip
    return attendable(query, key, value, mask, scale, is_causal, mask_is_causal) or first(
        no_dropout(dropout_p, training),
        _kernel_misfit(query, key, value),
    )


def _attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: Any = 1.0, dropout_p: float = 0.0,
    training: bool = False, is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
) -> Tensor:  # fmt: skip
    causal = is_causal or mask is not None  # a mask that passes the check is the causal one
    return _attended(query, key, value, scale, causal, 0.0)


def _attended(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, softcap: float) -> Tensor:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        deterministic = torch.are_deterministic_algorithms_enabled()
        return result_alone(
            _ATTENTION(q, k, v, softmax_scale=scale, causal=causal, softcap=softcap, deterministic=deterministic)
        )

    widths = (query.shape[-1], value.shape[-1])
    return by_heads(attend, query, key, value, causal, even=widths != (192, 128))


def _soft_capped_misfit(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: Any = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
) -> str:  # fmt: skip
    return attendable(query, key, value, mask, scale, is_causal, False) or first(
        no_dropout(dropout_p, training),
        "" if cap > 0 else "It takes a cap above 0.",
        "" if max(query.shape[-1], value.shape[-1]) <= 128 else "It caps scores of heads of at most 128 entries.",
        capability(query, _HOPPER),
        _kernel_misfit(query, key, value),
    )


def _soft_capped(
    query: Tensor, key: Tensor, value: Tensor, *, cap: float, scale: Any = 1.0, mask: Tensor | None = None,
    fill: float | None = None, dropout_p: float = 0.0, training: bool = False, is_causal: bool = False,
) -> Tensor:  # fmt: skip
    return _attended(query, key, value, scale * cap, is_causal, cap)  # it divides scaled scores by the cap itself


def _varlen_misfit(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int,
    *, scale: Any = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    return packed_misfit(query, key, value, cu_seqlens_q, cu_seqlens_k, is_causal) or first(
        no_dropout(dropout_p, training),
        _kernel_misfit(query, key, value),
    )


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_q: int, max_k: int,
    *, scale: Any = None, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    made = _VARLEN(
        query, key, value, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_q, max_seqlen_k=max_k,
        softmax_scale=scale, causal=is_causal, softcap=0.0, deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return result_alone(made)


_ITS_OWN = "flash-attn-4's own backward."
PROVIDERS = (
    Provider(
        "attention", "flash-attn-4", FLASH_ATTN_4, twice_differentiable("attention", _attention),
        "flash-attn-4's attention.", _ITS_OWN, _attention_misfit, devices=("cuda",), dtypes=HALVES,
    ),
    Provider(
        "soft_capped_attention", "flash-attn-4", FLASH_ATTN_4,
        twice_differentiable("soft_capped_attention", _soft_capped), "flash-attn-4's attention with soft-capping.",
        _ITS_OWN, _soft_capped_misfit, devices=("cuda",), dtypes=HALVES,
    ),
    Provider(
        "varlen_attention", "flash-attn-4", FLASH_ATTN_4, once_differentiable("flash-attn-4", _varlen),
        "flash-attn-4's attention of packed sequences.", _ITS_OWN, _varlen_misfit, devices=("cuda",), dtypes=HALVES,
    ),
)  # fmt: skip
