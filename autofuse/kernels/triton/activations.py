"""Activations on the GPU, with or without a bias: one kernel forward, and one backward that sums the bias gradient too.

The formulas are those of autofuse/kernels/compiled/activations.py, in float32. There is no autograd here.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.devices import multiprocessors
from autofuse.kernels.row_shapes import ceil_div, contiguous_like, row_distance, row_layout
from autofuse.kernels.triton.launch import launch, unit
from autofuse.kernels.triton.rows import entries

_TILE = 2048  # entries of a program: 16 for each thread, two loads of 8 halves or four of 4 floats
THREADS = 128
_WAVES = 8  # programs for each multiprocessor if programs loop over rows; the best on an H100 of 4, 8 and 16


@triton.jit
def _sigmoid(x):
    """sigmoid(x) and its slope, without the difference 1 - s, which loses digits if s is near 1."""
    e = tl.exp(-tl.abs(x))
    t = 1.0 / (1.0 + e)
    return tl.where(x > 0.0, t, e * t), e * t * t


@triton.jit
def sloped(x, ACTIVATION: tl.constexpr):
    """activation(x) and its derivative, in float32."""
    if ACTIVATION == "gelu":
        below = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
        value = x * below
        slope = below + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    elif ACTIVATION == "gelu_of_halves":
        # The tail of the normal distribution as a polynomial times its density, Abramowitz & Stegun (1964), 7.1.26. The
        # error is below 1.5e-7, and value and slope share one exponential.
        density = tl.exp(-0.5 * x * x)
        t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))
        tail = ((((0.530702715 * t - 0.726576014) * t + 0.710706871) * t - 0.142248368) * t + 0.127414796) * t * density
        below = tl.where(x > 0.0, 1.0 - tail, tail)
        value = x * below
        slope = below + x * density * 0.3989422804014327
    elif ACTIVATION == "gelu_tanh":
        s, of_s = _sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
        near = tl.minimum(tl.maximum(x, -20.0), 20.0)  # beyond, the slope is 0; 0 times an infinite square would be nan
        value = x * s
        slope = s + near * of_s * (1.5957691216057308 * (1.0 + 0.134145 * near * near))
    elif ACTIVATION == "silu":
        s, of_s = _sigmoid(x)
        value = x * s
        slope = s + x * of_s
    elif ACTIVATION == "quick_gelu":
        s, of_s = _sigmoid(1.702 * x)
        value = x * s
        slope = s + 1.702 * x * of_s
    elif ACTIVATION == "relu":
        value = tl.where(x <= 0.0, 0.0, x)  # keeps nan
        slope = tl.where(x > 0.0, 1.0, 0.0)
    elif ACTIVATION == "relu_squared":
        r = tl.where(x <= 0.0, 0.0, x)
        value = r * r
        slope = 2.0 * r
    elif ACTIVATION == "mish":
        e = tl.exp(tl.minimum(x, 20.0))
        n = e * (e + 2.0)
        t = n / (n + 2.0)
        value = x * t
        slope = t + x * (e / (1.0 + e)) * (1.0 - t * t)
    elif ACTIVATION == "hardswish":
        inner = tl.where(x < 3.0, x / 3.0 + 0.5, 1.0)
        value = x * tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0
        slope = tl.where(x > -3.0, inner, 0.0)
    elif ACTIVATION == "sigmoid":
        value, slope = _sigmoid(x)
    elif ACTIVATION == "tanh":
        s, _ = _sigmoid(2.0 * x)
        value = 2.0 * s - 1.0
        slope = 1.0 - value * value
    else:
        tl.static_assert(ACTIVATION == "identity")
        value = x
        slope = x * 0.0 + 1.0
    return value, slope


@triton.jit
def _forward(
    X, BIAS, Y, rows, hidden, x_stride,
    ACTIVATION: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Here and below, `hidden` and strides are in units of UNIT entries, so that Triton knows their divisors."""
    hidden, x_stride = hidden * UNIT, entries(x_stride, UNIT)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < hidden)
    x = tl.load(X + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if BIAS is not None:
        x += tl.load(BIAS + column, mask=column < hidden, other=0.0).to(tl.float32)
    value, _ = sloped(x, ACTIVATION)
    tl.store(Y + row * hidden + column, value.to(Y.dtype.element_ty), mask=mask)


@triton.jit
def _backward(
    GRAD, X, BIAS, DX, Y, PARTIAL, rows, hidden, grad_stride, x_stride, rows_each,
    ACTIVATION: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Programs divide columns into blocks and rows into runs of `rows_each`; each sums its part of the gradient."""
    hidden, grad_stride, x_stride = hidden * UNIT, entries(grad_stride, UNIT), entries(x_stride, UNIT)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    first = tl.program_id(0).to(tl.int64) * rows_each
    total = tl.zeros((1, COLUMNS), tl.float32)
    if BIAS is not None:
        bias = tl.load(BIAS + column, mask=column < hidden, other=0.0).to(tl.float32)
    for start in range(first, tl.minimum(first + rows_each, rows), ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        mask = (row < rows) & (column < hidden)
        x = tl.load(X + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(GRAD + row * grad_stride + column, mask=mask, other=0.0).to(tl.float32)
        if BIAS is not None:
            x += bias
        value, slope = sloped(x, ACTIVATION)
        grad = tl.where(mask, grad * slope, 0.0)
        tl.store(DX + row * hidden + column, grad.to(DX.dtype.element_ty), mask=mask)
        if Y is not None:
            tl.store(Y + row * hidden + column, value.to(Y.dtype.element_ty), mask=mask)
        if PARTIAL is not None:
            total += tl.sum(grad, axis=0)[None, :]
    if PARTIAL is not None:
        tl.store(PARTIAL + tl.program_id(0).to(tl.int64) * hidden + column, total, mask=column < hidden)


@lru_cache(maxsize=256)
def tile(hidden: int) -> tuple[int, int]:
    """Rows and columns of a program's entries: whole rows up to 1024 columns, as many as make a tile."""
    columns = min(triton.next_power_of_2(hidden), 1024)
    return _TILE // columns, columns


def evened(*operands: Tensor) -> tuple[Tensor, ...]:
    """Contiguous operands of one shape as rows of a width that is a multiple of 16, if such rows exist.

    For elementwise computations: threads then load 16 bytes at a time, whatever the width was.
    """
    if operands[0].shape[-1] % 16 == 0 or not all(t.is_contiguous() for t in operands):
        return operands
    count = operands[0].numel()
    width = min(count & -count, 1024)
    return operands if width < 16 else tuple(t.view(-1, width) for t in operands)


def formula(activation: str, *operands: Tensor | None) -> str:
    """The name of the formula. That of GELU needs fewer instructions if all operands are in half precision."""
    if activation != "gelu":
        return activation
    return "gelu_of_halves" if all(t is None or t.dtype.itemsize == 2 for t in operands) else activation


def forward(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x + bias), elementwise, in the dtype to which both promote.

    Shapes: x (rows, hidden) with any stride of rows, or contiguous with any dimensions; bias (hidden,) contiguous, or
    None.
    """
    dtype = x.dtype if bias is None else torch.promote_types(x.dtype, bias.dtype)
    made = contiguous_like(x, dtype)
    given, written = (x, made) if bias is not None else evened(x, made)
    rows, hidden, stride = row_layout(given)
    each, (columns, step) = unit(hidden, stride)
    ROWS, COLUMNS = tile(hidden)
    grid = (ceil_div(rows, ROWS), ceil_div(hidden, COLUMNS))
    launch(
        _forward, grid, given, bias, written, rows, columns, step, formula(activation, x, bias), each, ROWS, COLUMNS,
        threads=THREADS,
    )  # fmt: skip
    return made


def backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, activation: str, wants_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and, if needed, of bias, from the gradient of the result. They are the same in every run."""
    return _gradients(grad, x, bias, activation, wants_bias, None)


def backward_again(
    grad: Tensor, x: Tensor, bias: Tensor | None, activation: str, wants_bias: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """`backward`, and activation(x + bias) in x's dtype, for a backward pass that did not save it."""
    value = contiguous_like(x)
    return *_gradients(grad, x, bias, activation, wants_bias, value), value


def _gradients(
    grad: Tensor, x: Tensor, bias: Tensor | None, activation: str, wants_bias: bool, value: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    of_x = contiguous_like(x)
    results = (of_x,) if value is None else (of_x, value)
    given = grad, x, *results
    grad, read, *written = given if bias is not None else evened(*given)
    rows, hidden, stride = row_layout(read)
    each, (columns, *steps) = unit(hidden, row_distance(grad, hidden), stride)
    ROWS, COLUMNS = tile(hidden)
    blocks, programs = ceil_div(hidden, COLUMNS), ceil_div(rows, ROWS)
    if wants_bias:  # the fewest partial sums that keep the device busy
        programs = min(programs, ceil_div(_WAVES * multiprocessors(x.device), blocks))
    rows_each = ceil_div(ceil_div(rows, programs), ROWS) * ROWS
    programs = ceil_div(rows, rows_each)
    partial = torch.empty(programs, hidden, dtype=torch.float32, device=x.device) if wants_bias else None
    launch(
        _backward, (programs, blocks), grad, read, bias, written[0], None if value is None else written[1], partial,
        rows, columns, *steps, rows_each, formula(activation, x, bias), each, ROWS, COLUMNS,
        threads=THREADS if each >= 8 else 2 * THREADS,  # short loads need more addresses, which use registers
    )  # fmt: skip
    return of_x, None if partial is None or bias is None else partial.sum(0).to(bias.dtype)


def _example_call(activation: str, rows: int, hidden: int, dtype: torch.dtype = torch.bfloat16) -> object:
    x, bias, grad = sample(rows, hidden, dtype=dtype), sample(hidden, dtype=dtype), sample(rows, hidden, dtype=dtype)
    return (
        forward(x, bias, activation),
        backward_again(grad, x, bias, activation, True),
        backward(grad, x, None, activation, False),
    )


AHEAD = (
    Ahead("bf16, bias and gelu, 8192 rows of 3072", lambda: _example_call("gelu", 8192, 3072)),
    # Rows of an odd width are not aligned. No model that we know has a hidden layer of an odd width.
    Ahead("bf16, bias and gelu, 8192 rows of 1003", lambda: _example_call("gelu", 8192, 1003), access=2.0),
    Ahead("bf16, bias and gelu, 8192 rows of 3076", lambda: _example_call("gelu", 8192, 3076), quick=False),
    Ahead(
        "float32, bias and tanh gelu, 4096 rows of 16384",
        lambda: _example_call("gelu_tanh", 4096, 16384, torch.float32),
    ),
    Ahead("bf16, mish, 8192 rows of 64", lambda: _example_call("mish", 8192, 64), quick=False),
)
