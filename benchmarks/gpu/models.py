"""The models whose training steps are measured: those of examples/, hand-written, at their real sizes.

The sizes are those of GPT-2's smallest model (124M parameters), Llama 3.2 1B, and BERT base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples import bert, gpt, llama


@dataclass(frozen=True)
class TrainedModel:
    """A model to train.

    Attributes:
        name: its name.
        build: builds it.
        batch: sequences in a batch.
        length: tokens in a sequence.
        vocabulary: the number of token ids.
        draws: whether it has dropout.
        takes_labels: whether the model computes the loss itself, from `labels`, as those of transformers do.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: int
    length: int
    vocabulary: int
    draws: bool = False
    takes_labels: bool = False

    @property
    def tokens(self) -> int:
        """The tokens of one step."""
        return self.batch * self.length

    def model(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> nn.Module:
        """The model in training mode, with equal weights for equal seeds."""
        torch.manual_seed(seed)
        with device:
            return self.build().to(dtype).train()

    def data(self, device: torch.device, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Ids, and the ids to predict."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(2, self.vocabulary, (self.batch, self.length + 1), generator=generator).to(device)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def example(self, ids: Tensor) -> tuple[Tensor, ...] | dict[str, Tensor]:
        """The arguments of a call, for `optimize`."""
        return {"input_ids": ids, "labels": ids} if self.takes_labels else (ids,)

    def loss(self, called: Any, ids: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch: the model's own, or cross entropy of its logits."""
        if self.takes_labels:
            loss: Tensor = called(input_ids=ids, labels=ids).loss
            return loss
        return F.cross_entropy(called(ids).flatten(0, 1), targets.flatten())


def _gpt(length: int = 1024, **sizes: Any) -> nn.Module:
    model = gpt.GPT(gpt.Config(**{"vocabulary": 50257, "length": length, "dropout": 0.0, **sizes}))
    return _initialize(model, model.tokens, model.head)


class _Llama(llama.Llama):
    """The example with its mask in the dtype of the scores, so that weights may be bf16."""

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        h = self.tok_embeddings(tokens)
        mask = torch.full((length, length), float("-inf"), device=tokens.device, dtype=h.dtype)
        mask = torch.triu(mask, diagonal=1)
        for layer in self.layers:
            h = layer(h, self.cos[:length], self.sin[:length], mask)
        logits: Tensor = self.output(self.norm(h))
        return logits


def _llama(length: int = 2048, **sizes: Any) -> nn.Module:
    known = {"vocabulary": 128256, "dim": 2048, "hidden_dim": 8192, "n_heads": 32, "n_kv_heads": 8, "n_layers": 16}
    model = _Llama(llama.Config(**{**known, "length": length, "rope_theta": 500_000.0, **sizes}))
    return _initialize(model, model.tok_embeddings, model.output)


def _bert(length: int = 512, **sizes: Any) -> nn.Module:
    known = {"numbers": 30520, "width": 768, "heads": 12, "layers": 12, "inner": 3072, "dropout": 0.1}
    model = bert.Bert(bert.Config(**{**known, "length": length, **sizes}))
    return _initialize(model, model.words, model.decoder)


def _initialize(model: nn.Module, embedding: nn.Embedding, output: nn.Linear) -> nn.Module:
    """The model with small weights, and the output's weight shared with the embedding, as all three models have it."""
    output.weight = embedding.weight
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
    return model


FULL: Mapping[str, TrainedModel] = MappingProxyType(
    {
        "gpt2-124m": TrainedModel("gpt2-124m", partial(_gpt, width=768, heads=12, layers=12), 16, 1024, 50257),
        "llama-1b": TrainedModel("llama-1b", _llama, 2, 2048, 128256),
        "bert-base": TrainedModel("bert-base", _bert, 32, 512, 30522, draws=True),
    }
)
# Small enough for float64, with tensors large enough for our kernels.
_MEDIUM_LLAMA = {"vocabulary": 5003, "dim": 512, "hidden_dim": 1408, "n_heads": 8, "n_kv_heads": 2, "n_layers": 2}
MEDIUM: Mapping[str, TrainedModel] = MappingProxyType(
    {
        "gpt2-124m": TrainedModel(
            "gpt2-124m", partial(_gpt, 256, vocabulary=5003, width=384, heads=6, layers=2), 8, 256, 5003
        ),
        "llama-1b": TrainedModel("llama-1b", partial(_llama, 256, **_MEDIUM_LLAMA), 8, 256, 5003),
        "bert-base": TrainedModel(
            "bert-base", partial(_bert, 256, numbers=5001, width=384, heads=6, layers=2, inner=1536), 8, 256, 5003,
            draws=True,
        ),
    }
)  # fmt: skip
_SMALL_LLAMA = {"vocabulary": 211, "dim": 64, "hidden_dim": 96, "n_heads": 4, "n_kv_heads": 2, "n_layers": 1}
TOY: Mapping[str, TrainedModel] = MappingProxyType(
    {
        "gpt2-124m": TrainedModel(
            "gpt2-124m", partial(_gpt, 32, vocabulary=211, width=64, heads=2, layers=1), 2, 32, 211
        ),
        "llama-1b": TrainedModel("llama-1b", partial(_llama, 32, **_SMALL_LLAMA), 2, 32, 211),
        "bert-base": TrainedModel(
            "bert-base", partial(_bert, 32, numbers=209, width=64, heads=2, layers=1, inner=96), 2, 32, 211, draws=True
        ),
    }
)  # fmt: skip
