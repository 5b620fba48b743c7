"""torch's scaled_dot_product_attention by one of its kernels for CUDA: cuDNN's, FlashAttention 2, or the efficient one.

Which of them is fastest differs by card, shape and version, and torch chooses by a fixed order. Each is a provider of
its own, which takes a call where it was measured to be best; where torch says that it cannot take the call, the check
says so. cuDNN's takes groups of heads beside a mask, so that keys and values need not be repeated for it. Knows torch's
kernels; must not know where operands come from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from autofuse.kernels.packages import TORCH
from autofuse.kernels.provider import HALVES_AND_SINGLE, Provider
from autofuse.kernels.requirements import HALVES
from autofuse.ops.attention_operands import Operands, operands
from autofuse.ops.derivatives import beyond_kernels, differentiable_twice

_NOT_HERE = "torch has no such kernel for these operands on this device."


def _attended(
    backend: SDPBackend, groups_beside_masks: bool, query: Tensor, key: Tensor, value: Tensor, *,
    mask: Tensor | None = None, scale: float | Tensor = 1.0, dropout_p: float = 0.0, training: bool = False,
    is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
) -> Tensor:  # fmt: skip
    given = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    query, key, value, grouped = _as_taken(given, groups_beside_masks)
    with sdpa_kernel(backend):
        made = F.scaled_dot_product_attention(
            query, key, value, given.mask, dropout_p if training else 0.0, given.is_causal, scale=given.scale,
            enable_gqa=grouped,
        )  # fmt: skip
    return given.restored(differentiable_twice(made))


def _as_taken(given: Operands, groups_beside_masks: bool) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Query, key and value with entries side by side, heads repeated where the kernel takes no groups; and if not."""
    query, key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in given[:3])
    grouped = query.shape[1] != key.shape[1]
    if grouped and not _takes_groups(given, groups_beside_masks):
        times = query.shape[1] // key.shape[1]
        return query, key.repeat_interleave(times, 1), value.repeat_interleave(times, 1), False
    return query, key, value, grouped


def _takes_groups(given: Operands, beside_masks: bool) -> bool:
    return (given.mask is None or beside_masks) and given.query.dtype in HALVES


def _misfit(
    usable: str, groups_beside_masks: bool, masks: bool, query: Tensor, key: Tensor, value: Tensor, *,
    mask: Tensor | None = None, scale: float | Tensor = 1.0, dropout_p: float = 0.0, training: bool = False,
    is_causal: bool = False, fill: float | None = None, mask_is_causal: bool = False,
) -> str:  # fmt: skip
    if isinstance(scale, Tensor) or query.shape[-1] != value.shape[-1]:
        return "It takes a number as scale, and values as wide as keys."
    if mask is not None and (not masks or mask.requires_grad) and not mask_is_causal:
        return "It takes no mask but a causal one." if not masks else "A mask that needs a gradient gets none from it."
    if query.device.type != "cuda":
        return "It runs on CUDA."
    given = operands(query, key, value, mask, scale, is_causal, fill, mask_is_causal)
    if beyond_kernels(given.query, given.key, given.value):
        return "Somebody looks on at these tensors."
    can_use: Callable[..., bool] | None = getattr(torch.backends.cuda, usable, None)
    if can_use is None:
        return "This torch has no such kernel."
    q, k, v, grouped = _as_taken(given, groups_beside_masks)
    described = _described(q, k, v, given.mask, dropout_p if training else 0.0, given.is_causal, grouped)
    try:
        return "" if can_use(described) else _NOT_HERE
    except RuntimeError as error:  # of tensors without data, say
        return f"torch does not say whether its kernel takes these operands: {str(error).splitlines()[0]}"


def _described(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, grouped: bool
) -> Any:
    """The call as torch's questions about its kernels take it."""
    return torch.backends.cuda.SDPAParams(query, key, value, mask, p, is_causal, grouped)


def _provider(
    name: str, backend: SDPBackend, usable: str, said: str, groups: bool, masks: bool, **more: Any
) -> Provider:  # fmt: skip
    """usable: torch's question whether the kernel takes a call; groups: of heads, beside masks; masks: whether any."""
    return Provider(
        "attention", name, TORCH, partial(_attended, backend, groups),
        f"torch's scaled_dot_product_attention by {said}.", "The same kernel's own backward.",
        partial(_misfit, usable, groups, masks), devices=("cuda",), **more,
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
