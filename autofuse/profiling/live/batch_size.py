"""Counts the samples and tokens that a step processes, from the shapes of the model's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofuse.torch_private.nested import tensors_in

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


@dataclass(frozen=True)
class Batch:
    """The size of a step's batch.

    samples, tokens: None if the inputs do not show them.
    basis: what they were read from.
    """

    samples: int | None = None
    tokens: int | None = None
    basis: str = ""

    def times(self, count: int) -> Batch:
        """Return `count` of these batches in one step, as with accumulated gradients."""
        if count == 1:
            return self
        samples, tokens = (None if n is None else n * count for n in (self.samples, self.tokens))
        return Batch(samples, tokens, f"{self.basis}, {count} of them in a step" if self.basis else "")

    def given(self, samples: int | None = None, tokens: int | None = None) -> Batch:
        """Return the batch with the numbers that the user passed."""
        if samples is None and tokens is None:
            return self
        basis = "; ".join(filter(None, ("given by the user", "" if samples and tokens else self.basis)))
        return Batch(samples or self.samples, tokens or self.tokens, basis)


def batch_of(inputs: Any) -> Batch:
    """Return samples and tokens in a call's arguments: a tensor, or tuples, lists, mappings and dataclasses of them.

    Samples are the first dimension of the first tensor that has one. Tokens are the number of elements of the first
    integer tensor with two dimensions, samples x positions. Padding counts, because it is computed, too. For other
    layouts (positions first, sequences packed into one row), use Batch.given.
    """
    tensors = [tensor for tensor in tensors_in(inputs) if tensor.dim()]
    if not tensors:
        return Batch()
    samples = tensors[0].shape[0]
    ids = next((t for t in tensors if t.dim() == 2 and t.dtype in _INTEGERS and t.shape[0] == samples), None)
    basis = f"samples: first dimension of the model's first input {_shape(tensors[0])}"
    if ids is None:
        return Batch(samples, None, basis)
    return Batch(samples, ids.numel(), f"{basis}; tokens: its first integers {_shape(ids)}")


def batch_of_calls(calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> Batch:
    """Return the batch of a step that calls its models in this order: that of the first call with a known batch."""
    found = (batch_of(call) for call in calls)
    return next((batch for batch in found if batch.samples is not None), Batch())


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))
