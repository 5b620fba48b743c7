"""Kernels for tests that read rows at places computed in 32 bits, and one that takes 64."""

import torch
import triton
import triton.language as tl

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.triton.launch import launch


@triton.jit
def by_row(x_ptr, y_ptr, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@triton.jit
def by_block(x_ptr, y_ptr, entries, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < entries), mask=at < entries)


@triton.jit
def by_loop(x_ptr, y_ptr, rows, stride, BLOCK: tl.constexpr):
    for row in range(0, rows):
        at = tl.arange(0, BLOCK) + row * stride
        tl.store(y_ptr + at, tl.load(x_ptr + at))


@triton.jit
def too_late(x_ptr, y_ptr, stride, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * stride).to(tl.int64) + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@triton.jit
def in_time(x_ptr, y_ptr, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * stride + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK
    tl.store(y_ptr + at + column, tl.load(x_ptr + at + column))


def forward(kernel, *numbers):
    x = sample(64, 1024)
    launch(kernel, (64,), x, torch.empty_like(x), *numbers, BLOCK=1024, threads=128)


AHEAD = (
    Ahead("by row", lambda: forward(by_row, 1024)),
    Ahead("by block", lambda: forward(by_block, 65536)),
    Ahead("by loop", lambda: forward(by_loop, 64, 1024)),
    Ahead("too late", lambda: forward(too_late, 1024)),
    Ahead("in time", lambda: forward(in_time, 1024)),
)
