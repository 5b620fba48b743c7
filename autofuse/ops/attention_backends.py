"""torch's scaled_dot_product_attention with one of its CUDA kernels: cuDNN, FlashAttention 2, or the efficient kernel.

The fastest of them depends on the GPU, the shape and the version, but torch chooses in a fixed order. So each kernel is
a provider of its own, which runs where a measurement found it the fastest. If torch reports that the kernel does not
support a call, the check refuses. cuDNN supports groups of heads together with a mask, so keys and values need not be
repeated for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from autofuse.kernels.attention_layouts import Window
from autofuse.kernels.packages import TORCH
from autofuse.kernels.provider import HALVES_AND_SINGLE, Provider
from autofuse.kernels.requirements import HALVES
from autofuse.ops.attention_operands import Operands, operands
from autofuse.ops.derivatives import differentiable_twice, needs_unfused_formula
from autofuse.torch_private import functional as F

_NOT_HERE = "torch has no such kernel for these operands on this device."


def _attend(
    backend: SDPBackend, groups_with_masks: bool, query: Tensor, key: Tensor, value: Tensor, *,
    mask: Tensor | None = None, scale: float | Tensor = 1.0, dropout_p: float = 0.0, training: bool = False,
    is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
    window: Window | None = None,
) -> Tensor:  # fmt: skip
    inputs = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    query, key, value, grouped = _as_kernel_operands(inputs, groups_with_masks)
    with sdpa_kernel(backend):
        result = F.scaled_dot_product_attention(
            query, key, value, inputs.mask, dropout_p if training else 0.0, inputs.is_causal, scale=inputs.scale,
            enable_gqa=grouped,
        )  # fmt: skip
    return inputs.restore(differentiable_twice(result))


def _as_kernel_operands(inputs: Operands, groups_with_masks: bool) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Query, key and value with contiguous rows, and whether heads are grouped.

    Heads are repeated if the kernel does not support groups.
    """
    query, key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in inputs[:3])
    grouped = query.shape[1] != key.shape[1]
    if grouped and not _supports_groups(inputs, groups_with_masks):
        times = query.shape[1] // key.shape[1]
        return query, key.repeat_interleave(times, 1), value.repeat_interleave(times, 1), False
    return query, key, value, grouped


def _supports_groups(inputs: Operands, groups_with_masks: bool) -> bool:
    return (inputs.mask is None or groups_with_masks) and inputs.query.dtype in HALVES


def _refusal(
    usable: str, groups_with_masks: bool, masks: bool, query: Tensor, key: Tensor, value: Tensor, *,
    mask: Tensor | None = None, scale: float | Tensor = 1.0, dropout_p: float = 0.0, training: bool = False,
    is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
    window: Window | None = None,
) -> str:  # fmt: skip
    if isinstance(scale, Tensor) or query.shape[-1] != value.shape[-1]:
        return "It needs a number as scale, and values as wide as keys."
    if mask is not None and (not masks or mask.requires_grad) and not mask_is_causal:
        return "It supports causal masks only." if not masks else "It computes no gradient for the mask."
    if query.device.type != "cuda":
        return "It runs on CUDA only."
    inputs = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    if needs_unfused_formula(inputs.query, inputs.key, inputs.value):
        return "It has no derivatives of gradients and no forward mode, which these tensors ask for."
    can_use: Callable[..., bool] | None = getattr(torch.backends.cuda, usable, None)
    if can_use is None:
        return "This torch has no such kernel."
    q, k, v, grouped = _as_kernel_operands(inputs, groups_with_masks)
    params = _sdpa_params(q, k, v, inputs.mask, dropout_p if training else 0.0, inputs.is_causal, grouped)
    try:
        return "" if can_use(params) else _NOT_HERE
    except RuntimeError as error:  # tensors without data, for example
        return f"torch cannot tell whether its kernel supports these operands: {str(error).splitlines()[0]}"


def _sdpa_params(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, grouped: bool
) -> Any:
    """The call in the form in which torch's functions `can_use_...` accept it."""
    return torch.backends.cuda.SDPAParams(query, key, value, mask, p, is_causal, grouped)


def _provider(
    name: str, backend: SDPBackend, usable: str, label: str, groups: bool, masks: bool, **more: Any
) -> Provider:  # fmt: skip
    """A provider for one of torch's kernels.

    Args:
        name: the name of the provider.
        backend: torch's name for the kernel.
        usable: the function of torch.backends.cuda that reports whether the kernel supports a call.
        label: the kernel in words, for the summary.
        groups: whether the kernel supports groups of heads together with a mask.
        masks: whether the kernel supports masks.
        **more: further fields of `Provider`.
    """
    return Provider(
        "attention", name, TORCH, partial(_attend, backend, groups),
        f"torch's scaled_dot_product_attention with {label}.", "The backward pass of the same kernel.",
        partial(_refusal, usable, groups, masks), devices=("cuda",), **more,
    )  # fmt: skip


PROVIDERS = (
    _provider(
        "sdpa-cudnn", SDPBackend.CUDNN_ATTENTION, "can_use_cudnn_attention", "cuDNN", True, True,
        dtypes=HALVES, deterministic=False,
    ),
    _provider(
        "sdpa-flash", SDPBackend.FLASH_ATTENTION, "can_use_flash_attention", "FlashAttention 2", True, False,
        dtypes=HALVES,
    ),
    _provider(
        "sdpa-efficient", SDPBackend.EFFICIENT_ATTENTION, "can_use_efficient_attention", "the efficient kernel", False,
        True, dtypes=HALVES_AND_SINGLE, deterministic=False,
    ),
)  # fmt: skip
