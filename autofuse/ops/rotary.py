"""Rotary position embeddings in fewer passes over memory than the formula.

There are two layouts, halves and neighbouring pairs, and a cheap way to rotate each. TorchScript compiles `rotary` if a
scripted function calls it. It cannot read annotations that are strings, so this file has no `from __future__ import
annotations`.
"""

from typing import Any

import torch
from torch import Tensor

from autofuse.kernels import operators
from autofuse.kernels.folded_operands import (
    broadcasts_to,
    empty_in_memory_order,
    fold,
    with_contiguous_rows,
    without_broadcast,
)
from autofuse.kernels.gpu_thresholds import GpuThreshold
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import HALVES_AND_SINGLE, Provider

_SMALL = 2**18  # elements; below, the overhead of a kernel costs more than the passes over memory that it saves
_KERNELS = operators.Kernels(triton="autofuse.kernels.triton.rotary", compiled="autofuse.kernels.compiled.rotary")


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """x * cos + rotated(x) * sin, where rotated turns each pair (a, b) of `x` into (-b, a).

    A pair is entry i of the first and of the second half of the last dimension. If `interleaved`, it is entries 2i and
    2i + 1. To rotate a part of a head, pass that part.

    Args:
        x: shape (..., d), d even.
        cos: broadcasts against x, with a last size of d (a factor for each entry), d / 2 (one for each pair) or 1.
        sin: as cos.
        interleaved: whether pairs are neighbours.

    Returns:
        A tensor of shape (..., d), with broadcast leading dimensions, in the dtype to which x, cos and sin promote. All
        three get gradients.

    Raises:
        ValueError: if d is odd, or cos or sin has another last size.

    Source: Su et al., arXiv:2104.09864.
    """
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return _formula(x, cos, sin, interleaved)
    return _in_eager_mode(x, cos, sin, interleaved)


def _in_eager_mode(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    _check(x, cos, sin)
    result: Tensor = _OPERATION(x, cos, sin, interleaved)
    return result


def _check(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    width = x.shape[-1]
    if width % 2 == 0 and cos.ndim and sin.ndim:
        pair = (width, width // 2, 1)
        if cos.shape[-1] in pair and sin.shape[-1] in pair:
            return
    if width % 2:
        raise ValueError(
            f"rotary got a last dimension of {width}, which does not divide into pairs. Pass only the part that is "
            "rotated; its size must be even."
        )
    for name, factor in (("cos", cos), ("sin", sin)):
        if factor.ndim and factor.shape[-1] not in (width, width // 2, 1):
            raise ValueError(
                f"rotary got {name} with a last size of {factor.shape[-1]} for an x whose last size is {width}. "
                f"Use {width} (a factor for each entry), {width // 2} (a factor for each pair) or 1."
            )


# The registered operator: our kernels, for angles that require no gradient.


def _rotation(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool, kernel: str) -> Tensor:
    """x rotated by the angles. With `inverse`, by the transposed rotation, which is its gradient."""
    dtype = result_dtype(x, cos, sin)
    result: Tensor = _KERNELS[kernel].forward(
        without_broadcast(x), with_contiguous_rows(cos), with_contiguous_rows(sin), interleaved, inverse, dtype
    )
    return result


def _fake(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool, kernel: str) -> Tensor:
    return empty_in_memory_order(without_broadcast(x), result_dtype(x, cos, sin))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, cos, sin, ctx.interleaved, ctx.inverse, ctx.kernel = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(x if any(ctx.needs_input_grad[1:3]) else None, cos, sin)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, cos, sin = ctx.saved_tensors
    rest = (None, None, None)
    if x is None:
        back = rotate_back(gradient, cos, sin, ctx.interleaved, ctx.inverse, ctx.kernel)
        return (back if back.dtype is ctx.dtype else back.to(ctx.dtype), None, None, *rest)

    def formula(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotation_formula(x, cos, sin, ctx.interleaved, ctx.inverse)

    return (*operators.formula_gradients(formula, (x, cos, sin), (gradient,), ctx.needs_input_grad[:3]), *rest)


def rotate_back(gradient: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool, kernel: str) -> Tensor:
    """The gradient of x, from that of x rotated by the angles or, with `inverse`, by the transposed rotation."""
    result: Tensor = _ROTATION(gradient, cos, sin, interleaved, not inverse, kernel)
    return result


def rotation_formula(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    """The rotation in torch's functions; with `inverse`, the transposed one."""
    if inverse:
        sin = _transposed_sin(_widen(sin, x, interleaved), interleaved)
    return _formula(x, cos, sin, interleaved)


_ROTATION = operators.define(_rotation, _fake)
operators.differentiate(_ROTATION, _backward, _save)


def result_dtype(x: Tensor, cos: Tensor, sin: Tensor) -> torch.dtype:
    """The dtype to which x and the angles promote."""
    if cos.dtype is x.dtype and sin.dtype is x.dtype:
        return x.dtype
    return torch.promote_types(torch.promote_types(x.dtype, cos.dtype), sin.dtype)


def _kernel_refusal(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> str:
    """The reason why our kernels do not support a call."""
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        return "cos or sin need gradients, which torch's own code computes."
    if not cos.ndim or not sin.ndim:
        return "cos or sin has no dimension of its own."
    if not broadcasts_to(cos, x) or not broadcasts_to(sin, x):
        return "cos or sin is larger than x."
    if any(factor.device != x.device for factor in (cos, sin)):
        return "cos or sin is on another device than x."
    if result_dtype(x, cos, sin) not in HALVES_AND_SINGLE:
        return f"The result is {result_dtype(x, cos, sin)}, which torch's own code computes."
    if fold(without_broadcast(x), with_contiguous_rows(cos), with_contiguous_rows(sin)) is None:
        return "The operands have more than three runs of leading dimensions in memory."
    return ""


def _region_refusal(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> str:
    """The reason why the compiled region does not support a call."""
    if interleaved:
        return "torch rotates neighbouring pairs faster, as complex numbers."
    return _kernel_refusal(x, cos, sin)


def _by_triton(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    result: Tensor = _ROTATION(x, cos, sin, interleaved, False, "triton")
    return result


def _by_region(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    result: Tensor = _ROTATION(x, cos, sin, interleaved, False, "compiled")
    return result


# torch's code.


def _by_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    if not _are_plain(x, cos, sin):
        return _formula(x, cos, sin, interleaved)
    if interleaved and _one_a_pair(x, cos) and _one_a_pair(x, sin):
        return _rotate_complex(x, cos, sin)
    cos, sin = _widen(cos, x, interleaved), _widen(sin, x, interleaved)
    if x.numel() < _SMALL or _needs_broadcast(x, cos, sin):
        return _formula(x, cos, sin, interleaved)
    result: Tensor = _Rotation.apply(x, cos, sin, interleaved)  # type: ignore[no-untyped-call]
    return result


def _are_plain(*operands: Tensor) -> bool:
    """Whether the operands are plain tensors in eager mode. For all others the formula is better."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    return all(type(t) in (Tensor, torch.nn.Parameter) for t in operands)


def _needs_broadcast(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether x * cos has another shape or dtype than the result."""
    shape = torch.broadcast_shapes(x.shape, cos.shape)  # type: ignore[no-untyped-call]
    without_broadcast = torch.broadcast_shapes(shape, sin.shape)  # type: ignore[no-untyped-call]
    dtype = torch.promote_types(x.dtype, cos.dtype)
    return bool(shape != without_broadcast) or torch.promote_types(dtype, sin.dtype) is not dtype


def _one_a_pair(x: Tensor, factor: Tensor) -> bool:
    return factor.ndim > 0 and 2 * factor.shape[-1] == x.shape[-1]


def _widen(factor: Tensor, x: Tensor, interleaved: bool) -> Tensor:
    """A factor for each entry, from one for each pair."""
    if not _one_a_pair(x, factor):
        return factor
    return factor.repeat_interleave(2, -1) if interleaved else torch.cat((factor, factor), -1)


def _pairs(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Views of the first and of the second entry of each pair."""
    if interleaved:
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, -1)
    return first, second


def _join(first: Tensor, second: Tensor, interleaved: bool) -> Tensor:
    return torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)


def _formula(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The formula as models write it. A compiler fuses it by itself."""
    first, second = _pairs(x, interleaved)
    cos, sin = _widen(cos, x, interleaved), _widen(sin, x, interleaved)
    return x * cos + _join(-second, first, interleaved) * sin


def _rotate_complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates neighbouring pairs as complex numbers: one product, forward and backward."""
    dtype = torch.promote_types(torch.promote_types(x.dtype, cos.dtype), sin.dtype)
    compute = torch.float64 if dtype is torch.float64 else torch.float32
    numbers = _as_complex(x.to(compute).unflatten(-1, (-1, 2)))  # type: ignore[no-untyped-call]
    product = numbers * torch.complex(*torch.broadcast_tensors(cos.to(compute), sin.to(compute)))  # type: ignore[no-untyped-call]
    return torch.view_as_real(product).flatten(-2).to(dtype)


def _as_complex(pairs: Tensor) -> Tensor:
    """(..., 2) as complex numbers. Copies only if the memory layout is not that of complex numbers."""
    aligned = pairs.stride(-1) == 1 and not any(s % 2 for s in (*pairs.stride()[:-1], pairs.storage_offset()))
    return torch.view_as_complex(pairs if aligned else pairs.contiguous())


class _Rotation(torch.autograd.Function):
    """The rotation into one new tensor.

    The backward pass rotates the other way. x is saved only if cos or sin requires a gradient.
    """

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        if interleaved and x.device.type == "cpu" and _equal_in_pairs(cos) and _equal_in_pairs(sin):
            return _rotate_complex(x, cos[..., ::2], sin[..., ::2])
        result = x * cos
        first, second = _pairs(result, interleaved)
        x1, x2 = _pairs(x, interleaved)
        s1, s2 = (sin, sin) if not sin.ndim or sin.shape[-1] == 1 else _pairs(sin, interleaved)
        first.addcmul_(x2, s1, value=-1)
        second.addcmul_(x1, s2)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: Tensor) -> None:
        x, cos, sin, ctx.interleaved = inputs
        angles = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        ctx.shape, ctx.dtype = x.shape, x.dtype
        ctx.save_for_backward(x if angles else None, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, cos, sin = ctx.saved_tensors
        to_x = to_cos = to_sin = None
        if ctx.needs_input_grad[0]:
            back = rotary(grad, cos, _transposed_sin(sin, ctx.interleaved), interleaved=ctx.interleaved)
            to_x = back.sum_to_size(ctx.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            to_cos = (grad * x).sum_to_size(cos.shape).to(cos.dtype)
        if ctx.needs_input_grad[2]:
            first, second = _pairs(x, ctx.interleaved)
            to_sin = (grad * _join(-second, first, ctx.interleaved)).sum_to_size(sin.shape).to(sin.dtype)
        return to_x, to_cos, to_sin, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        result: Tensor = torch.vmap(_formula, in_dims)(*inputs)
        return result, 0


def _equal_in_pairs(factor: Tensor) -> bool:
    """Whether both factors of each pair are equal, so that half of them is enough."""
    return factor.ndim > 0 and factor.shape[-1] > 1 and torch.equal(factor[..., ::2], factor[..., 1::2])


def _transposed_sin(sin: Tensor, interleaved: bool) -> Tensor:
    """`sin` of the transposed rotation: both entries of each pair, exchanged and negated."""
    if not sin.ndim or sin.shape[-1] == 1:
        return -sin
    first, second = _pairs(sin, interleaved)
    return -_join(second, first, interleaved)


_ON_GPU = GpuThreshold(extra=0, saved=8)  # 48 microseconds; the seven functions of the formula take 55
_OPERATION = Operation(
    "rotary",
    (
        Provider(
            "rotary", "triton", TRITON, _by_triton, check=_kernel_refusal, devices=("cuda",), default=True,
            summary="One pass over x; angles are read from the cache.",
            gradient="The same kernel with the inverse rotation.",
        ),
        Provider(
            "rotary", "compiled", COMPILER, _by_region, check=_region_refusal, devices=("cpu",), default=True,
            summary="One loop over x that Inductor compiles.",
            gradient="The same loop with the inverse rotation.",
        ),
        Provider(
            "rotary", "torch", TORCH, _by_torch,
            summary="torch mul and addcmul into one new tensor, or a product of complex numbers.",
            gradient="The inverse rotation; gradients of cos and sin by autograd.",
        ),
    ),
    least=_SMALL,
    on_gpu=_ON_GPU,
)  # fmt: skip
