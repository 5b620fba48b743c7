"""Losses of rows of logits, and the gradient of the logits in the memory of the logits, in one Triton kernel.

A program computes one row. It reads the row once for the maximum and the sum of exponentials (as in cross_entropy.py),
and again, mostly from the cache, for the gradient, which it writes over the logits. Blocks that lie completely in the
row are read without a mask. So a number of classes that is not a multiple of 16 makes only the last loads short. The
logits are lost.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.triton.launch import launch

# Entries of two bytes in a block; half as many of four bytes. The best on an H100 for few, several and many classes of
# those that spill on no GPU (benchmarks/results/gpu-h100/sweep.json).
_BLOCK_OF_FEW, _BLOCK, _BLOCK_OF_MANY = 1024, 4096, 16384
_FEW, _MANY = 4096, 65536  # classes


def losses_and_gradient(
    logits: Tensor, target: Tensor, share: Tensor, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """The loss of each row (0 if it is ignored), and the gradient of sum(share * losses), which overwrites `logits`.

    Shapes: logits (rows, C), with any distance between rows; target int64 (rows,), share fp32 (rows,). The losses are
    (rows,), in fp32. Logits whose rows are not contiguous are copied first.
    """
    logits = logits if logits.stride(-1) == 1 or logits.shape[-1] < 2 else logits.contiguous()
    rows, classes = logits.shape
    made = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block, threads = _block(classes, logits.element_size())
    if rows:
        launch(
            _losses_and_gradient, (rows,), logits, target.contiguous(), share, made, classes, logits.stride(0),
            share.stride(0), ignore_index, float(label_smoothing), SMOOTH=label_smoothing != 0.0, BLOCK=block,
            threads=threads,
        )  # fmt: skip
    return made, logits


def _block(classes: int, itemsize: int) -> tuple[int, int]:
    """The entries of a block, and the threads that share it."""
    largest = _BLOCK_OF_FEW if classes <= _FEW else _BLOCK_OF_MANY if classes >= _MANY else _BLOCK
    block = min(triton.next_power_of_2(max(classes, 1)), 2 * largest // itemsize)
    return block, min(max(block * itemsize // 32, 32), 512)


@triton.jit
def _losses_and_gradient(
    LOGITS, TARGET, SHARE, LOSSES, classes, stride, share_stride, ignore_index, smoothing, SMOOTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(TARGET + row)
    entries = LOGITS + row * stride
    offsets = tl.arange(0, BLOCK)
    whole = classes // BLOCK * BLOCK  # the classes in blocks that need no mask
    inside = whole + offsets < classes
    if target == ignore_index:
        nothing = tl.zeros((BLOCK,), tl.float32).to(LOGITS.dtype.element_ty)
        for start in range(0, whole, BLOCK):
            tl.store(entries + start + offsets, nothing)
        tl.store(entries + whole + offsets, nothing, mask=inside)
        tl.store(LOSSES + row, 0.0)
        return
    valid = (target >= 0) & (target < classes)
    wanted = tl.load(entries + target, mask=valid, other=float("nan")).to(tl.float32)
    x = tl.load(entries + whole + offsets, mask=inside, other=-float("inf")).to(tl.float32)
    largest = tl.max(x, 0)
    shift = tl.where(largest == -float("inf"), 0.0, largest)  # inf - inf would be nan
    total = tl.exp(x - shift)  # one sum for each place, so that a block needs one reduction, its maximum
    plain = tl.zeros((), tl.float32)  # another vector like `total` would spill on sm_80
    if SMOOTH:
        plain += tl.sum(tl.where(inside, x, 0.0), 0)
    for start in range(0, whole, BLOCK):
        x = tl.load(entries + start + offsets).to(tl.float32)
        before = largest
        largest = tl.maximum(largest, tl.max(x, 0))
        shift = tl.where(largest == -float("inf"), 0.0, largest)
        total = total * tl.exp(before - shift) + tl.exp(x - shift)
        if SMOOTH:
            plain += tl.sum(x, 0)
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    normalizer = shift + tl.log(tl.sum(total, 0))
    loss = normalizer - wanted
    even = 0.0
    share = tl.load(SHARE + row * share_stride).to(tl.float32)
    if SMOOTH:
        loss = loss * (1.0 - smoothing) + (normalizer * classes - plain) * (smoothing / classes)
        even = share * (smoothing / classes)
    tl.store(LOSSES + row, loss)
    of_target = share * (1.0 - smoothing)
    tl.debug_barrier()  # all threads must have read the target's logit before the gradient replaces it
    for start in range(0, whole, BLOCK):
        x = tl.load(entries + start + offsets).to(tl.float32)
        change = tl.exp(x - normalizer) * share - even
        change = tl.where(start + offsets == target, change - of_target, change)
        tl.store(entries + start + offsets, change.to(LOGITS.dtype.element_ty))
    x = tl.load(entries + whole + offsets, mask=inside, other=0.0).to(tl.float32)
    change = tl.exp(x - normalizer) * share - even
    change = tl.where(whole + offsets == target, change - of_target, change)
    tl.store(entries + whole + offsets, change.to(LOGITS.dtype.element_ty), mask=inside)


def _example_call(rows: int, classes: int, dtype: torch.dtype, smoothing: float) -> None:
    room = sample(rows, -(-classes // 64) * 64, dtype=dtype)  # rows begin at multiples of 128 bytes (row_blocks.py)
    logits, target = room[:, :classes], sample(rows, dtype=torch.int64)
    losses_and_gradient(logits, target, sample(rows, dtype=torch.float32), -100, smoothing)


AHEAD = (
    Ahead("bf16, 1024 rows of 128256", lambda: _example_call(1024, 128256, torch.bfloat16, 0.0)),
    Ahead("fp32, 512 rows of 50257, smooth", lambda: _example_call(512, 50257, torch.float32, 0.1)),
    Ahead("bf16, 4096 rows of 50304", lambda: _example_call(4096, 50304, torch.bfloat16, 0.0), quick=False),
)
