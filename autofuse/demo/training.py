"""Trains the demo's model on the demo's text, with the same batches in the same order for every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from autofuse.demo.gpt import GPT, Config, configure_optimizer, train_step
from autofuse.demo.text import text

BATCH = 8


@dataclass(frozen=True)
class Corpus:
    """A text as numbers.

    Attributes:
        ids: The id of each character of the text, (characters,).
        alphabet: The characters by their ids.
    """

    ids: Tensor
    alphabet: str

    @classmethod
    def of(cls, characters: str) -> Corpus:
        """Creates the corpus of a text. The alphabet is in the order of code points."""
        alphabet = "".join(sorted(set(characters)))
        number = {character: i for i, character in enumerate(alphabet)}
        return cls(torch.tensor([number[character] for character in characters]), alphabet)

    def batches(self, length: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields batches without end: ids at random positions, and their next ids, both (BATCH, length)."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            starts = torch.randint(len(self.ids) - length, (BATCH,), generator=generator).tolist()
            windows = torch.stack([self.ids[start : start + length + 1] for start in starts])
            yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def harbour_log() -> Corpus:
    """Returns the demo's own text as a corpus."""
    return Corpus.of(text())


def create_model(corpus: Corpus, seed: int, block_size: int = Config.block_size) -> GPT:
    """Returns a GPT for the alphabet of the corpus, initialized with `seed`. It has no dropout: runs are comparable."""
    torch.manual_seed(seed)
    return GPT(Config(vocab_size=len(corpus.alphabet), block_size=block_size, dropout=0.0))


def train_losses(model: GPT, corpus: Corpus, steps: int, seed: int, gradient_error: float = 0.0) -> Iterator[float]:
    """Trains `model` and yields the loss of each step, in nats a character.

    `gradient_error` adds an error to every gradient, as `wrong_gradients` describes.
    """
    optimizer = configure_optimizer(model)
    optimizer.register_step_pre_hook(wrong_gradients(gradient_error, seed))
    batches = corpus.batches(model.config.block_size, seed)
    model.train()
    for _ in range(steps):
        yield train_step(model, optimizer, *next(batches)).item()


def wrong_gradients(size: float, seed: int) -> Callable[..., None]:
    """Returns an optimizer hook that changes every entry of every gradient by `size`, up or down at random.

    `size` is relative to the largest entry of the gradient, like the errors of verification. 0 changes nothing. The
    hook runs before each step.
    """
    signs = torch.Generator().manual_seed(seed)

    def disturb(optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for gradient in gradients if size else ():
            sign = torch.randint(2, gradient.shape, generator=signs).to(gradient) * 2 - 1
            gradient += size * gradient.abs().max() * sign

    return disturb
