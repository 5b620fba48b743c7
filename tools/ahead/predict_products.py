"""The performance model of linear layer + cross entropy: matrix products in blocks of rows, and passes over the logits.

Each block of rows has three products, each of which reads or writes the whole weight, a sum of the weight's gradient
over blocks, and passes over the logits. This file does not depend on how the operation chooses its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.ahead.predict_gpus import FIXED, Gpu
from tools.ahead.predict_published import PRODUCTS


@dataclass(frozen=True)
class Way:
    """rows: of a block. logits: passes over a block's logits, reads and writes. sums: bytes read and written for each
    entry of the weight's gradient and block, beside the product itself. tile: rows that a product takes at a time."""

    rows: int
    logits: int
    sums: int
    tile: int = 256


# Before: the loss reads the logits, and the gradient reads and writes another tensor. The bf16 product is written and
# read, and the fp32 sum is read and written. Now: the gradient is in place, and the product accumulates into the sum.
BEFORE = Way(rows=523, logits=6, sums=12)
NOW = Way(rows=4096, logits=6, sums=8)
NOW_IN_256_MIB = Way(rows=1024, logits=6, sums=8)


def seconds(rows: int, width: int, classes: int, way: Way, gpu: Gpu) -> float:
    """Predict the seconds for loss and gradients in bfloat16, for x (rows, width) and a weight (classes, width)."""
    blocks = -(-rows // way.rows)
    padded = -(-way.rows // way.tile) * way.tile  # a partial tile takes as long as a full one
    products = 3 * 2 * padded * width * classes / (PRODUCTS * gpu.peak.flops["bfloat16"])
    weight = classes * width
    moved = 2 * way.rows * classes * way.logits + weight * (2 * 2 + way.sums)
    return blocks * (products + moved / gpu.copy + 6 * FIXED)
