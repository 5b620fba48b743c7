"""The calls of row-wise kernels for the performance model: widths from 768 to 16384, bfloat16.

Tensors have 2^26 entries (128 MiB, more than all but one of NVIDIA's second-level caches) and no data. Each backward
pass follows its forward pass, as a separate call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from autofuse.kernels.ahead_of_time import sample
from autofuse.kernels.triton import activations, cross_entropy, cross_entropy_in_place, gated, norm, rotary, softmax

WIDTHS = (768, 1024, 2048, 3072, 4096, 5120, 8192, 11008, 16384)
ENTRIES = 2**26
BF16, FP32 = torch.bfloat16, torch.float32
Call = Callable[[], object]


Make = Callable[..., Tensor]  # a tensor of some shape, `dtype` bfloat16 unless it is given


def cases(width: int, entries: int = ENTRIES, sample: Make = sample) -> Mapping[str, Call]:
    """Return calls by name, for rows of `width` in tensors with about `entries` entries, made by `sample`."""
    rows = max(entries // width, 1)
    x, weight, one = sample(rows, width), sample(width), sample(rows, 1, dtype=FP32)
    seed, numbers = sample(1, dtype=torch.int64), sample(rows, dtype=FP32)
    target = sample(rows, dtype=torch.int64)

    def norm_call(residual: bool, seeded: bool, centred: bool) -> Call:
        other, drawn = x if residual else None, seed if seeded else None
        # sample() makes a separate tensor for each operand; a shared tensor's bytes would count only once
        other = sample(rows, width) if residual else other
        p, bias = (0.1 if seeded else 0.0), (weight if centred else None)
        return lambda: norm.forward(x, other, weight, bias, drawn, p, 1e-5, centred, BF16, BF16)

    def back(residual: bool, seeded: bool, centred: bool) -> Call:
        carried, drawn = sample(rows, width) if residual else None, seed if seeded else None
        given, mean, p = sample(rows, width), one if centred else None, 0.1 if seeded else 0.0
        rstd, apart = sample(rows, 1, dtype=FP32), BF16 if seeded else None
        return lambda: norm.backward(given, carried, x, weight, mean, rstd, drawn, p, BF16, apart, True, centred)

    up, grad = sample(rows, width), sample(rows, width)
    heads = sample(4, max(entries // 4 // width, 1), max(width // 128, 1), 128).transpose(1, 2)
    angles = sample(heads.shape[2], 64), sample(heads.shape[2], 64)
    return {
        "RMS norm": norm_call(False, False, False),
        "RMS norm, backward": back(False, False, False),
        "add + RMS norm": norm_call(True, False, False),
        "add + RMS norm, backward": back(True, False, False),
        "layer norm": norm_call(False, False, True),
        "layer norm, backward": back(False, False, True),
        "dropout + add + layer norm": norm_call(True, True, True),
        "dropout + add + layer norm, backward": back(True, True, True),
        "SwiGLU": lambda: gated.forward(x, up, "silu"),
        "SwiGLU, backward": lambda: gated.backward(grad, x, up, "silu"),
        "bias + GELU": lambda: activations.forward(x, weight, "gelu"),
        "bias + GELU, backward": lambda: activations.backward(grad, x, weight, "gelu", True),
        "rotary, heads of 128": lambda: rotary.forward(heads, *angles, False, False, BF16),
        "softmax": lambda: softmax.forward(x.view(1, 1, rows, width), None, 0.125, float("-inf")),
        "softmax, backward": lambda: softmax.backward(
            grad.view(1, 1, rows, width), x.view(1, 1, rows, width), None, 0.125
        ),
        "cross entropy": lambda: cross_entropy.losses(x, target, None, -100, 0.0),
        "cross entropy, backward": lambda: cross_entropy.gradient(x, target, None, numbers, numbers, -100, 0.0),
        "cross entropy with its gradient, in place": lambda: cross_entropy_in_place.losses_and_gradient(
            x, target, numbers, -100, 0.0
        ),
    }
