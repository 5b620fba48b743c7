"""Cross entropy of a linear layer's output in blocks of rows: torch computes the products, a kernel the rest.

This file chooses the size of blocks and keeps the precision of sums over blocks. It has no autograd. Shapes: x (rows,
D), weight (C, D), bias (C,), target int64 (rows,). `kernel` is the name of the kernel that computes the softmax of a
block; "" means the best one on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.block_memory import free_bytes, rows_by_memory
from autofuse.kernels.class_targets import out_of_range
from autofuse.kernels.operators import Kernels
from autofuse.kernels.packages import COMPILER, TRITON
from autofuse.kernels.wide_products import add_product
from autofuse.torch_private import functional as F

KERNELS = Kernels(
    triton="autofuse.kernels.triton.cross_entropy",
    compiled="autofuse.kernels.compiled.cross_entropy",
    torch="autofuse.kernels.cross_entropy_formula",
)
# Logits in one block, and its smallest number of rows. A product of fewer rows is slower, because each block reads the
# whole weight and adds to the whole gradient. Measured on a CPU, one thread, loss and gradient, ms in fp32 / bf16, 1024
# rows of 256, 16000 classes: all logits at once 390 / 86; blocks of 64 rows 327 / 132, 128 rows 297 / 101, 256 rows
# 291 / 88, 512 rows 299 / 83, 1024 rows 309 / 77. In bf16 the sum is also widened: 1024 rows of 768, 32000 classes, ms:
# blocks of 512 rows 632, 524 rows 624, 1024 rows 563 (torch.compile with all logits 545).
_BLOCK = {2: 2**25, 4: 2**23, 8: 2**21}  # by bytes of an entry; on CPUs
_LEAST_ROWS = {2: 512, 4: 256, 8: 128}
_PIECE = 8192  # rows of a gradient that are scaled at a time
_LINE = 128  # bytes of which the rows of padded logits are multiples


def losses(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, label_smoothing: float,
    kernel: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss of each row (0 if it is ignored) and the log-sum-exp of its logits."""
    _check_range(target, weight.shape[0], ignore_index)
    softmax = KERNELS[kernel or _best_kernel(x)]
    row_losses = torch.empty(x.shape[0], dtype=_wide_dtype(x.dtype), device=x.device)
    normalizers = torch.empty_like(row_losses)
    head = Head(x, weight, bias)
    for block in blocks_of(x, weight, 1):
        logits = head.logits(x[block])
        row_losses[block], normalizers[block] = softmax.losses(
            head.of_classes(logits), target[block], None, ignore_index, label_smoothing
        )
        del logits  # frees the memory before the next block
    return row_losses, normalizers


def gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, normalizers: Tensor,
    ignore_index: int, label_smoothing: float, wanted: tuple[bool, bool, bool], kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, weight and bias from those of each row's loss; empty if not `wanted`."""
    softmax = KERNELS[kernel or _best_kernel(x)]
    share = gradient.to(_wide_dtype(x.dtype)).where(target != ignore_index, 0.0)
    head = Head(x, weight, bias)
    parts = blocks_of(x, weight, 1 if head.padding else 2)
    sums = GradientSums(x, head, wanted, len(parts) > 1)
    # In fp16 a share of a probability may underflow. So the products of rows are multiplied by the shares instead.
    late_share = share if x.dtype is torch.float16 else None
    early_share = torch.ones_like(share) if late_share is not None else share.contiguous()
    for block in parts:
        logits = head.logits(x[block])
        if head.padding:  # `gradient` would write rows without padding, whose products are slow
            logits_gradient = head.gradient_in_place(
                softmax, logits, target[block], early_share[block], ignore_index, label_smoothing
            )[1]
        else:
            logits_gradient = softmax.gradient(
                logits, target[block], None, early_share[block], normalizers[block], ignore_index, label_smoothing
            )
        del logits
        sums.add(block, logits_gradient, late_share)
        del logits_gradient
    return sums.results()


def loss_and_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, label_smoothing: float,
    mean: bool, wanted: tuple[bool, bool, bool], kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The mean or sum of the losses, and the gradients of x, weight and bias; empty if not `wanted`."""
    _check_range(target, weight.shape[0], ignore_index)
    softmax = KERNELS[kernel or _best_kernel(x)]
    count = (target != ignore_index).sum().to(_wide_dtype(x.dtype))
    share = (1.0 / count if mean else torch.ones_like(count)).expand(x.shape[0]).contiguous()
    parts, head = blocks_of(x, weight, 1), Head(x, weight, bias)
    sums, loss = GradientSums(x, head, wanted, len(parts) > 1), torch.zeros_like(count)
    for block in parts:
        logits = head.logits(x[block])
        row_losses, logits_gradient = head.gradient_in_place(
            softmax, logits, target[block], share[block], ignore_index, label_smoothing
        )
        del logits
        loss += row_losses.sum()
        sums.add(block, logits_gradient, None)
        del logits_gradient
    return loss / count if mean else loss, *sums.results()


def scale_gradient(ahead: Tensor, factor: Tensor, out: Tensor) -> Tensor:
    """ahead * factor, rounded once, written to `out`, which may be `ahead`. `factor` is a scalar."""
    if factor.device.type == "cpu":
        number = float(factor)
        return out if number == 1.0 and out is ahead else torch.mul(ahead, number, out=out)
    if ahead.dtype is factor.dtype:
        return torch.mul(ahead, factor, out=out)
    for start in range(0, ahead.shape[0], _PIECE):  # in pieces of fp32, because a bf16 factor would be rounded
        piece = slice(start, start + _PIECE)
        out[piece] = ahead[piece].to(factor.dtype) * factor
    return out


def empty_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the gradients; empty if not `wanted`."""
    needs_x, needs_weight, needs_bias = wanted
    return (
        x.new_empty(x.shape if needs_x else (0,)),
        weight.new_empty(weight.shape if needs_weight else (0,)),
        x.new_empty(weight.shape[:1] if needs_bias else (0,), dtype=x.dtype if bias is None else bias.dtype),
    )


class Head:
    """A linear layer whose products have sizes for which GPUs have fast kernels.

    On a GPU the classes are padded with rows of zeros to a multiple of 128 bytes. cuBLAS has fast kernels for sizes and
    rows that are multiples of 16 bytes, and a vocabulary often has another size (GPT-2's: 50257).

    Attributes:
        weight: shape (C + padding, D).
        bias: shape (C + padding,), or None.
        classes: C.
        padding: the number of classes that were added.
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int | None = None) -> None:
        """`padding` is the number of classes to add; None lets the device of `x` decide."""
        self.classes = weight.shape[0]
        self.padding = _padding(x, self.classes) if padding is None else padding
        self.weight = F.pad(weight, (0, 0, 0, self.padding)) if self.padding else weight
        self.bias = F.pad(bias, (0, self.padding)) if self.padding and bias is not None else bias

    def logits(self, x: Tensor) -> Tensor:
        """x @ weight.T + bias, padding included."""
        return F.linear(x, self.weight, self.bias)

    def of_classes(self, logits: Tensor) -> Tensor:
        """The logits without padding, as a view."""
        return logits[:, : self.classes] if self.padding else logits

    def gradient_in_place(
        self, softmax: Any, logits: Tensor, target: Tensor, share: Tensor, ignore_index: int, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """The loss of each row, and the gradient of the logits, whose memory it may use. It is zero in the padding."""
        losses, gradient = softmax.losses_and_gradient(
            self.of_classes(logits), target, share, ignore_index, label_smoothing
        )
        if not self.padding:
            return losses, gradient
        if gradient.data_ptr() != logits.data_ptr():
            logits[:, : self.classes] = gradient
        logits[:, self.classes :].zero_()  # the padding is nan if an entry of x is infinite
        return losses, logits


class GradientSums:
    """The gradients of a linear layer as sums over blocks of rows, in fp32 or fp64."""

    def __init__(self, x: Tensor, head: Head, wanted: tuple[bool, bool, bool], several: bool) -> None:
        self._x, self._head, self._wanted = x, head, wanted
        weight, bias = head.weight[: head.classes], None if head.bias is None else head.bias[: head.classes]
        self._of_x, self._of_weight, self._of_bias = empty_gradients(x, weight, bias, wanted)
        self._result = self._of_weight
        dtype = _wide_dtype(weight.dtype) if several else weight.dtype
        if wanted[1] and (head.padding or dtype is not weight.dtype):
            self._of_weight = torch.empty_like(head.weight, dtype=dtype)
        self._bias = torch.zeros_like(self._of_bias, dtype=_wide_dtype(x.dtype))
        if not x.shape[0]:
            self._of_weight.zero_()

    def add(self, block: slice, logits_gradient: Tensor, late_share: Tensor | None) -> None:
        """Adds a block.

        Args:
            block: its rows.
            logits_gradient: the gradient of its logits, with padding, and without the rows' shares if `late_share`
                holds them.
            late_share: the rows' shares that are multiplied here, or None.
        """
        x, share = self._x[block], None if late_share is None else late_share[block].unsqueeze(-1)
        if self._wanted[2]:
            of_classes = self._head.of_classes(logits_gradient)
            self._bias += of_classes.sum(0, dtype=self._bias.dtype) if share is None else (of_classes * share).sum(0)
        if self._wanted[0]:
            if share is None:
                torch.mm(logits_gradient, self._head.weight, out=self._of_x[block])
            else:
                self._of_x[block] = (logits_gradient @ self._head.weight) * share
        if self._wanted[1]:
            rows = x if share is None else (x * share).to(x.dtype)
            add_product(self._of_weight, logits_gradient.T, rows, block.start == 0)

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of x, weight and bias."""
        if self._of_weight is not self._result:
            self._result.copy_(self._of_weight[: self._head.classes])
        return self._of_x, self._result, self._bias.to(self._of_bias.dtype)


def blocks_of(x: Tensor, weight: Tensor, copies: int) -> list[slice]:
    """The blocks of rows. `copies` is the number of tensors of a block's logits in memory at a time, on a GPU."""
    step = _block_rows(x, weight, copies)
    return [slice(start, min(start + step, x.shape[0])) for start in range(0, x.shape[0], step)]


def _block_rows(x: Tensor, weight: Tensor, copies: int) -> int:
    size, classes = x.element_size(), max(weight.shape[0], 1)
    if x.device.type == "cuda":
        return rows_by_memory(classes * size * copies, _LEAST_ROWS[size], free_bytes(x.device))
    return max(_BLOCK[size] // classes, _LEAST_ROWS[size])


def _padding(x: Tensor, classes: int) -> int:
    """The classes that are added to a layer of `classes` outputs for an input like `x`."""
    return -classes % (_LINE // x.element_size()) if x.device.type == "cuda" else 0


def fast_padding(weight: Tensor) -> int:
    """The rows that are missing in a weight (C, D), so that a row of C entries is a multiple of 128 bytes."""
    return -weight.shape[0] % (_LINE // weight.element_size())


def _best_kernel(x: Tensor) -> str:
    """The best kernel for operands like `x`."""
    if x.dtype is torch.float64:
        return "torch"
    if x.device.type == "cuda":
        return "torch" if TRITON.missing() else "triton"
    return "compiled" if x.device.type == "cpu" and not COMPILER.missing() else "torch"


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and exponentials."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _check_range(target: Tensor, classes: int, ignore_index: int) -> None:
    invalid = out_of_range(target, classes, ignore_index)
    if invalid is not None:
        raise IndexError(f"Target {int(invalid[0])} is out of bounds for {classes} classes.")
