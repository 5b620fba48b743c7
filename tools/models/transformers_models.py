"""Models of transformers, each with its hand-written ("eager") attention."""

from __future__ import annotations

import transformers
from torch import nn

from tools.models.row import Row, tokens


def bert() -> nn.Module:
    """BERT with two layers."""
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager",
    )  # fmt: skip
    return transformers.BertModel(config)


ROWS = (Row("BertModel", "transformers", bert, tokens),)
