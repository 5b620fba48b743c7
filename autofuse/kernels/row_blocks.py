"""Cross entropy of a linear layer's output, block of rows by block of rows: products by torch, the rest by a kernel.

Knows how many rows a block should have, and how a sum over blocks keeps its precision; must not know autograd.
Shapes throughout: x (rows, D), weight (C, D), bias (C,), target int64 (rows,); kernel: the name of what computes the
softmax of a block, "" for the best there is on the device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.block_memory import free_bytes, rows_by_memory
from autofuse.kernels.class_targets import out_of_range
from autofuse.kernels.operators import Kernels
from autofuse.kernels.packages import COMPILER, TRITON
from autofuse.kernels.wide_products import add_product

KERNELS = Kernels(
    triton="autofuse.kernels.triton.cross_entropy",
    compiled="autofuse.kernels.compiled.cross_entropy",
    torch="autofuse.kernels.cross_entropy_formula",
)
# Logits in one block, and the rows that it has at least. A product of fewer rows is slower, for each block reads the
# whole weight, and adds to the whole of its gradient: measured on CPU (one thread, 1024 rows of 256, 16000 classes,
# loss and gradient, logits whole: 390 ms in fp32, 86 in bf16), 64 rows took 327 and 132 ms, 128 297 and 101, 256 291
# and 88, 512 299 and 83, 1024 309 and 77. In bf16 that sum is widened as well: 1024 rows of 768, 32000 classes, took
# 632 ms in blocks of 512 rows, 624 of 524, 563 of 1024 (torch.compile with the logits whole 545).
_BLOCK = {2: 2**25, 4: 2**23, 8: 2**21}  # by bytes of an entry; where a GPU is not at work
_LEAST_ROWS = {2: 512, 4: 256, 8: 128}
_PIECE = 8192  # rows of a gradient that are scaled at a time


def losses(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, label_smoothing: float,
    kernel: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss of each row, 0 where it is ignored, and the logarithm of the sum of the exponentials of its logits."""
    _check_range(target, weight.shape[0], ignore_index)
    softmax = KERNELS[kernel or _best(x)]
    made = torch.empty(x.shape[0], dtype=_wide(x.dtype), device=x.device)
    normalizers = torch.empty_like(made)
    for block in blocks_of(x, weight, 1):
        logits = _logits(x[block], weight, bias)
        made[block], normalizers[block] = softmax.losses(logits, target[block], None, ignore_index, label_smoothing)
        del logits  # before the next block's are formed
    return made, normalizers


def gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, normalizers: Tensor,
    ignore_index: int, label_smoothing: float, wanted: tuple[bool, bool, bool], kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, weight and bias; empty where they are not wanted. `gradient` is that of each row's loss."""
    softmax = KERNELS[kernel or _best(x)]
    share = gradient.to(_wide(x.dtype)).where(target != ignore_index, 0.0)
    parts = blocks_of(x, weight, 2)
    sums = Sums(x, weight, bias, wanted, len(parts) > 1)
    # fp16 has no room for a share of a probability: rows are multiplied by their shares where they are short
    late = share if x.dtype is torch.float16 else None
    early = torch.ones_like(share) if late is not None else share.contiguous()
    for block in parts:
        logits = _logits(x[block], weight, bias)
        change = softmax.gradient(
            logits, target[block], None, early[block], normalizers[block], ignore_index, label_smoothing
        )
        del logits
        sums.add(block, change, late)
        del change
    return sums.results()


def loss_and_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, label_smoothing: float,
    mean: bool, wanted: tuple[bool, bool, bool], kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The mean or sum of the losses, and its gradients of x, weight and bias; empty where they are not wanted."""
    _check_range(target, weight.shape[0], ignore_index)
    softmax = KERNELS[kernel or _best(x)]
    counted = (target != ignore_index).sum().to(_wide(x.dtype))
    share = (1.0 / counted if mean else torch.ones_like(counted)).expand(x.shape[0]).contiguous()
    parts = blocks_of(x, weight, 1)
    sums, loss = Sums(x, weight, bias, wanted, len(parts) > 1), torch.zeros_like(counted)
    for block in parts:
        logits = _logits(x[block], weight, bias)
        made, change = softmax.losses_and_gradient(logits, target[block], share[block], ignore_index, label_smoothing)
        del logits
        loss += made.sum()
        sums.add(block, change, None)
        del change
    return loss / counted if mean else loss, *sums.results()


def scaled(ahead: Tensor, factor: Tensor, out: Tensor) -> Tensor:
    """ahead * factor, rounded once, into `out`, which may be `ahead`. factor: a scalar."""
    if factor.device.type == "cpu":
        number = float(factor)
        return out if number == 1.0 and out is ahead else torch.mul(ahead, number, out=out)
    if ahead.dtype is factor.dtype:
        return torch.mul(ahead, factor, out=out)
    for start in range(0, ahead.shape[0], _PIECE):  # in pieces of fp32: a factor in bf16 would be rounded
        piece = slice(start, start + _PIECE)
        out[piece] = ahead[piece].to(factor.dtype) * factor
    return out


def empty(
    x: Tensor, weight: Tensor, bias: Tensor | None, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the gradients; none for those that are not wanted."""
    of_x, of_weight, of_bias = wanted
    return (
        x.new_empty(x.shape if of_x else (0,)),
        weight.new_empty(weight.shape if of_weight else (0,)),
        x.new_empty(weight.shape[:1] if of_bias else (0,), dtype=x.dtype if bias is None else bias.dtype),
    )


class Sums:
    """The gradients of a linear layer as sums over blocks of rows, in fp32 or better."""

    def __init__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, wanted: tuple[bool, bool, bool], several: bool
    ) -> None:
        self._x, self._weight, self._wanted = x, weight, wanted
        self._of_x, self._of_weight, self._of_bias = empty(x, weight, bias, wanted)
        self._result = self._of_weight
        if wanted[1] and several and weight.dtype is not _wide(weight.dtype):
            self._of_weight = torch.empty_like(self._of_weight, dtype=_wide(weight.dtype))
        self._bias = torch.zeros_like(self._of_bias, dtype=_wide(x.dtype))
        if not x.shape[0]:
            self._of_weight.zero_()

    def add(self, block: slice, change: Tensor, late: Tensor | None) -> None:
        """What a block contributes. change: the gradient of its logits, but for the rows' share if that is `late`."""
        x, share = self._x[block], None if late is None else late[block].unsqueeze(-1)
        if self._wanted[2]:
            self._bias += change.sum(0, dtype=self._bias.dtype) if share is None else (change * share).sum(0)
        if self._wanted[0]:
            if share is None:
                torch.mm(change, self._weight, out=self._of_x[block])
            else:
                self._of_x[block] = (change @ self._weight) * share
        if self._wanted[1]:
            rows = x if share is None else (x * share).to(x.dtype)
            add_product(self._of_weight, change.T, rows, block.start == 0)

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._of_weight.dtype is not self._result.dtype:
            self._result.copy_(self._of_weight)
        else:
            self._result = self._of_weight
        return self._of_x, self._result, self._bias.to(self._of_bias.dtype)


def blocks_of(x: Tensor, weight: Tensor, copies: int) -> list[slice]:
    """The blocks of rows. copies: how many tensors of a block's logits are in memory at a time, on a GPU."""
    step = _block_rows(x, weight, copies)
    return [slice(start, min(start + step, x.shape[0])) for start in range(0, x.shape[0], step)]


def _block_rows(x: Tensor, weight: Tensor, copies: int) -> int:
    size, classes = x.element_size(), max(weight.shape[0], 1)
    if x.device.type == "cuda":
        return rows_by_memory(classes * size * copies, _LEAST_ROWS[size], free_bytes(x.device))
    return max(_BLOCK[size] // classes, _LEAST_ROWS[size])


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias. On a GPU each row begins at a multiple of 128 bytes: matrix products and kernels need 16."""
    unit = 128 // x.element_size()
    if x.device.type != "cuda" or weight.shape[0] % unit == 0:
        return F.linear(x, weight, bias)
    room = x.new_empty(x.shape[0], -(-weight.shape[0] // unit) * unit)[:, : weight.shape[0]]
    if bias is None:
        return torch.mm(x, weight.T, out=room)
    return torch.addmm(bias, x, weight.T, out=room)


def _best(x: Tensor) -> str:
    """The kernel for operands like `x`."""
    if x.dtype is torch.float64:
        return "torch"
    if x.device.type == "cuda":
        return "torch" if TRITON.missing() else "triton"
    return "compiled" if x.device.type == "cpu" and not COMPILER.missing() else "torch"


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and exponentials."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _check_range(target: Tensor, classes: int, ignore_index: int) -> None:
    wrong = out_of_range(target, classes, ignore_index)
    if wrong is not None:
        raise IndexError(f"Target {int(wrong[0])} is out of bounds: there are {classes} classes.")
