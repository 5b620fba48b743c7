"""Attention for transformers models through the library's own registry: `attn_implementation="autofuse"`.

`optimize` fuses hand-written ("eager") attention without this registry. The registry helps with long sequences. A model
that gets its attention from the registry also gets its masks there. It then gets no mask if the kernel is causal,
instead of a matrix that every layer adds.

    import autofuse.integrations.transformers_attention as registry
    registry.register()
    model.set_attn_implementation("autofuse")      # "eager" restores the original

Some calls run the attention that the model's file spells out: calls that return attention weights, and calls with
soft-capped scores or sinks. Nothing in the library is replaced: `register` adds two entries to its registries. Needs
transformers 4.56.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from autofuse import ops

_collector: Any = None
try:  # later versions collect the requested outputs here
    from transformers.utils.output_capturing import _active_collector

    _collector = _active_collector
except ImportError:
    pass

NAME = "autofuse"
_UNSUPPORTED_OPTIONS = ("softcap", "s_aux", "cache")  # options that the kernel does not support


def register() -> None:
    """Adds `attn_implementation="autofuse"` to transformers. A second call has no effect."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
    position_bias: Tensor | None = None, **options: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Computes attention with a kernel, or with the model's `eager_attention_forward` where no kernel can be used.

    A query that keeps no key attends to all keys evenly, as in the model's own code. No gradient reaches its scores, so
    a loss must leave out such rows of padding.

    Args:
        module: the attention module.
        query: shape (batch, heads, T, d).
        key: shape (batch, key heads, S, d).
        value: shape (batch, key heads, S, d).
        attention_mask: shape (batch, 1, T, S). A boolean mask is True where a query attends; any other mask is added to
            the scores. With None, attention is causal if `is_causal`, or else `module.is_causal`, is True.
        dropout: the dropout probability.
        scaling: the factor of the scores; 1 / sqrt(d) if None.
        is_causal: overrides `module.is_causal`.
        position_bias: shape (1 or batch, heads, T, S); added to the scores.
        options: other options of the model, such as `output_attentions`.

    Returns:
        The result of shape (batch, T, heads, d), and the attention weights if the caller requests them, else None.

    Raises:
        ValueError: the model's file has no `eager_attention_forward`, and the kernel cannot be used.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    if causal:  # a cache of fixed length has unused keys after the queries
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if _requests_weights(options) or any(options.get(name) is not None for name in _UNSUPPORTED_OPTIONS):
        mask = _additive_mask(_causal_mask(query) if causal else attention_mask, query.dtype)
        if position_bias is not None:
            options["position_bias"] = position_bias
        return _eager_attention_of(module)(module, query, key, value, mask, dropout=dropout, scaling=scale, **options)  # type: ignore[no-any-return]
    groups = query.shape[1] // key.shape[1]
    # Not a boolean mask: an additive mask passes the gradient of rows that keep no key.
    mask = _additive_mask(attention_mask, query.dtype)
    if position_bias is not None:
        mask = _additive_mask(_causal_mask(query), query.dtype) if causal else mask
        mask, causal = _add_bias(position_bias, mask), False
    result = ops.attention(
        query, _repeat_heads(key, groups), _repeat_heads(value, groups), mask=mask, scale=scale, dropout_p=dropout,
        training=True, is_causal=causal,
    )  # fmt: skip
    return result.transpose(1, 2).contiguous(), None


def _requests_weights(options: Mapping[str, Any]) -> bool:
    if options.get("output_attentions"):
        return True
    if _collector is None or torch.compiler.is_compiling() and not _collector.compiling:
        return False
    return any("attentions" in key for key in _collector.get() or ())


def _eager_attention_of(module: nn.Module) -> Any:
    """The `eager_attention_forward` of the file that defines the module's class.

    Raises:
        ValueError: The file has no such function.
    """
    file = type(module).__module__
    eager_attention = getattr(sys.modules.get(file), "eager_attention_forward", None)
    if eager_attention is None:
        raise ValueError(
            f"{type(module).__name__} needs attention that no kernel computes, and {file} has no "
            'eager_attention_forward to run instead. Set attn_implementation="eager".'
        )
    return eager_attention


def _repeat_heads(x: Tensor, groups: int) -> Tensor:
    """Repeats each key or value head for the query heads that share it."""
    return x if groups == 1 else x[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2)


def _causal_mask(query: Tensor) -> Tensor:
    length = query.shape[2]
    return torch.ones(1, 1, length, length, dtype=torch.bool, device=query.device).tril()


def _additive_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Converts a boolean mask to numbers that are added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _add_bias(bias: Tensor, mask: Tensor | None) -> Tensor:
    return bias if mask is None else bias[..., : mask.shape[-1]] + mask
