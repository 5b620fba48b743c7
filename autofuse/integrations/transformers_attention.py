"""Attention of transformers' models by the library's own door: `attn_implementation="autofuse"`.

`optimize` reads hand-written ("eager") attention and needs no such door. It is for long sequences: a model that asks
the library's registry for its attention also asks for its masks there, and then gets none where the kernel's causal
path will do, instead of a matrix that every layer adds.

    import autofuse.integrations.transformers_attention as door
    door.register()
    model.set_attn_implementation("autofuse")      # and "eager" takes it back

What the kernel cannot do runs as the model's file spells it out: attention weights that are asked for, soft-capped
scores, sinks. Nothing of the library is replaced: two entries are added to its registries. Needs transformers 4.56.
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
try:  # where later versions collect what a caller asked for
    from transformers.utils.output_capturing import _active_collector

    _collector = _active_collector
except ImportError:
    pass

NAME = "autofuse"
_SPELLED_OUT = ("softcap", "s_aux", "cache")  # options that the kernel has no word for


def register() -> None:
    """Make `attn_implementation="autofuse"` known to transformers. Again, if that was done before, does nothing new."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
    position_bias: Tensor | None = None, **options: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What transformers calls in place of a model's own `eager_attention_forward`, and that where it has to be.

    Shapes: query (batch, heads, T, d), key and value (batch, key heads, S, d); attention_mask (batch, 1, T, S), boolean
    (True attends) or added to the scores, or None: then a query attends to the keys up to its own, if the module or
    `is_causal` says so. position_bias: (1 or batch, heads, T, S), added too. Returns the result (batch, T, heads, d),
    and the weights where they are asked for. A row that keeps no key attends to all evenly, as in the model's own, and
    passes no gradient to its scores: a loss leaves such rows of padding out.
    Raises ValueError where a file that is needed spells no attention out.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    if causal:  # a cache of fixed length holds no more keys than queries yet
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if _weights_are_wanted(options) or any(options.get(name) is not None for name in _SPELLED_OUT):
        mask = _added(_causal(query) if causal else attention_mask, query.dtype)
        if position_bias is not None:
            options["position_bias"] = position_bias
        return _spelled_out(module)(module, query, key, value, mask, dropout=dropout, scaling=scale, **options)  # type: ignore[no-any-return]
    groups = query.shape[1] // key.shape[1]
    mask = _added(attention_mask, query.dtype)  # rows that keep no key: numbers that are added pass the gradient on
    if position_bias is not None:
        mask, causal = _biased(position_bias, _added(_causal(query), query.dtype) if causal else mask), False
    result = ops.attention(
        query, _repeated(key, groups), _repeated(value, groups), mask=mask, scale=scale, dropout_p=dropout,
        training=True, is_causal=causal,
    )  # fmt: skip
    return result.transpose(1, 2).contiguous(), None


def _weights_are_wanted(options: Mapping[str, Any]) -> bool:
    if options.get("output_attentions"):
        return True
    if _collector is None or torch.compiler.is_compiling() and not _collector.compiling:
        return False
    return any("attentions" in key for key in _collector.get() or ())


def _spelled_out(module: nn.Module) -> Any:
    """The attention that the file of a module's class spells out."""
    file = type(module).__module__
    found = getattr(sys.modules.get(file), "eager_attention_forward", None)
    if found is None:
        raise ValueError(
            f"{type(module).__name__} was asked for attention that no kernel has, and {file} has no "
            'eager_attention_forward to run instead. Set attn_implementation="eager".'
        )
    return found


def _repeated(x: Tensor, groups: int) -> Tensor:
    """Each head of keys as often as queries share it."""
    return x if groups == 1 else x[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2)


def _causal(query: Tensor) -> Tensor:
    length = query.shape[2]
    return torch.ones(1, 1, length, length, dtype=torch.bool, device=query.device).tril()


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as numbers to add to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _biased(bias: Tensor, mask: Tensor | None) -> Tensor:
    return bias if mask is None else bias[..., : mask.shape[-1]] + mask
