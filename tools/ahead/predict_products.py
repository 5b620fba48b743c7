"""The performance model of a linear layer's cross entropy: matrix products in blocks of rows, and what stands between.

For each block of rows three products of its logits, each of which reads or writes the whole weight, a sum of the
weight's gradient over blocks, and passes over the logits. Must not know how the operation chooses its blocks.
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


# A loss that reads the logits and a gradient that reads and writes others; a bf16 product written, read again, and an
# fp32 sum read and written. Now: in place, and the product adds to the sum as it is written.
BEFORE = Way(rows=523, logits=6, sums=12)
NOW = Way(rows=4096, logits=6, sums=8)
NOW_IN_256_MIB = Way(rows=1024, logits=6, sums=8)


def seconds(rows: int, width: int, classes: int, way: Way, gpu: Gpu) -> float:
    """A step's loss and gradients in bfloat16: x (rows, width), a weight (classes, width). A prediction."""
    blocks = -(-rows // way.rows)
    padded = -(-way.rows // way.tile) * way.tile  # what is left over of a tile takes as long as a whole one
    products = 3 * 2 * padded * width * classes / (PRODUCTS * gpu.peak.flops["bfloat16"])
    weight = classes * width
    moved = 2 * way.rows * classes * way.logits + weight * (2 * 2 + way.sums)
    return blocks * (products + moved / gpu.copy + 6 * FIXED)
