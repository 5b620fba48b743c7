"""Gated activations on the GPU: one kernel forward, and one backward that computes the activation again.

Rows may have any stride. So the halves of one packed tensor are read, and their gradients written, in place. There is
no autograd here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.row_shapes import ceil_div, contiguous_like, row_distance, row_layout
from autofuse.kernels.triton.activations import THREADS, evened, formula, sloped, tile
from autofuse.kernels.triton.launch import launch, unit
from autofuse.kernels.triton.rows import entries


@triton.jit
def _forward(
    GATE, UP, Y, rows, hidden, gate_stride, up_stride, gate_at, up_at,
    ACTIVATION: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gate and up begin `gate_at` and `up_at` entries after their pointers.

    Here and below, sizes, strides and places are in units of UNIT entries, so that Triton knows their divisors.
    """
    hidden, gate_stride, up_stride = hidden * UNIT, entries(gate_stride, UNIT), entries(up_stride, UNIT)
    GATE += gate_at * UNIT
    UP += up_at * UNIT
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < hidden)
    gate = tl.load(GATE + row * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(UP + row * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    value, _ = sloped(gate, ACTIVATION)
    tl.store(Y + row * hidden + column, (value * up).to(Y.dtype.element_ty), mask=mask)


@triton.jit
def _backward(
    GRAD, GATE, UP, DGATE, DUP, rows, hidden, grad_stride, gate_stride, up_stride, made_stride, gate_at, up_at,
    ACTIVATION: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of gate and up have the same places as gate and up, after their own pointers."""
    hidden, grad_stride, gate_stride = hidden * UNIT, entries(grad_stride, UNIT), entries(gate_stride, UNIT)
    up_stride, made_stride = entries(up_stride, UNIT), entries(made_stride, UNIT)
    GATE += gate_at * UNIT
    UP += up_at * UNIT
    DGATE += gate_at * UNIT
    DUP += up_at * UNIT
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < hidden)
    grad = tl.load(GRAD + row * grad_stride + column, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(GATE + row * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(UP + row * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    value, slope = sloped(gate, ACTIVATION)
    place = row * made_stride + column
    tl.store(DGATE + place, (grad * up * slope).to(DGATE.dtype.element_ty), mask=mask)
    tl.store(DUP + place, (grad * value).to(DUP.dtype.element_ty), mask=mask)


def forward(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up.

    Shapes: both (rows, hidden), with any stride of rows, or contiguous with any dimensions. The result is contiguous.
    """
    made = contiguous_like(gate)
    gate, up, written = evened(gate, up, made)
    _write(gate, up, written, (0, 0), activation)
    return made


def backward(grad: Tensor, gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up."""
    of_gate, of_up = contiguous_like(gate), contiguous_like(up)
    grad, gate, up, into_gate, into_up = evened(grad, gate, up, of_gate, of_up)
    _write_gradients(grad, gate, up, into_gate, into_up, (0, 0), activation)
    return of_gate, of_up


def packed_forward(x: Tensor, activation: str, gate_first: bool) -> Tensor:
    """activation(gate) * up for the halves of x (rows, 2 * hidden)."""
    rows, hidden = x.shape[0], x.shape[1] // 2
    made = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    _write(x, x, made, _places(hidden, gate_first), activation)
    return made


def packed_backward(grad: Tensor, x: Tensor, activation: str, gate_first: bool) -> Tensor:
    """The gradient of x, both halves in one pass."""
    made = contiguous_like(x)
    _write_gradients(grad, x, x, made, made, _places(x.shape[1] // 2, gate_first), activation)
    return made


def _places(hidden: int, gate_first: bool) -> tuple[int, int]:
    """The positions of gate and up in a row with both halves. The address of the second half would be less aligned."""
    return (0, hidden) if gate_first else (hidden, 0)


def _write(gate: Tensor, up: Tensor, made: Tensor, places: tuple[int, int], activation: str) -> None:
    """Writes into `made`, which has the shape of gate and up. They begin at `places` of their rows."""
    rows, hidden, _ = row_layout(made)
    each, sizes = unit(hidden, row_distance(gate, hidden), row_distance(up, hidden), *places)
    ROWS, COLUMNS = tile(hidden)
    grid = (ceil_div(rows, ROWS), ceil_div(hidden, COLUMNS))
    launch(
        _forward, grid, gate, up, made, rows, *sizes, formula(activation, gate), each, ROWS, COLUMNS, threads=THREADS
    )


def _write_gradients(
    grad: Tensor, gate: Tensor, up: Tensor, of_gate: Tensor, of_up: Tensor, places: tuple[int, int], activation: str
) -> None:
    """Writes into `of_gate` and `of_up`, which have the same stride. They begin where gate and up begin."""
    rows, hidden, stride = row_layout(grad)
    steps = row_distance(gate, hidden), row_distance(up, hidden), row_distance(of_gate, hidden)
    each, sizes = unit(hidden, stride, *steps, *places)
    ROWS, COLUMNS = tile(hidden)
    grid = (ceil_div(rows, ROWS), ceil_div(hidden, COLUMNS))
    launch(
        _backward, grid, grad, gate, up, of_gate, of_up, rows, *sizes, formula(activation, gate), each, ROWS, COLUMNS,
        threads=THREADS,
    )  # fmt: skip


def _example_call(activation: str, rows: int, hidden: int, dtype: torch.dtype = torch.bfloat16) -> object:
    x, gate = sample(rows, 2 * hidden, dtype=dtype), sample(rows, hidden, dtype=dtype)
    up, grad = sample(rows, hidden, dtype=dtype), sample(rows, hidden, dtype=dtype)
    packed = packed_forward(x, activation, True), packed_backward(grad, x, activation, True)
    return packed, forward(gate, up, activation), backward(grad, gate, up, activation)


AHEAD = (
    Ahead("bf16, SwiGLU, 8192 rows of 14336", lambda: _example_call("silu", 8192, 14336)),
    # The halves of one tensor are not aligned if their width is odd.
    Ahead("bf16, GeGLU, 4096 rows of 1367", lambda: _example_call("gelu", 4096, 1367), access=2.0),
    # 8 / 3 of 1024, with rows of both halves at multiples of 4 bytes.
    Ahead("bf16, SwiGLU, 4096 rows of 2730", lambda: _example_call("silu", 4096, 2730), access=4.0, quick=False),
    Ahead("float32, SwiGLU, 2048 rows of 64", lambda: _example_call("silu", 2048, 64, torch.float32), quick=False),
)
