"""The operator and gradient that layer norm, RMS norm and their fusions with a residual share.

torch.ops.autofuse.norm accepts tensors with any leading dimensions and calls a kernel, which works on rows. The
backward pass needs the sum, which is a result of the forward pass, and two numbers for each row. It draws dropout again
from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.dropout_bits import keep_mask
from autofuse.kernels.operators import Kernels, define, differentiate, formula_gradients
from autofuse.kernels.provider import HALVES_AND_SINGLE
from autofuse.kernels.row_shapes import as_rows, reshape_like
from autofuse.ops.affine import Affine, has_entry_per_column
from autofuse.torch_private import has_kernel_for
from autofuse.torch_private.autocast import is_autocast_on

KERNELS = Kernels(compiled="autofuse.kernels.compiled.norm", triton="autofuse.kernels.triton.norm")
_FourTensors = tuple[Tensor, Tensor, Tensor, Tensor]


def norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype, kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The norm of residual + dropout(x), that sum, and the mean and reciprocal deviation of each row, by `kernel`.

    Shapes: x and residual (..., C); weight and bias (C,); seed (1,), or None for no dropout. The results have the
    dtypes `normed`, `summed` and fp32; the last two have one row for each row of x. The sum is empty if it equals x,
    and the mean is empty if `centred` is False (RMS norm).
    """
    out, total, mean, rstd = _norm_or_none(x, residual, weight, bias, seed, p, eps, centred, normed, summed, kernel)
    total = x.new_empty(0, dtype=summed) if total is None else total
    return out, total, x.new_empty(0, dtype=torch.float32) if mean is None else mean, rstd


def _norm_or_none(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype, kernel: str,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:  # fmt: skip
    """`norm`, with None in place of empty results."""
    out, total, mean, rstd = KERNELS[kernel].forward(
        as_rows(x, kernel), None if residual is None else as_rows(residual, kernel), _contiguous(weight),
        _contiguous(bias), seed, p, eps, centred, normed, summed,
    )  # fmt: skip
    return reshape_like(out, x), None if total is None else reshape_like(total, x), mean, rstd


def _fake(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype, kernel: str,
) -> _FourTensors:  # fmt: skip
    rows = math.prod(x.shape[:-1])  # Size.numel would turn a symbolic size into a number
    return (
        x.new_empty(x.shape, dtype=normed),
        x.new_empty((0,) if residual is None and seed is None else x.shape, dtype=summed),
        x.new_empty((rows, 1) if centred else (0,), dtype=torch.float32),
        x.new_empty((rows, 1), dtype=torch.float32),
    )


def norm_backward(
    given: Tensor, carried: Tensor | None, total: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor,
    seed: Tensor | None, p: float, x_dtype: torch.dtype, residual_dtype: torch.dtype | None, wants_weight: bool,
    wants_bias: bool, kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, residual, weight and bias, from those of the norm (`given`) and of the sum (`carried`).

    `total` is the sum, or x. `mean` is None or empty for an RMS norm. Gradients that are not needed are empty: that of
    the residual if `residual_dtype` is None. Those of weight and bias are in fp32.
    """
    made = _backward_or_none(
        given, carried, total, weight, None if mean is None or not mean.numel() else mean, rstd, seed, p, x_dtype,
        residual_dtype, wants_weight, wants_bias, kernel,
    )  # fmt: skip
    of_x, of_residual, of_weight, of_bias = (total.new_empty(0, dtype=torch.float32) if t is None else t for t in made)
    return of_x, of_residual.to(x_dtype) if residual_dtype is None else of_residual, of_weight, of_bias


def _backward_or_none(
    given: Tensor, carried: Tensor | None, total: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor,
    seed: Tensor | None, p: float, x_dtype: torch.dtype, residual_dtype: torch.dtype | None, wants_weight: bool,
    wants_bias: bool, kernel: str,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """`norm_backward`, with None in place of empty results and of an empty `mean`."""
    dx, dresidual, dweight, dbias = KERNELS[kernel].backward(
        as_rows(given, kernel), None if carried is None else as_rows(carried, kernel), as_rows(total, kernel),
        _contiguous(weight), mean, rstd, seed, p, x_dtype, residual_dtype, wants_weight, wants_bias,
    )  # fmt: skip
    return reshape_like(dx, total), None if dresidual is None else reshape_like(dresidual, total), dweight, dbias


def _fake_backward(
    given: Tensor, carried: Tensor | None, total: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor,
    seed: Tensor | None, p: float, x_dtype: torch.dtype, residual_dtype: torch.dtype | None, wants_weight: bool,
    wants_bias: bool, kernel: str,
) -> _FourTensors:  # fmt: skip
    width = total.shape[-1:]
    return (
        total.new_empty(total.shape, dtype=x_dtype),
        total.new_empty((0,) if residual_dtype is None else total.shape, dtype=residual_dtype or x_dtype),
        total.new_empty(width if wants_weight else (0,), dtype=torch.float32),
        total.new_empty(width if wants_bias else (0,), dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: _FourTensors) -> None:
    _, total, mean, rstd = output
    _keep(ctx, inputs, total, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd, *([] if ctx.has_sum else [total]))


def _keep(ctx: Any, inputs: tuple[Any, ...], total: Tensor | None, mean: Tensor | None, rstd: Tensor) -> None:
    x, residual, weight, bias, seed, ctx.p, ctx.eps, ctx.centred, _, _, ctx.kernel = inputs
    ctx.has_sum = has_sum = residual is not None or seed is not None
    ctx.x_dtype, ctx.residual_dtype = x.dtype, None if residual is None else residual.dtype
    ctx.save_for_backward(total if has_sum else x, weight, bias, seed, mean, rstd)
    ctx.set_materialize_grads(False)  # an unused result gets None as its gradient, not a tensor of zeros


def _forward(ctx: Any, *inputs: Any) -> Any:
    """The forward pass of a call that is not dispatched: the norm and the sum. Mean and deviation are no outputs."""
    out, total, mean, rstd = _norm_or_none(*inputs)
    _keep(ctx, inputs, total, mean, rstd)
    return out, total


def _gradients(ctx: Any, given: Tensor | None, carried: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """A gradient for each argument of `norm`, from a kernel, or from the formula if it must be differentiable."""
    total, weight, bias, seed, mean, rstd = ctx.saved_tensors
    of_x, of_residual, of_weight, of_bias = ctx.needs_input_grad[:4]
    if given is None:  # only the sum was used
        if carried is None:
            return (None,) * 11
        given = torch.zeros_like(total)
    if torch.is_grad_enabled():
        dx, dresidual, dweight, dbias = _gradients_by_formula(ctx, given, carried)
    else:
        apart = seed is not None or ctx.residual_dtype not in (None, ctx.x_dtype)  # else both gradients are one tensor
        dx, dresidual, dweight, dbias = _norm_backward(
            given, carried, total, weight, mean if ctx.centred else None, rstd, seed, ctx.p, ctx.x_dtype,
            ctx.residual_dtype if apart and of_residual else None, of_weight, of_bias, ctx.kernel,
        )  # fmt: skip
        dresidual = dresidual if apart else dx
        dweight = dweight if not of_weight or dweight.dtype is weight.dtype else dweight.to(weight.dtype)
        dbias = dbias if not of_bias or dbias.dtype is bias.dtype else dbias.to(bias.dtype)
    return (
        dx if of_x else None, dresidual if of_residual else None, dweight if of_weight else None,
        dbias if of_bias else None, None, None, None, None, None, None, None,
    )  # fmt: skip


def _gradients_by_formula(ctx: Any, given: Tensor, carried: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients in differentiable functions, starting from the sum, which is part of the graph as a result."""
    total, weight, bias, seed, _, _ = ctx.saved_tensors

    def formula(total: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        z = total.float()
        z = z - z.mean(-1, keepdim=True) if ctx.centred else z
        y = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + ctx.eps)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).to(given.dtype)

    wanted = (True, *ctx.needs_input_grad[2:4])
    dz, dweight, dbias = formula_gradients(formula, (total, weight, bias), (given,), wanted)
    assert dz is not None
    dz = dz.to(torch.float32) if carried is None else dz.to(torch.float32) + carried
    dx_dropped = dz if seed is None else _drop(dz, seed, ctx.p)
    return dx_dropped.to(ctx.x_dtype), dz.to(ctx.residual_dtype or ctx.x_dtype), dweight, dbias


def _drop(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """dropout(x), drawn from `seed`."""
    rows = torch.arange(math.prod(x.shape[:-1]), device=x.device).view(x.shape[:-1])
    return torch.where(keep_mask(seed, rows, x.shape[-1], p), x / (1.0 - p), 0.0)


_norm = define(norm, _fake, direct=_norm_or_none)
_norm_backward = define(norm_backward, _fake_backward, direct=_backward_or_none)
differentiate(_norm, _gradients, _save, _forward)


def run_norm(
    kernel: str, x: Tensor, residual: Tensor | None, weight: Affine, bias: Affine, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The norm of residual + dropout(x), and the sum, with the kernels of `kernel`.

    `norm_refusal` reports what they support.
    """
    scale, shift = (t.reshape(-1) if isinstance(t, Tensor) and t.ndim != 1 else t for t in (weight, bias))
    result: _FourTensors = _norm(x, residual, scale, shift, seed, float(p), float(eps), centred, normed, summed, kernel)
    return result[0], result[1]


def prepare_norm(
    kernel: str, name: str, centred: bool, x: Tensor, weight: Affine, bias: Affine
) -> Callable[[Tensor, Any, Any, float], Tensor] | None:
    """A function for all norms of one tensor that are of the same kind as this call.

    Args:
        kernel: "triton" or "compiled".
        name: "layer_norm" or "rms_norm".
        centred: whether the mean is subtracted.
        x: the input.
        weight: the weight.
        bias: the bias.

    Returns:
        (x, weight, bias, eps) -> the norm, with dtypes computed only once; None if weight or bias need a reshape at
        each call.
    """
    if any(isinstance(t, Tensor) and t.ndim != 1 for t in (weight, bias)):
        return None
    normed, summed = norm_dtype(name, x, weight, bias), x.dtype

    def run(x: Tensor, weight: Any, bias: Any, eps: float) -> Tensor:
        made: _FourTensors = _norm(x, None, weight, bias, None, 0.0, eps, centred, normed, summed, kernel)
        return made[0]

    return run


def norm_refusal(x: Tensor, weight: Affine = None, bias: Affine = None, eps: object = 1e-5) -> str:
    """The reason why our kernels do not support a norm with these operands, as a sentence; "" if they do."""
    if x.layout is not torch.strided or x.dtype not in HALVES_AND_SINGLE or not x.numel():
        return "It needs dense, non-empty tensors in fp32, bf16 or fp16."
    if not isinstance(eps, float | int):
        return "It needs a number for eps."
    for name, t in (("weight", weight), ("bias", bias)):
        if t is None:
            continue
        if not isinstance(t, Tensor) or t.layout is not torch.strided or not has_entry_per_column(t, x):
            return f"It needs a {name} with one entry for each column."
        if t.dtype not in HALVES_AND_SINGLE or t.device != x.device:
            return f"It needs a {name} in fp32, bf16 or fp16 on x's device."
    return ""


def norm_dtype(name: str, *operands: Any) -> torch.dtype:
    """The dtype of the result of torch's own norm `name` of the first operand, with the others as factor and summand.

    They promote to it. If autocast has a rule for this norm, it is at least fp32.
    """
    dtype: torch.dtype = operands[0].dtype
    for t in operands[1:]:
        dtype = torch.promote_types(dtype, t.dtype) if isinstance(t, Tensor) else dtype
    device = operands[0].device.type
    if is_autocast_on(device) and _has_autocast_rule(name, device):
        return torch.promote_types(dtype, torch.float32)
    return dtype


def _has_autocast_rule(name: str, device: str) -> bool:
    return bool(has_kernel_for(f"aten::{name}", f"Autocast{device.upper()}"))


def _contiguous(operand: Tensor | None) -> Tensor | None:
    return None if operand is None else operand.contiguous()
