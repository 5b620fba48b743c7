"""The grid: every operation at the shapes of real models, with the code that it is compared with.

Shapes come from the models' published configurations: GPT-2 (Radford et al., 2019), BERT (arXiv:1810.04805), Llama 3
(arXiv:2407.21783) and TinyLlama (arXiv:2401.02385). Batches and lengths are chosen so that each device is well used.
This file measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse import ops
from benchmarks import spelled

Bound = Literal["memory", "compute"]


@dataclass(frozen=True)
class Model:
    """The sizes of a model. `inner` is the width between the two layers of its MLP."""

    name: str
    batch: int
    length: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def rows(self) -> int:
        return self.batch * self.length


GRIDS: Mapping[str, tuple[Model, ...]] = MappingProxyType(
    {
        "cpu": (
            Model("gpt2", 2, 512, 768, 12, 12, 3072, 50257),
            Model("bert", 8, 128, 768, 12, 12, 3072, 30522),
            Model("tinyllama", 1, 512, 2048, 32, 4, 5632, 32000),
        ),
        "gpu": (
            Model("gpt2", 16, 1024, 768, 12, 12, 3072, 50257),
            Model("bert-large", 32, 512, 1024, 16, 16, 4096, 30522),
            Model("llama-1b", 4, 2048, 2048, 32, 8, 8192, 128256),
            Model("llama-8b", 2, 4096, 4096, 32, 8, 14336, 128256),
        ),
        "toy": (Model("toy", 2, 33, 48, 3, 1, 100, 257),),
    }
)


@dataclass(frozen=True)
class Input:
    """A tensor to make.

    Attributes:
        shape: its shape.
        kind: "data" (normal numbers), "heads" (the same, with heads moved before positions), "classes" (indices below
            `below`), "mask" (True on and below the diagonal), "padding" (True except for the last quarter), "cos",
            "sin" (rotary factors of halves), "cos of pairs", "sin of pairs" (of neighbouring pairs).
        learns: whether it requires a gradient.
        below: the number of classes.
        scale: the factor of normal numbers.
    """

    shape: tuple[int, ...]
    kind: str = "data"
    learns: bool = True
    below: int = 0
    scale: float = 1.0


@dataclass(frozen=True)
class Case:
    """One operation at one shape: as models write it, as torch has it, and as autofuse.ops computes it.

    All three take the same tensors.

    Attributes:
        operation: the name in autofuse.ops.
        name: the name of the case.
        model: the sizes.
        inputs: the tensors.
        spelled: the code as models write it.
        ours: the call of autofuse.ops.
        native: torch's fused function, if there is one.
        bound: what limits the operation, which decides about its roof.
        flops: the share of the hand-written code's matrix products that is needed (a half under a causal mask).
        draws: whether it has dropout, so that two calls differ.
        modes: "training" and "inference".
    """

    operation: str
    name: str
    model: Model
    inputs: tuple[Input, ...]
    spelled: Callable[..., Any]
    ours: Callable[..., Any]
    native: Callable[..., Any] | None = None
    bound: Bound = "memory"
    flops: float = 1.0
    draws: bool = False
    modes: tuple[str, ...] = field(default=("training", "inference"))

    @property
    def label(self) -> str:
        return f"{self.name}, {self.model.name}"

    def tensors(self, device: torch.device, dtype: torch.dtype, training: bool, seed: int = 0) -> list[Tensor]:
        """The inputs, equal for the same seed on one device. On the meta device they have no data."""
        generator = None if device.type == "meta" else torch.Generator(device).manual_seed(seed)
        made = [_make_input(i, generator, device) for i in self.inputs]
        made = [t.to(dtype) if t.is_floating_point() else t for t in made]
        wanted = [training and i.learns and t.is_floating_point() for i, t in zip(self.inputs, made, strict=True)]
        return [t.detach().requires_grad_(w) for t, w in zip(made, wanted, strict=True)]


def cases(grid: str, only: tuple[str, ...] = ()) -> list[Case]:
    """All cases of a grid, or those of some operations."""
    found = [case for model in GRIDS[grid] for case in cases_of(model)]
    return [c for c in found if not only or c.operation in only]


def cases_of(model: Model) -> list[Case]:
    """All cases at the sizes of one model. Operations that this version of autofuse.ops lacks are left out."""
    return [case for part in _PARTS for case in part(model) if hasattr(ops, case.operation)]


def _attention(m: Model) -> Iterator[Case]:
    query = Input((m.batch, m.length, m.heads, m.head_dim), "heads")
    key = Input((m.batch, m.length, m.kv_heads, m.head_dim), "heads")
    causal = Input((m.length, m.length), "mask", learns=False)
    padding = Input((m.batch, 1, 1, m.length), "padding", learns=False)
    scale = 1 / math.sqrt(m.head_dim)
    grouped = m.heads != m.kv_heads

    def native(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **named: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=grouped, **named)

    def ours(q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Tensor:
        if grouped:
            q, k, v = q.unflatten(1, (m.kv_heads, -1)), k.unsqueeze(2), v.unsqueeze(2)
        out = ops.attention(q, k, v, scale=scale, **named)
        return out.flatten(1, 2) if grouped else out

    yield Case(
        "attention", "attention, causal", m, (query, key, key, causal), spelled.attention,
        lambda q, k, v, mask: ours(q, k, v, is_causal=True),
        lambda q, k, v, mask: native(q, k, v, None, is_causal=True), "compute", 0.5,
    )  # fmt: skip
    if grouped:
        return
    yield Case(
        "attention", "attention, padding mask", m, (query, key, key, padding), spelled.attention,
        lambda q, k, v, mask: ours(q, k, v, mask=mask), lambda q, k, v, mask: native(q, k, v, mask), "compute",
    )  # fmt: skip
    yield Case(
        "attention", "attention, dropout", m, (query, key, key, padding), lambda *a: spelled.attention(*a, 0.1),
        lambda q, k, v, mask: ours(q, k, v, mask=mask, dropout_p=0.1, training=True),
        lambda q, k, v, mask: native(q, k, v, mask, dropout_p=0.1), "compute", draws=True, modes=("training",),
    )  # fmt: skip


def _softmax(m: Model) -> Iterator[Case]:
    scores = Input((m.batch, m.heads, min(m.length, 1024), min(m.length, 1024)))
    mask = Input(scores.shape[-2:], "mask", learns=False)
    yield Case(
        "masked_softmax", "masked softmax", m, (scores, mask), spelled.masked_softmax,
        lambda s, mask: ops.masked_softmax(s, mask, scale=0.125),
    )  # fmt: skip


def _norms(m: Model) -> Iterator[Case]:
    x, w = Input((m.batch, m.length, m.width)), Input((m.width,))
    sizes = (m.width,)
    yield Case(
        "layer_norm", "layer norm", m, (x, w, w), spelled.layer_norm, ops.layer_norm,
        lambda x, w, b: F.layer_norm(x, sizes, w, b),
    )  # fmt: skip
    yield Case(
        "rms_norm", "RMS norm", m, (x, w), spelled.rms_norm, ops.rms_norm,
        lambda x, w: F.rms_norm(x, sizes, w, 1e-6),
    )  # fmt: skip
    for p in (0.1, 0.0):
        yield Case(
            "dropout_add_norm", f"dropout {p} + add + layer norm", m, (x, x, w, w),
            lambda x, r, w, b, p=p: spelled.dropout_add_layer_norm(x, r, w, b, p),
            lambda x, r, w, b, p=p: ops.dropout_add_norm(x, r, w, b, dropout_p=p, training=True),
            lambda x, r, w, b, p=p: F.layer_norm(r + F.dropout(x, p), sizes, w, b),
            draws=p > 0, modes=("training",) if p else ("training", "inference"),
        )  # fmt: skip
    yield Case(
        "dropout_add_norm", "add + RMS norm, prenorm", m, (x, x, w), spelled.add_rms_norm,
        lambda x, r, w: ops.dropout_add_norm(x, r, w, eps=1e-6, norm="rms", prenorm=True),
        lambda x, r, w: (x + r, F.rms_norm(x + r, sizes, w, 1e-6)),
    )  # fmt: skip


def _activations(m: Model) -> Iterator[Case]:
    hidden, bias = Input((m.batch, m.length, m.inner)), Input((m.inner,))
    packed = Input((m.batch, m.length, 2 * m.inner))
    yield Case("gelu", "GELU", m, (hidden,), spelled.gelu, ops.gelu, F.gelu)
    yield Case(
        "gelu_tanh", "GELU (tanh)", m, (hidden,), spelled.gelu_tanh, ops.gelu_tanh,
        lambda x: F.gelu(x, approximate="tanh"),
    )  # fmt: skip
    yield Case(
        "bias_gelu", "bias + GELU (tanh)", m, (hidden, bias), spelled.bias_gelu,
        lambda x, b: ops.bias_gelu(x, b, approximate="tanh"), lambda x, b: F.gelu(x + b, approximate="tanh"),
    )  # fmt: skip
    yield Case(
        "gated_product", "SwiGLU", m, (hidden, hidden), spelled.swiglu, ops.gated_product, lambda g, u: F.silu(g) * u
    )
    yield Case("gated_activation", "SwiGLU, packed", m, (packed,), spelled.swiglu_packed, ops.gated_activation)


def _layers(m: Model) -> Iterator[Case]:
    x = Input((m.batch, m.length, m.width))
    up = Input((m.inner, m.width), scale=m.width**-0.5)
    down = Input((m.width, m.inner), scale=m.inner**-0.5)
    yield Case(
        "mlp", "MLP (GELU)", m, (x, up, Input((m.inner,)), down, Input((m.width,))), spelled.mlp, ops.mlp,
        lambda x, u, ub, d, db: F.linear(F.gelu(F.linear(x, u, ub)), d, db), "compute",
    )  # fmt: skip
    yield Case("gated_mlp", "gated MLP (SwiGLU)", m, (x, up, up), spelled.gated_mlp, ops.gated_mlp, None, "compute")


def _rotary(m: Model) -> Iterator[Case]:
    x = Input((m.batch, m.length, m.heads, m.head_dim), "heads")

    def factors(which: str) -> tuple[Input, Input]:
        shape = (m.length, m.head_dim)
        return Input(shape, f"cos{which}", learns=False), Input(shape, f"sin{which}", learns=False)

    yield Case("rotary", "rotary", m, (x, *factors("")), spelled.rotary, ops.rotary)
    yield Case(
        "rotary", "rotary, interleaved", m, (x, *factors(" of pairs")), spelled.rotary_interleaved,
        lambda x, c, s: ops.rotary(x, c, s, interleaved=True),
    )  # fmt: skip
    key = Input((m.batch, m.length, m.kv_heads, m.head_dim), "heads")
    yield Case(
        "rotary_pair", "rotary of query and key", m, (x, key, *factors("")),
        lambda q, k, c, s: (spelled.rotary(q, c, s), spelled.rotary(k, c, s)), ops.rotary_pair,
    )  # fmt: skip


def _losses(m: Model) -> Iterator[Case]:
    logits = Input((m.rows, m.vocabulary))
    target = Input((m.rows,), "classes", learns=False, below=m.vocabulary)
    x, weight = Input((m.rows, m.width)), Input((m.vocabulary, m.width), scale=m.width**-0.5)
    yield Case(
        "cross_entropy", "cross entropy", m, (logits, target), spelled.cross_entropy,
        lambda x, t: ops.cross_entropy(x, t, dim=-1), F.cross_entropy,
    )  # fmt: skip
    yield Case("linear", "head", m, (x, weight), lambda x, w: x @ w.T, ops.linear, F.linear, "compute")
    yield Case(
        "linear_cross_entropy", "linear + cross entropy", m, (x, weight, target), spelled.linear_cross_entropy,
        ops.linear_cross_entropy, lambda x, w, t: F.cross_entropy(F.linear(x, w), t), "compute",
        modes=("training",),
    )  # fmt: skip


_PARTS = (_attention, _softmax, _norms, _activations, _layers, _rotary, _losses)


def _make_input(wanted: Input, generator: torch.Generator | None, device: torch.device) -> Tensor:
    shape = wanted.shape
    match wanted.kind:
        case "classes":
            return torch.randint(wanted.below, shape, generator=generator, device=device)
        case "mask":
            return torch.ones(shape, dtype=torch.bool, device=device).tril()
        case "padding":
            return (torch.arange(shape[-1], device=device) < shape[-1] - shape[-1] // 4).expand(shape).contiguous()
        case "cos" | "sin" | "cos of pairs" | "sin of pairs":
            return getattr(_angles(shape[0], shape[1], wanted.kind.endswith("pairs"), device), wanted.kind[:3])()
        case "heads":
            return torch.randn(shape, generator=generator, device=device).transpose(1, 2)
    return torch.randn(shape, generator=generator, device=device) * wanted.scale


def _angles(length: int, width: int, pairs: bool, device: torch.device) -> Tensor:
    """(length, width), one angle for both entries of a pair: neighbours, or entry i of each half."""
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    turns = torch.outer(torch.arange(length, device=device), frequencies)
    return turns.repeat_interleave(2, -1) if pairs else torch.cat((turns, turns), -1)
