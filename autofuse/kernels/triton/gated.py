"""Gated activations on the GPU: one kernel forward, and one backward that computes the activation again.

Rows may have any stride, so the halves of one packed tensor are read, and their gradients written, where they lie.
Knows tensors; must not know autograd.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.row_shapes import contiguous_like, divided, matrix
from autofuse.kernels.triton.activations import THREADS, sloped, tile
from autofuse.kernels.triton.launch import launch


@triton.jit
def _forward(
    GATE, UP, Y, rows, hidden, gate_stride, up_stride,
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < hidden)
    gate = tl.load(GATE + row * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(UP + row * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    value, _ = sloped(gate, ACTIVATION)
    tl.store(Y + row * hidden + column, (value * up).to(Y.dtype.element_ty), mask=mask)


@triton.jit
def _backward(
    GRAD, GATE, UP, DGATE, DUP, rows, hidden, grad_stride, gate_stride, up_stride, made_stride,
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
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

    Shapes: both (rows, hidden), with any stride of rows, or contiguous of any dimensions; the result is contiguous.
    """
    rows, hidden, stride = matrix(gate)
    made = contiguous_like(gate)
    ROWS, COLUMNS = tile(hidden)
    launch(
        _forward, (divided(rows, ROWS), divided(hidden, COLUMNS)), gate, up, made, rows, hidden, stride, matrix(up)[2],
        activation, ROWS, COLUMNS, threads=THREADS,
    )  # fmt: skip
    return made


def backward(grad: Tensor, gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up."""
    of_gate, of_up = contiguous_like(gate), contiguous_like(up)
    _write_gradients(grad, gate, up, of_gate, of_up, activation)
    return of_gate, of_up


def packed_forward(x: Tensor, activation: str, gate_first: bool) -> Tensor:
    """The same of the two halves of x (rows, 2 * hidden)."""
    return forward(*_halves(x, gate_first), activation)


def packed_backward(grad: Tensor, x: Tensor, activation: str, gate_first: bool) -> Tensor:
    """The gradient of x, both halves in one pass."""
    made = contiguous_like(x)
    _write_gradients(grad, *_halves(x, gate_first), *_halves(made, gate_first), activation)
    return made


def _halves(x: Tensor, gate_first: bool) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, dim=-1)
    return (first, second) if gate_first else (second, first)


def _write_gradients(grad: Tensor, gate: Tensor, up: Tensor, of_gate: Tensor, of_up: Tensor, activation: str) -> None:
    """Into `of_gate` and `of_up`, which have the same stride."""
    rows, hidden, stride = matrix(gate)
    ROWS, COLUMNS = tile(hidden)
    launch(
        _backward, (divided(rows, ROWS), divided(hidden, COLUMNS)), grad, gate, up, of_gate, of_up, rows, hidden,
        matrix(grad)[2], stride, matrix(up)[2], matrix(of_gate)[2], activation, ROWS, COLUMNS, threads=THREADS,
    )  # fmt: skip


def _ahead(activation: str, rows: int, hidden: int, dtype: torch.dtype = torch.bfloat16) -> object:
    x, gate = sample(rows, 2 * hidden, dtype=dtype), sample(rows, hidden, dtype=dtype)
    packed = packed_forward(x, activation, True), packed_backward(gate, x, activation, True)
    return packed, forward(gate, gate, activation), backward(gate, gate, gate, activation)


AHEAD = (
    Ahead("bf16, SwiGLU, 8192 rows of 14336", lambda: _ahead("silu", 8192, 14336)),
    Ahead("bf16, GeGLU, 4096 rows of 1367", lambda: _ahead("gelu", 4096, 1367)),
    Ahead("float32, SwiGLU, 2048 rows of 64", lambda: _ahead("silu", 2048, 64, torch.float32), quick=False),
)
