"""Models of x-transformers, in the combinations of options that it is used with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import x_transformers
from torch import nn

from tools.models.row import Row, tokens

_SMALL = {"dim": 32, "depth": 2, "heads": 2, "attn_dim_head": 32}
_EACH = ("AF101", "AF201", "AF304")


def _row(
    name: str, kind: str = "Decoder", inputs: Callable[[], Any] = tokens, expects: tuple[str, ...] = _EACH,
    memories: int = 0, **options: Any,
) -> Row:  # fmt: skip
    def make() -> nn.Module:
        layers = getattr(x_transformers, kind)(**_SMALL, **options)
        return x_transformers.TransformerWrapper(
            num_tokens=50, max_seq_len=32, attn_layers=layers, num_memory_tokens=memories
        )

    return Row(name, "x-transformers", make, inputs, expects)


def _masked() -> dict[str, Any]:
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    return {"x": tokens(), "mask": mask}


def _with_context() -> dict[str, Any]:
    return {"x": tokens(), "context": torch.randn(2, 5, 32)}


def _vision() -> nn.Module:
    encoder = x_transformers.Encoder(**_SMALL)
    return x_transformers.ViTransformerWrapper(image_size=32, patch_size=8, num_classes=5, attn_layers=encoder)


ROWS = (
    _row("Decoder"),
    _row("Encoder, masked", "Encoder", _masked),
    _row("Decoder, cross attention", inputs=_with_context, cross_attend=True),
    _row("Decoder, rotary", rotary_pos_emb=True, expects=(*_EACH, "AF402")),
    _row("Decoder, ALiBi", alibi_pos_bias=True, alibi_num_heads=1),
    _row("Decoder, T5 bias", rel_pos_bias=True),
    _row("Decoder, normalised queries and keys", attn_qk_norm=True),
    _row("Decoder, SwiGLU", ff_glu=True, ff_swish=True, expects=("AF101", "AF303")),
    _row("Decoder, RMS norm, grouped heads", use_rmsnorm=True, attn_kv_heads=1, expects=("AF101", "AF304")),
    _row("Decoder, sandwich norm, memories", memories=4, sandwich_norm=True, attn_num_mem_kv=4),
    Row("ViTransformerWrapper", "x-transformers", _vision, lambda: torch.randn(2, 3, 32, 32)),
)
