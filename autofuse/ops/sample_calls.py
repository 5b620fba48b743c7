"""A typical call of each operation in a transformer, for tuning without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autofuse import ops
from autofuse.kernels.operation import OPERATIONS, RecordedCall, record_calls
from autofuse.ops.activation_table import ACTIVATIONS
from autofuse.verify.calls import random_numbers

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """The sizes of a transformer.

    Attributes:
        batch: sequences in a batch.
        length: tokens in a sequence.
        width: the width of a token.
        heads: attention heads.
        hidden: the width inside the MLP; 0 means 4 * width.
        vocabulary: tokens in the vocabulary.
    """

    batch: int = 4
    length: int = 512
    width: int = 768
    heads: int = 12
    hidden: int = 0
    vocabulary: int = 32000

    @property
    def rows(self) -> int:
        """Tokens in a batch."""
        return self.batch * self.length

    @property
    def inner(self) -> int:
        """The width inside the MLP."""
        return self.hidden or 4 * self.width

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads


@dataclass(frozen=True)
class Maker:
    """Makes random tensors of one dtype on one device, always the same. In training they require gradients."""

    dtype: torch.dtype
    device: torch.device
    training: bool

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        """A random tensor of this shape, with normal entries times `scale`."""
        numbers = random_numbers(shape, self.device, sum(shape)) * scale
        return numbers.to(self.dtype).requires_grad_(self.training)

    def weight(self, *shape: int) -> Tensor:
        """A matrix whose products have entries as large as those of the input."""
        return self(*shape, scale=shape[-1] ** -0.5)

    def constant(self, *shape: int) -> Tensor:
        """A tensor that requires no gradient."""
        return self(*shape).detach()

    def classes(self, count: int, of: int) -> Tensor:
        """Random class indices below `of`."""
        draws = torch.Generator().manual_seed(count)  # drawn on the CPU, so that every device gets the same classes
        return torch.randint(of, (count,), generator=draws).to(self.device)


def maker_of(device: str | None = None, dtype: str | None = None, *, training: bool = True) -> Maker:
    """A `Maker` for a device ("cuda" or "cpu") and a dtype ("float32"), by default those that suit this machine.

    Raises:
        ValueError: if torch finds no such device.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device on this machine. Use --device cpu.")
    numbers: torch.dtype = getattr(torch, dtype or ("float32" if kind == "cpu" else "bfloat16"))
    return Maker(numbers, torch.device(kind), training)


@dataclass(frozen=True)
class Sample:
    """A typical call.

    Attributes:
        sizes: the names of the sizes of a shape.
        of_model: takes these sizes from a model.
        call: makes the call, from a `Maker` and the sizes.
    """

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


def _sample_activation(name: Any, t: Maker, r: int, w: int) -> Any:
    return ops.activation(t(r, w), name)


def _sample_dropout_add_norm(t: Maker, r: int, w: int) -> Any:
    return ops.dropout_add_norm(t(r, w), t(r, w), t(w), t(w), dropout_p=0.1 * t.training, training=t.training)


def _sample_attention(t: Maker, b: int, h: int, n: int, d: int) -> Any:
    return ops.attention(t(b, h, n, d), t(b, h, n, d), t(b, h, n, d), scale=d**-0.5, is_causal=True)


def _sample_soft_capped_attention(t: Maker, b: int, h: int, n: int, d: int) -> Any:
    # The scale includes the division by the cap.
    return ops.soft_capped_attention(t(b, h, n, d), t(b, h, n, d), t(b, h, n, d), cap=50.0, scale=d**-0.5 / 50.0)


def _sample_sink_attention(t: Maker, b: int, h: int, n: int, d: int) -> Any:
    return ops.sink_attention(t(b, h, n, d), t(b, h, n, d), t(b, h, n, d), t(h)[:, None, None], scale=d**-0.5)


def _sample_masked_softmax(t: Maker, b: int, h: int, n: int, s: int) -> Any:
    mask = torch.ones(n, s, dtype=torch.bool, device=t.device).tril()
    return ops.masked_softmax(t(b, h, n, s), mask, scale=0.125)


def _sample_varlen_attention(t: Maker, n: int, h: int, d: int) -> Any:
    """Two sequences, one of which is three times as long as the other."""
    starts = torch.tensor([0, n // 4, n], dtype=torch.int32, device=t.device)
    return ops.varlen_attention(
        t(n, h, d), t(n, h, d), t(n, h, d), starts, starts, n - n // 4, n - n // 4, is_causal=True
    )


_MLP = "rows x width x inner width"
_ROWS, _INNER = "rows x width", "rows x inner width"
_ATTENTION = "batch x heads x tokens x head width"
_LISTED = sorted(ACTIVATIONS.keys() & OPERATIONS.keys())
SAMPLES: Mapping[str, Sample] = {
    **{name: Sample(_INNER, _rows_and_inner, partial(_sample_activation, name)) for name in _LISTED},
    "bias_gelu": Sample(_INNER, _rows_and_inner, lambda t, r, w: ops.bias_gelu(t(r, w), t(w))),
    "layer_norm": Sample(_ROWS, _rows_and_width, lambda t, r, w: ops.layer_norm(t(r, w), t(w), t(w))),
    "rms_norm": Sample(_ROWS, _rows_and_width, lambda t, r, w: ops.rms_norm(t(r, w), t(w))),
    "dropout_add_norm": Sample(_ROWS, _rows_and_width, _sample_dropout_add_norm),
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
    "linear": Sample(
        "rows x width x features",
        lambda m: (m.rows, m.width, m.vocabulary),
        lambda t, r, w, f: ops.linear(t(r, w), t.weight(f, w)),
    ),
    "rotary": Sample(
        _ATTENTION, _heads, lambda t, b, h, n, d: ops.rotary(t(b, h, n, d), t.constant(n, d), t.constant(n, d))
    ),
    "rotary_pair": Sample(
        _ATTENTION,
        _heads,
        lambda t, b, h, n, d: ops.rotary_pair(t(b, h, n, d), t(b, h, n, d), t.constant(n, d), t.constant(n, d)),
    ),
    "masked_softmax": Sample("batch x heads x tokens x keys", _scores, _sample_masked_softmax),
    "attention": Sample(_ATTENTION, _heads, _sample_attention),
    "varlen_attention": Sample(
        "tokens x heads x head width", lambda m: (m.rows, m.heads, m.head), _sample_varlen_attention
    ),
    "soft_capped_attention": Sample(_ATTENTION, _heads, _sample_soft_capped_attention),
    "sink_attention": Sample(_ATTENTION, _heads, _sample_sink_attention),
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


def sample_call(operation: str, shape: Shape, maker: Maker) -> RecordedCall:
    """A call of `operation` on tensors of this shape. Runs it once to record the arguments.

    Raises:
        ValueError: if there is no sample of the operation, or the shape has another number of sizes.
    """
    if operation not in SAMPLES:
        raise ValueError(f"There is no sample call of {operation!r}. Use one of {', '.join(sorted(SAMPLES))}.")
    sample = SAMPLES[operation]
    if len(shape) != len(sample.sizes.split(" x ")):
        raise ValueError(f"{operation} takes a shape of {sample.sizes}, but got {'x'.join(map(str, shape))}.")
    with record_calls() as calls, torch.set_grad_enabled(maker.training):
        sample.call(maker, *shape)
    call = next((c for c in calls if c.operation.name == operation), None)
    if call is None:
        raise ValueError(f"{operation} has only one provider, so there is nothing to measure.")
    return call
