"""How many samples and tokens a step takes in, told from what its model is called with. Knows shapes, and no models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofuse.torch_private.nested import tensors_in

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


@dataclass(frozen=True)
class Batch:
    """What goes into a step. samples, tokens: None where the inputs do not tell. basis: what they were read from."""

    samples: int | None = None
    tokens: int | None = None
    basis: str = ""

    def times(self, count: int) -> Batch:
        """`count` of them in one step, as with accumulated gradients."""
        if count == 1:
            return self
        samples, tokens = (None if n is None else n * count for n in (self.samples, self.tokens))
        return Batch(samples, tokens, f"{self.basis}, {count} of them in a step" if self.basis else "")

    def given(self, samples: int | None = None, tokens: int | None = None) -> Batch:
        """The same with what somebody said who knows."""
        if samples is None and tokens is None:
            return self
        basis = "; ".join(filter(None, ("as was said", "" if samples and tokens else self.basis)))
        return Batch(samples or self.samples, tokens or self.tokens, basis)


def batch_of(inputs: Any) -> Batch:
    """Samples and tokens in the arguments of a call: a tensor, or tuples, lists, mappings and dataclasses of them.

    Samples are the first dimension of the first tensor that has one. Tokens are the elements of the first tensor of
    whole numbers with two dimensions, samples x positions; padding counts as it is computed too. Inputs that lie
    differently (positions first, sequences packed into one row) have to be said: Batch.given.
    """
    held = [tensor for tensor in tensors_in(inputs) if tensor.dim()]
    if not held:
        return Batch()
    samples = held[0].shape[0]
    ids = next((t for t in held if t.dim() == 2 and t.dtype in _WHOLE and t.shape[0] == samples), None)
    said = f"samples: first dimension of the model's first input {_shape(held[0])}"
    if ids is None:
        return Batch(samples, None, said)
    return Batch(samples, ids.numel(), f"{said}; tokens: its first whole numbers {_shape(ids)}")


def batch_of_calls(calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> Batch:
    """The same of a step that calls its models in this order: the first call that tells how many samples."""
    found = (batch_of(call) for call in calls)
    return next((batch for batch in found if batch.samples is not None), Batch())


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))
