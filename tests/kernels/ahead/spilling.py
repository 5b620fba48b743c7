"""A kernel for tests: column sums times column maxima, in as many or as few warps as its caller says."""

import torch
import triton
import triton.language as tl

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.triton.launch import launch


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def columns(x_ptr, y_ptr, rows, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    most = tl.zeros((BLOCK,), tl.float32)
    for row in range(0, rows):
        x = tl.load(x_ptr + tl.cast(row, tl.int64) * BLOCK + at)
        total += x
        most = _larger(most, x)
    tl.store(y_ptr + at, total * most)


@triton.jit
def forgotten(x_ptr):
    tl.store(x_ptr, 0.0)


def forward(x, warps):
    y = torch.empty_like(x[0])
    launch(columns, (1,), x, y, x.shape[0], BLOCK=x.shape[1], threads=32 * warps)
    return y


AHEAD = (
    Ahead("4096 in 16 warps", lambda: forward(sample(64, 4096, dtype=torch.float32), 16)),
    Ahead("4096 in one warp", lambda: forward(sample(64, 4096, dtype=torch.float32), 1), occupancy=0.0),
    Ahead("2048 in 8 warps, all of it", lambda: forward(sample(64, 2048, dtype=torch.float32), 8), occupancy=1.0),
    Ahead("1024, when there is time", lambda: forward(sample(64, 1024, dtype=torch.float32), 8), quick=False),
)
