"""Kernels for tests whose machine code is poor: loads of 2 bytes, and a division of numbers of 64 bits."""

import torch
import triton
import triton.language as tl

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.triton.launch import launch, unit


@triton.jit
def doubled(x_ptr, y_ptr, width, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    width *= UNIT
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * width
    x = tl.load(x_ptr + row + at, mask=at < width)
    tl.store(y_ptr + row + at, x + x, mask=at < width)


@triton.jit
def divided(x_ptr, y_ptr, heads, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) + tl.load(y_ptr).to(tl.int64)
    at = row // heads * BLOCK + row % heads + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


def forward(width, each):
    x = sample(64, width)
    launch(doubled, (64,), x, torch.empty_like(x), width // each, UNIT=each, BLOCK=8192, threads=256)


def forward_divided():
    x = sample(64, 1024)
    launch(divided, (64,), x, torch.empty_like(x), 12, BLOCK=1024, threads=128)


AHEAD = (
    Ahead("4100, as Triton sees it", lambda: forward(4100, 1)),
    Ahead("4100, in units", lambda: forward(4100, unit(4100)[0])),
    Ahead("4096", lambda: forward(4096, 1)),
    Ahead("divided in 64 bits", forward_divided, access=0.0),
)
