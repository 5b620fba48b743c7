"""The common parts of the rows of transformers' models: sizes, inputs, and functions that make a row.

The models run with their hand-written ("eager") attention, which they use to return attention weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tools.models.row import Row, tokens

PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "max_position_embeddings": 32,
}  # fmt: skip
HANDED_ON = "its layers hand the weights on to a model that makes its own cache; without a cache they do not"
IMAGE = {"image_size": 16, "patch_size": 4}

Inputs = Callable[[], Any]


def row(
    name: str, config: str, inputs: Inputs = tokens, expects: tuple[str, ...] = ("AF101",), note: str = "",
    **options: Any,
) -> Row:  # fmt: skip
    """A row with the model `name` and its configuration's class and options."""

    def make() -> nn.Module:
        made = getattr(transformers, config)(attn_implementation="eager", **options)
        return getattr(transformers, name)(made)

    return Row(name, "transformers", make, inputs, expects, note)


def text(name: str, config: str, expects: tuple[str, ...] = ("AF101",), note: str = "", **options: Any) -> Row:
    """The same for a model that gets tokens."""
    return row(name, config, tokens, expects, note, **{"vocab_size": 50, **SPECIAL, **options})


def vision(name: str, config: str, expects: tuple[str, ...] = ("AF101",), note: str = "", **options: Any) -> Row:
    """The same for a model that gets images."""
    return row(name, config, images, expects, note, **{**IMAGE, **options})


def padded_tokens() -> dict[str, Tensor]:
    """Tokens, with padding at the end of the first sequence."""
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, 5:] = 0
    return {"input_ids": tokens(), "attention_mask": mask}


def images() -> dict[str, Tensor]:
    """Two images of 16 x 16 pixels."""
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


def both_sides() -> dict[str, Tensor]:
    """Tokens for an encoder, and others for a decoder."""
    return {"input_ids": tokens(), "decoder_input_ids": tokens(length=5)}


def images_and_text() -> dict[str, Tensor]:
    """Two images, each with tokens."""
    return {"pixel_values": torch.randn(2, 3, 16, 16), "input_ids": tokens()}


def audio() -> dict[str, Tensor]:
    """Two recordings of 400 samples."""
    return {"input_values": torch.randn(2, 400)}
