"""Trains the demo's model on the demo's text: the same batches in the same order for every run.

Knows the model and the text. Knows nothing of what was done to the model.
"""

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
    """A text as ids (characters,) and the characters they stand for."""

    ids: Tensor
    alphabet: str

    @classmethod
    def of(cls, written: str) -> Corpus:
        """The corpus of a text, its alphabet in the order of code points."""
        alphabet = "".join(sorted(set(written)))
        number = {character: i for i, character in enumerate(alphabet)}
        return cls(torch.tensor([number[character] for character in written]), alphabet)

    def batches(self, length: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Without end: ids at random places, and the ids that follow them; each (BATCH, length)."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            starts = torch.randint(len(self.ids) - length, (BATCH,), generator=generator).tolist()
            windows = torch.stack([self.ids[start : start + length + 1] for start in starts])
            yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def harbour_log() -> Corpus:
    """The text that ships with the demo."""
    return Corpus.of(text())


def model_for(corpus: Corpus, seed: int, block_size: int = Config.block_size) -> GPT:
    """A GPT for the corpus's alphabet, initialised with `seed`. It has no dropout: two runs can then be compared."""
    torch.manual_seed(seed)
    return GPT(Config(vocab_size=len(corpus.alphabet), block_size=block_size, dropout=0.0))


def losses(model: GPT, corpus: Corpus, steps: int, seed: int, gradient_error: float = 0.0) -> Iterator[float]:
    """Train `model`, yielding each step's loss in nats a character; with `gradient_error`, see `wrong_gradients`."""
    optimizer = configure_optimizer(model)
    optimizer.register_step_pre_hook(wrong_gradients(gradient_error, seed))
    batches = corpus.batches(model.config.block_size, seed)
    model.train()
    for _ in range(steps):
        yield train_step(model, optimizer, *next(batches)).item()


def wrong_gradients(size: float, seed: int) -> Callable[..., None]:
    """A hook for optimizers, to run before each step: puts every gradient off by `size`, up or down at random.

    `size` is relative to the largest entry of the gradient's tensor, as verification's errors are; 0 changes nothing.
    """
    signs = torch.Generator().manual_seed(seed)

    def disturb(optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for gradient in gradients if size else ():
            sign = torch.randint(2, gradient.shape, generator=signs).to(gradient) * 2 - 1
            gradient += size * gradient.abs().max() * sign

    return disturb
