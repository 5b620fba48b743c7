"""Models of diffusers with `AttnProcessor`, which has hand-written attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
from diffusers.models.attention_processor import AttnProcessor
from torch import Tensor, nn

from tools.models.row import Row, without_dropout

_HEADS = {"num_attention_heads": 2, "attention_head_dim": 16}
_BLOCKS = {"layers_per_block": 1, "block_out_channels": (32, 32), "norm_num_groups": 8, "attention_head_dim": 8}
_PATCHES = {**_HEADS, "in_channels": 4, "out_channels": 8, "num_layers": 2, "sample_size": 8, "patch_size": 2}


def _row(
    name: str, inputs: Callable[[], dict[str, Any]], expects: tuple[str, ...] = ("AF101",), note: str = "",
    **options: Any,
) -> Row:  # fmt: skip
    def make() -> nn.Module:
        model = without_dropout(getattr(diffusers, name)(**options))
        for module in model.modules():
            if hasattr(module, "set_processor") and module.processor.__class__.__name__ == "AttnProcessor2_0":
                module.set_processor(AttnProcessor())
        return model

    return Row(name, "diffusers", make, lambda: {**inputs(), "return_dict": False}, expects, note)


def _noise() -> Tensor:
    return torch.randn(2, 4, 8, 8)


def _text() -> Tensor:
    return torch.randn(2, 5, 32)


def _step() -> Tensor:
    return torch.tensor([3, 5])


ROWS = (
    _row("UNet2DModel", lambda: {"sample": _noise(), "timestep": _step()}, sample_size=8, in_channels=4, out_channels=4,
         down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), **_BLOCKS),
    _row("UNet2DConditionModel",
         lambda: {"sample": _noise(), "timestep": _step(), "encoder_hidden_states": _text()}, ("AF101", "AF303"),
         sample_size=8, cross_attention_dim=32, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
         up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **_BLOCKS),
    _row("AutoencoderKL", lambda: {"sample": torch.randn(2, 3, 16, 16)}, block_out_channels=(16, 16),
         norm_num_groups=8, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
    _row("Transformer2DModel", lambda: {"hidden_states": torch.randn(2, 32, 4, 4), "encoder_hidden_states": _text()},
         ("AF101", "AF203", "AF303"), in_channels=32, num_layers=1, cross_attention_dim=32, norm_num_groups=8,
         **_HEADS),
    _row("DiTTransformer2DModel",
         lambda: {"hidden_states": _noise(), "timestep": _step(), "class_labels": torch.tensor([2, 7])},
         num_embeds_ada_norm=10, norm_num_groups=8, **_PATCHES),
    _row("PriorTransformer",
         lambda: {"hidden_states": torch.randn(2, 32), "timestep": _step(), "proj_embedding": torch.randn(2, 32),
                  "encoder_hidden_states": _text()},
         num_layers=2, embedding_dim=32, num_embeddings=5, additional_embeddings=4, **_HEADS),
)  # fmt: skip
