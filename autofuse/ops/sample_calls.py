"""A call of each operation as a transformer makes it: for tuning by hand, where there is no model to take calls from.

Knows the public functions of autofuse.ops and what sizes mean to them; must not know providers or how they are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autofuse import ops
from autofuse.kernels.operation import OPERATIONS, RecordedCall, recorded
from autofuse.ops.activation_table import ACTIVATIONS
from autofuse.verify.calls import random_numbers

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """The sizes of a transformer, as they meet in its layers: sequences in a batch, tokens in a sequence, the width of
    a token, the width inside of its MLP (4 times as much if 0), attention's heads, tokens in the vocabulary."""

    batch: int = 4
    length: int = 512
    width: int = 768
    heads: int = 12
    hidden: int = 0
    vocabulary: int = 32000

    @property
    def rows(self) -> int:
        return self.batch * self.length

    @property
    def inner(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def head(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True)
class Maker:
    """Makes random tensors of one dtype on one device, always the same; in training they require gradients."""

    dtype: torch.dtype
    device: torch.device
    training: bool

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        numbers = random_numbers(shape, self.device, sum(shape)) * scale
        return numbers.to(self.dtype).requires_grad_(self.training)

    def weight(self, *shape: int) -> Tensor:
        """A matrix that keeps the size of what it is applied to."""
        return self(*shape, scale=shape[-1] ** -0.5)

    def constant(self, *shape: int) -> Tensor:
        """What no gradient is asked for of."""
        return self(*shape).detach()

    def classes(self, count: int, of: int) -> Tensor:
        draws = torch.Generator().manual_seed(count)
        return torch.randint(of, (count,), generator=draws).to(self.device)


def maker_of(device: str | None = None, dtype: str | None = None, *, training: bool = True) -> Maker:
    """A maker for a device ("cuda" or "cpu") and a dtype ("float32"); without them, those that suit this machine.

    Raises ValueError where torch finds no such device.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda was asked for, and torch finds no such device here.")
    numbers: torch.dtype = getattr(torch, dtype or ("float32" if kind == "cpu" else "bfloat16"))
    return Maker(numbers, torch.device(kind), training)


@dataclass(frozen=True)
class Sample:
    """A typical call. `sizes` names those of a shape; `of_model` takes them from a model; `call` makes the call."""

    sizes: str
    of_model: Callable[[Model], Shape]
    call: Callable[..., Any]


def _rows_and_width(model: Model) -> Shape:
    return model.rows, model.width


def _rows_and_inner(model: Model) -> Shape:
    return model.rows, model.inner


def _layer(model: Model) -> Shape:
    return model.rows, model.width, model.inner


def _scores(model: Model) -> Shape:
    return model.batch, model.heads, model.length, model.length


def _heads(model: Model) -> Shape:
    return model.batch, model.heads, model.length, model.head


def _activated(name: Any, t: Maker, r: int, w: int) -> Any:
    return ops.activation(t(r, w), name)


def _dropped_sum(t: Maker, r: int, w: int) -> Any:
    return ops.dropout_add_norm(t(r, w), t(r, w), t(w), t(w), dropout_p=0.1 * t.training, training=t.training)


def _causal(t: Maker, b: int, h: int, n: int, d: int) -> Any:
    return ops.attention(t(b, h, n, d), t(b, h, n, d), t(b, h, n, d), scale=d**-0.5, is_causal=True)


def _capped(t: Maker, b: int, h: int, n: int, d: int) -> Any:
    return ops.soft_capped_attention(t(b, h, n, d), t(b, h, n, d), t(b, h, n, d), cap=50.0, scale=d**-0.5 / 50.0)


def _sunk(t: Maker, b: int, h: int, n: int, d: int) -> Any:
    return ops.sink_attention(t(b, h, n, d), t(b, h, n, d), t(b, h, n, d), t(h)[:, None, None], scale=d**-0.5)


def _masked(t: Maker, b: int, h: int, n: int, s: int) -> Any:
    mask = torch.ones(n, s, dtype=torch.bool, device=t.device).tril()
    return ops.masked_softmax(t(b, h, n, s), mask, scale=0.125)


def _packed(t: Maker, n: int, h: int, d: int) -> Any:
    """Two sequences, of which one is three times as long as the other."""
    starts = torch.tensor([0, n // 4, n], dtype=torch.int32, device=t.device)
    return ops.varlen_attention(
        t(n, h, d), t(n, h, d), t(n, h, d), starts, starts, n - n // 4, n - n // 4, is_causal=True
    )


_MLP = "rows x width x inner width"
_ROWS, _INNER = "rows x width", "rows x inner width"
_ATTENTION = "batch x heads x tokens x head width"
_LISTED = sorted(ACTIVATIONS.keys() & OPERATIONS.keys())
SAMPLES: Mapping[str, Sample] = {
    **{name: Sample(_INNER, _rows_and_inner, partial(_activated, name)) for name in _LISTED},
    "bias_gelu": Sample(_INNER, _rows_and_inner, lambda t, r, w: ops.bias_gelu(t(r, w), t(w))),
    "layer_norm": Sample(_ROWS, _rows_and_width, lambda t, r, w: ops.layer_norm(t(r, w), t(w), t(w))),
    "rms_norm": Sample(_ROWS, _rows_and_width, lambda t, r, w: ops.rms_norm(t(r, w), t(w))),
    "dropout_add_norm": Sample(_ROWS, _rows_and_width, _dropped_sum),
    "gated_activation": Sample(
        "rows x twice the inner width",
        lambda m: (m.rows, 2 * m.inner),
        lambda t, r, w: ops.gated_activation(t(r, w)),
    ),
    "gated_product": Sample(_INNER, _rows_and_inner, lambda t, r, w: ops.gated_product(t(r, w), t(r, w))),
    "gated_mlp": Sample(_MLP, _layer, lambda t, r, w, h: ops.gated_mlp(t(r, w), t.weight(h, w), t.weight(h, w))),
    "mlp": Sample(
        _MLP, _layer, lambda t, r, w, h: ops.mlp(t(r, w), t.weight(h, w), t(h), t.weight(w, h), t(w), activation="gelu")
    ),
    "rotary": Sample(
        _ATTENTION, _heads, lambda t, b, h, n, d: ops.rotary(t(b, h, n, d), t.constant(n, d), t.constant(n, d))
    ),
    "masked_softmax": Sample("batch x heads x tokens x keys", _scores, _masked),
    "attention": Sample(_ATTENTION, _heads, _causal),
    "varlen_attention": Sample("tokens x heads x head width", lambda m: (m.rows, m.heads, m.head), _packed),
    "soft_capped_attention": Sample(_ATTENTION, _heads, _capped),
    "sink_attention": Sample(_ATTENTION, _heads, _sunk),
    "cross_entropy": Sample(
        "rows x classes",
        lambda m: (m.rows, m.vocabulary),
        lambda t, r, c: ops.cross_entropy(t(r, c), t.classes(r, c)),
    ),
    "linear_cross_entropy": Sample(
        "rows x width x classes",
        lambda m: (m.rows, m.width, m.vocabulary),
        lambda t, r, w, c: ops.linear_cross_entropy(t(r, w), t.weight(c, w), t.classes(r, c)),
    ),
}


def sampled(operation: str, shape: Shape, maker: Maker) -> RecordedCall:
    """A call of `operation` on tensors of such a shape. It is made once, to learn what the operation is given.

    Raises ValueError where there is no sample, or the shape has another number of sizes.
    """
    if operation not in SAMPLES:
        raise ValueError(f"No sample call of {operation!r} is known. There are some of {', '.join(sorted(SAMPLES))}.")
    sample = SAMPLES[operation]
    if len(shape) != len(sample.sizes.split(" x ")):
        raise ValueError(f"{operation} takes a shape of {sample.sizes}, and was given {'x'.join(map(str, shape))}.")
    with recorded() as calls, torch.set_grad_enabled(maker.training):
        sample.call(maker, *shape)
    made = next((c for c in calls if c.operation.name == operation), None)
    if made is None:
        raise ValueError(f"{operation} has no providers to choose from.")
    return made
