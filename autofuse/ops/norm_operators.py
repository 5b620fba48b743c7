"""What layer norm, RMS norm and their fusions with a residual have in common: one operator and its gradient.

torch.ops.autofuse.norm takes tensors of any leading sizes to one of the kernels, which know rows only. What its
backward pass needs of the forward pass is the sum, which is one of its results, and two numbers for each row; dropout
is drawn again from its seed. Knows dtypes and who takes what; must not know how a kernel computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.dropout_bits import kept
from autofuse.kernels.operators import Kernels, by_formula, define, differentiate
from autofuse.kernels.provider import HALVES_AND_SINGLE
from autofuse.kernels.row_shapes import as_rows, shaped
from autofuse.ops.affine import Affine, has_entry_per_column
from autofuse.torch_private import has_kernel_for

KERNELS = Kernels(compiled="autofuse.kernels.compiled.norm", triton="autofuse.kernels.triton.norm")
_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype, kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The norm of residual + dropout(x), that sum, and each row's mean and reciprocal deviation, by `kernel`.

    Shapes: x and residual (..., C); weight and bias (C,); seed (1,), None for no dropout. The results have dtypes
    `normed`, `summed` and fp32; the last two have one row for each of x's. The sum is empty where it is x, and the mean
    where `centred` is False (RMS norm).
    """
    out, total, mean, rstd = _norm_or_none(x, residual, weight, bias, seed, p, eps, centred, normed, summed, kernel)
    total = x.new_empty(0, dtype=summed) if total is None else total
    return out, total, x.new_empty(0, dtype=torch.float32) if mean is None else mean, rstd


def _norm_or_none(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype, kernel: str,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:  # fmt: skip
    """The same, None for what would be empty."""
    out, total, mean, rstd = KERNELS[kernel].forward(
        as_rows(x, kernel), None if residual is None else as_rows(residual, kernel), _dense(weight), _dense(bias), seed,
        p, eps, centred, normed, summed,
    )  # fmt: skip
    return shaped(out, x), None if total is None else shaped(total, x), mean, rstd


def _fake(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype, kernel: str,
) -> _Four:  # fmt: skip
    rows = math.prod(x.shape[:-1])  # Size.numel would make a number of a symbol
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

    total: the sum, or x. mean: None or empty for RMS norm. What is not wanted is empty: a residual's gradient where
    `residual_dtype` is None. The last two are in fp32.
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
    """The same, None for what would be empty, `mean` among it."""
    dx, dresidual, dweight, dbias = KERNELS[kernel].backward(
        as_rows(given, kernel), None if carried is None else as_rows(carried, kernel), as_rows(total, kernel),
        _dense(weight), mean, rstd, seed, p, x_dtype, residual_dtype, wants_weight, wants_bias,
    )  # fmt: skip
    return shaped(dx, total), None if dresidual is None else shaped(dresidual, total), dweight, dbias


def _fake_backward(
    given: Tensor, carried: Tensor | None, total: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor,
    seed: Tensor | None, p: float, x_dtype: torch.dtype, residual_dtype: torch.dtype | None, wants_weight: bool,
    wants_bias: bool, kernel: str,
) -> _Four:  # fmt: skip
    width = total.shape[-1:]
    return (
        total.new_empty(total.shape, dtype=x_dtype),
        total.new_empty((0,) if residual_dtype is None else total.shape, dtype=residual_dtype or x_dtype),
        total.new_empty(width if wants_weight else (0,), dtype=torch.float32),
        total.new_empty(width if wants_bias else (0,), dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: _Four) -> None:
    _, total, mean, rstd = output
    _keep(ctx, inputs, total, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd, *([] if ctx.has_sum else [total]))


def _keep(ctx: Any, inputs: tuple[Any, ...], total: Tensor | None, mean: Tensor | None, rstd: Tensor) -> None:
    x, residual, weight, bias, seed, ctx.p, ctx.eps, ctx.centred, _, _, ctx.kernel = inputs
    ctx.has_sum = has_sum = residual is not None or seed is not None
    ctx.x_dtype, ctx.residual_dtype = x.dtype, None if residual is None else residual.dtype
    ctx.save_for_backward(total if has_sum else x, weight, bias, seed, mean, rstd)
    ctx.set_materialize_grads(False)


def _forward(ctx: Any, *inputs: Any) -> Any:
    """What a call runs that nobody looks at: the norm, and the sum where there is one. The rest is no output."""
    out, total, mean, rstd = _norm_or_none(*inputs)
    _keep(ctx, inputs, total, mean, rstd)
    return out, total


def _gradients(ctx: Any, given: Tensor | None, carried: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """Gradients for every argument of `norm`; kernels have them, the formula where they shall have derivatives."""
    total, weight, bias, seed, mean, rstd = ctx.saved_tensors
    of_x, of_residual, of_weight, of_bias = ctx.needs_input_grad[:4]
    if given is None:
        if carried is None:
            return (None,) * 11
        given = torch.zeros_like(total)
    if torch.is_grad_enabled():
        dx, dresidual, dweight, dbias = _gradients_by_formula(ctx, given, carried)
    else:
        apart = seed is not None or ctx.residual_dtype not in (None, ctx.x_dtype)  # else one tensor is both gradients
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
    """The same in functions that have derivatives, from the sum on, which is part of the graph as a result."""
    total, weight, bias, seed, _, _ = ctx.saved_tensors

    def formula(total: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        z = total.float()
        z = z - z.mean(-1, keepdim=True) if ctx.centred else z
        y = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + ctx.eps)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).to(given.dtype)

    wanted = (True, *ctx.needs_input_grad[2:4])
    dz, dweight, dbias = by_formula(formula, (total, weight, bias), (given,), wanted)
    assert dz is not None
    dz = dz.to(torch.float32) if carried is None else dz.to(torch.float32) + carried
    dropped = dz if seed is None else _dropped(dz, seed, ctx.p)
    return dropped.to(ctx.x_dtype), dz.to(ctx.residual_dtype or ctx.x_dtype), dweight, dbias


def _dropped(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """dropout(x) with the draws of `seed`."""
    rows = torch.arange(math.prod(x.shape[:-1]), device=x.device).view(x.shape[:-1])
    return torch.where(kept(seed, rows, x.shape[-1], p), x / (1.0 - p), 0.0)


_norm = define(norm, _fake, direct=_norm_or_none)
_norm_backward = define(norm_backward, _fake_backward, direct=_backward_or_none)
differentiate(_norm, _gradients, _save, _forward)


def normed_by(
    kernel: str, x: Tensor, residual: Tensor | None, weight: Affine, bias: Affine, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The norm of residual + dropout(x), and the sum, by the kernels of `kernel`. See `refused` for what they take."""
    scale, shift = (t.reshape(-1) if isinstance(t, Tensor) and t.ndim != 1 else t for t in (weight, bias))
    result: _Four = _norm(x, residual, scale, shift, seed, float(p), float(eps), centred, normed, summed, kernel)
    return result[0], result[1]


def prepared(
    kernel: str, name: str, centred: bool, x: Tensor, weight: Affine, bias: Affine
) -> Callable[[Tensor, Any, Any, float], Tensor] | None:
    """What runs every norm `name` of one tensor by `kernel` that is of the same kind as this call's: (x, weight, bias,
    eps) -> the norm. Dtypes are found out once. None where weight or bias have to be reshaped at each call."""
    if any(isinstance(t, Tensor) and t.ndim != 1 for t in (weight, bias)):
        return None
    normed, summed = dtype_of(name, x, weight, bias), x.dtype

    def run(x: Tensor, weight: Any, bias: Any, eps: float) -> Tensor:
        made: _Four = _norm(x, None, weight, bias, None, 0.0, eps, centred, normed, summed, kernel)
        return made[0]

    return run


def refused(x: Tensor, weight: Affine = None, bias: Affine = None, eps: object = 1e-5) -> str:
    """Why our kernels do not take a norm with these operands, as a sentence; "" where they do."""
    if x.layout is not torch.strided or x.dtype not in HALVES_AND_SINGLE or not x.numel():
        return "It takes dense tensors of fp32, bf16 or fp16 that are not empty."
    if not isinstance(eps, float | int):
        return "It takes a number for eps."
    for name, t in (("weight", weight), ("bias", bias)):
        if t is None:
            continue
        if not isinstance(t, Tensor) or t.layout is not torch.strided or not has_entry_per_column(t, x):
            return f"It takes a {name} of one entry for each column."
        if t.dtype not in HALVES_AND_SINGLE or t.device != x.device:
            return f"It takes a {name} of fp32, bf16 or fp16 on x's device."
    return ""


def dtype_of(name: str, *operands: Any) -> torch.dtype:
    """The dtype of torch's own norm `name` ("layer_norm") of the first operand, multiplied by or added to the others.

    That is the one they promote to, and at least fp32 where autocast has a rule for that norm.
    """
    dtype: torch.dtype = operands[0].dtype
    for t in operands[1:]:
        dtype = torch.promote_types(dtype, t.dtype) if isinstance(t, Tensor) else dtype
    device = operands[0].device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if on and _has_autocast_rule(name, device):
        return torch.promote_types(dtype, torch.float32)
    return dtype


def _has_autocast_rule(name: str, device: str) -> bool:
    return bool(has_kernel_for(f"aten::{name}", f"Autocast{device.upper()}"))


def _dense(operand: Tensor | None) -> Tensor | None:
    return None if operand is None else operand.contiguous()
