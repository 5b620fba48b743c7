"""Cross entropy in Triton: a program for each row of logits forward, and for each piece of a row backward.

A row may have any number of classes. It is read in blocks, with a running maximum and a running sum of exponentials
(Milakov and Gimelshein, arXiv:1805.02867). The gradient computes the softmax again from the logarithm of that sum. So
nothing of the size of the logits is saved, and neither the logits nor the incoming gradient is overwritten. A target
out of range reads no memory, and its loss is nan.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.triton.cross_entropy_in_place import losses_and_gradient as losses_and_gradient
from autofuse.kernels.triton.launch import launch, unit
from autofuse.kernels.triton.rows import entries

# Entries of a block, which were the best on an H100 (benchmarks/results/gpu-h100/sweep.json). A thread holds 16: two
# loads of 16 bytes in half precision.
_LARGEST_BLOCK, _BLOCK_OF_FEW = 4096, 1024
_FEW = 4096  # classes
_ENTRIES_A_THREAD = 16
_STAGES = 3  # blocks of a row in half precision that are in flight; together they need 24 KiB of shared memory


def losses(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """The loss of each row (0 if it is ignored) and the log-sum-exp of its logits.

    Shapes: logits (rows, C), with any distance between rows, target int64 (rows,), weight (C,). Results: (rows,), fp32.
    """
    logits, target = _with_contiguous_rows(logits), target.contiguous()
    rows, classes = logits.shape
    made = torch.empty(rows, dtype=torch.float32, device=logits.device)
    normalizers = torch.empty_like(made)
    block, threads = _block(classes)
    stages = _STAGES if logits.element_size() == 2 and weight is None else 1
    if rows:
        each, sizes = unit(classes, logits.stride(0))
        launch(
            _losses, (rows,), logits, target, *_weights(weight), made, normalizers, *sizes, ignore_index,
            float(label_smoothing), WEIGHTED=weight is not None, SMOOTH=label_smoothing != 0.0, UNIT=each,
            ALIGNED=_aligned(logits, each), BLOCK=block, STAGES=stages, threads=threads,
        )  # fmt: skip
    return made, normalizers


def gradient(
    logits: Tensor, target: Tensor, weight: Tensor | None, share: Tensor, normalizers: Tensor, ignore_index: int,
    label_smoothing: float,
) -> Tensor:  # fmt: skip
    """The gradient of sum(share * losses) with respect to the logits, in their dtype. share: (rows,), fp32."""
    logits, target = _with_contiguous_rows(logits), target.contiguous()
    rows, classes = logits.shape
    made = torch.empty(rows, classes, dtype=logits.dtype, device=logits.device)
    block, threads = _block(classes)
    if rows and classes:
        each, sizes = unit(classes, logits.stride(0))
        aligned = _aligned(logits, each)
        if aligned and (logits.stride(0) - classes) % aligned:
            aligned = 0  # the rows of input and output have different alignments
        launch(
            _gradient, (rows, triton.cdiv(classes, block)), logits, target, *_weights(weight), share, normalizers, made,
            *sizes, share.stride(0), ignore_index, float(label_smoothing), WEIGHTED=weight is not None,
            SMOOTH=label_smoothing != 0.0, UNIT=each, ALIGNED=aligned, BLOCK=block, threads=threads,
        )  # fmt: skip
    return made


def _with_contiguous_rows(x: Tensor) -> Tensor:
    """The tensor with contiguous rows."""
    return x if x.stride(-1) == 1 or x.shape[-1] < 2 else x.contiguous()


def _aligned(logits: Tensor, each: int) -> int:
    """The number of entries in 16 bytes if some rows begin at an address that is not aligned to 16 bytes; else 0."""
    entries_in_16_bytes = 16 // logits.element_size()
    return 0 if each >= entries_in_16_bytes else entries_in_16_bytes


def _weights(weight: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The weights of the classes, and their sum."""
    return (None, None) if weight is None else (weight.contiguous(), weight.sum(dtype=torch.float32))


def _block(classes: int) -> tuple[int, int]:
    """The entries of a block, and the threads that share it."""
    block = min(triton.next_power_of_2(max(classes, 1)), _BLOCK_OF_FEW if classes <= _FEW else _LARGEST_BLOCK)
    return block, max(block // _ENTRIES_A_THREAD, 32)


@triton.jit
def _middle(start, classes, ALIGNED: tl.constexpr):
    """The aligned part of a row that starts at entry `start`: its first column, and the number of columns."""
    if ALIGNED:
        begin = tl.minimum((ALIGNED - start % ALIGNED) % ALIGNED, classes).to(tl.int32)
        count = (classes - begin) // ALIGNED * ALIGNED
    else:
        begin = 0
        count = classes
    return begin, count


@triton.jit
def _ends(begin, count, classes):
    """The columns before and after the aligned part, and which of these 32 exist."""
    at = tl.arange(0, 32)
    columns = tl.where(at < 16, at, begin + count + at - 16)
    return columns, tl.where(at < 16, at < begin, columns < classes)


@triton.jit
def _starts(row, stride, begin, ALIGNED: tl.constexpr):
    """The entry at which the aligned part of a row starts."""
    start = row * stride + begin
    return tl.multiple_of(start, ALIGNED) if ALIGNED else start


@triton.jit
def _plain(x, columns, inside, WEIGHT, WEIGHTED: tl.constexpr):
    """The contribution of a row's logits to the sum for label smoothing."""
    finite = tl.where(inside, x, 0.0)
    if WEIGHTED:
        finite *= tl.load(WEIGHT + columns, mask=inside, other=0.0).to(tl.float32)
    return finite


@triton.jit
def _losses(
    LOGITS, TARGET, WEIGHT, TOTAL_WEIGHT, LOSSES, NORMALIZERS, classes, stride, ignore_index, smoothing,
    WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, UNIT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """`classes` and `stride` are in units of UNIT entries, so that Triton knows their divisors."""
    classes, stride = classes * UNIT, entries(stride, UNIT)
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(TARGET + row)
    if target == ignore_index:
        tl.store(LOSSES + row, 0.0)
        tl.store(NORMALIZERS + row, 0.0)
        return
    start_of_row = LOGITS + row * stride
    begin, count = _middle(row * stride, classes, ALIGNED)
    middle = LOGITS + _starts(row, stride, begin, ALIGNED)
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)  # one sum for each place, so that a block needs one reduction, its maximum
    plain = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, count, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < count
        x = tl.load(middle + columns, mask=inside, other=-float("inf")).to(tl.float32)
        before = largest
        largest = tl.maximum(largest, tl.max(x, 0))
        shift = tl.where(largest == -float("inf"), 0.0, largest)  # inf - inf would be nan
        total = total * tl.exp(before - shift) + tl.exp(x - shift)
        if SMOOTH:
            plain += _plain(x, begin + columns, inside, WEIGHT, WEIGHTED)
    sum_of_all, smoothed = tl.sum(total, 0), tl.sum(plain, 0)
    if ALIGNED:
        columns, inside = _ends(begin, count, classes)
        x = tl.load(start_of_row + columns, mask=inside, other=-float("inf")).to(tl.float32)
        before = largest
        largest = tl.maximum(largest, tl.max(x, 0))
        shift = tl.where(largest == -float("inf"), 0.0, largest)
        sum_of_all = sum_of_all * tl.exp(before - shift) + tl.sum(tl.exp(x - shift), 0)
        if SMOOTH:
            smoothed += tl.sum(_plain(x, columns, inside, WEIGHT, WEIGHTED), 0)
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    normalizer = shift + tl.log(sum_of_all)
    valid = (target >= 0) & (target < classes)
    wanted = tl.load(start_of_row + target, mask=valid, other=float("nan")).to(tl.float32)
    loss = normalizer - wanted
    if WEIGHTED:
        loss *= tl.load(WEIGHT + target, mask=valid, other=float("nan")).to(tl.float32)
    if SMOOTH:
        if WEIGHTED:
            smooth = normalizer * tl.load(TOTAL_WEIGHT) - smoothed
        else:
            smooth = normalizer * classes - smoothed
        loss = loss * (1.0 - smoothing) + smooth * (smoothing / classes)
    tl.store(LOSSES + row, loss)
    tl.store(NORMALIZERS + row, normalizer)


@triton.jit
def _gradient(
    LOGITS, TARGET, WEIGHT, TOTAL_WEIGHT, SHARE, NORMALIZERS, MADE, classes, stride, share_stride, ignore_index,
    smoothing, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, UNIT: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """share * (a * softmax(logits) - (1 - smoothing) * weight[target] * one_hot(target) - smoothing / C * weight)."""
    classes, stride = classes * UNIT, entries(stride, UNIT)
    row = tl.program_id(0).to(tl.int64)
    begin, count = _middle(row * stride, classes, ALIGNED)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    made = MADE + _starts(row, classes, begin, ALIGNED) + at
    if ALIGNED:
        ends, at_ends = _ends(begin, count, classes)
        at_ends = at_ends & (tl.program_id(1) == 0)
    target = tl.load(TARGET + row)
    if target == ignore_index:
        tl.store(made, tl.zeros((BLOCK,), tl.float32).to(MADE.dtype.element_ty), mask=at < count)
        if ALIGNED:
            tl.store(MADE + row * classes + ends, tl.zeros((32,), tl.float32).to(MADE.dtype.element_ty), mask=at_ends)
        return
    share = tl.load(SHARE + row * share_stride).to(tl.float32)
    of_target = share * (1.0 - smoothing)
    whole = share
    if WEIGHTED:
        valid = (target >= 0) & (target < classes)
        of_target *= tl.load(WEIGHT + target, mask=valid, other=float("nan")).to(tl.float32)
        whole = of_target
        if SMOOTH:
            whole += share * (smoothing / classes) * tl.load(TOTAL_WEIGHT)
    even = share * (smoothing / classes)
    normalizer = tl.load(NORMALIZERS + row)
    x = tl.load(LOGITS + _starts(row, stride, begin, ALIGNED) + at, mask=at < count, other=0.0).to(tl.float32)
    change = _change(x, begin + at, at < count, target, normalizer, whole, of_target, even, WEIGHT, WEIGHTED, SMOOTH)
    tl.store(made, change.to(MADE.dtype.element_ty), mask=at < count)
    if ALIGNED:
        x = tl.load(LOGITS + row * stride + ends, mask=at_ends, other=0.0).to(tl.float32)
        change = _change(x, ends, at_ends, target, normalizer, whole, of_target, even, WEIGHT, WEIGHTED, SMOOTH)
        tl.store(MADE + row * classes + ends, change.to(MADE.dtype.element_ty), mask=at_ends)


@triton.jit
def _change(
    x, columns, inside, target, normalizer, whole, of_target, even, WEIGHT, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr
):
    """The gradient of the logits `x` in some columns of a row."""
    change = tl.exp(x - normalizer) * whole
    if SMOOTH:
        if WEIGHTED:
            change -= even * tl.load(WEIGHT + columns, mask=inside, other=0.0).to(tl.float32)
        else:
            change -= even
    return tl.where(columns == target, change - of_target, change)


def _example_call(rows: int, classes: int, dtype: torch.dtype, weighted: bool, smoothing: float) -> None:
    logits, target = sample(rows, classes, dtype=dtype), sample(rows, dtype=torch.int64)
    weight = sample(classes, dtype=dtype) if weighted else None
    share = sample(rows, dtype=torch.float32)
    normalizers = losses(logits, target, weight, -100, smoothing)[1]
    gradient(logits, target, weight, share, normalizers, -100, smoothing)


AHEAD = (
    Ahead("bf16, 8192 rows of 50257", lambda: _example_call(8192, 50257, torch.bfloat16, False, 0.0)),
    Ahead("bf16, 8192 rows of 128256", lambda: _example_call(8192, 128256, torch.bfloat16, False, 0.0)),
    Ahead(
        "fp32, 1000 rows of 50257, weighted and smooth", lambda: _example_call(1000, 50257, torch.float32, True, 0.1)
    ),
    Ahead(
        "fp32, 8192 rows of 50304, smooth", lambda: _example_call(8192, 50304, torch.float32, False, 0.1), quick=False
    ),
    Ahead("bf16, 65536 rows of 1000", lambda: _example_call(65536, 1000, torch.bfloat16, False, 0.1), quick=False),
)
