"""Rotary position embeddings in fewer passes over memory than the formula takes.

Knows the two layouts (halves and neighbouring pairs) and how each is rotated cheaply; must not know where angles come
from, or which part of a head is rotated. TorchScript compiles `rotary` where a scripted function calls it, and cannot
read annotations that are text: so there is no `from __future__ import annotations` here.
"""

from typing import Any

import torch
from torch import Tensor

from autofuse.kernels import operators
from autofuse.kernels.folded_operands import broadcasts_to, dense, fold, in_order_of_memory, whole
from autofuse.kernels.gpu_thresholds import GpuThreshold
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import HALVES_AND_SINGLE, Provider

_SMALL = 2**18  # elements; below this what surrounds a kernel costs more than the passes over memory that it saves
_KERNELS = operators.Kernels(triton="autofuse.kernels.triton.rotary", compiled="autofuse.kernels.compiled.rotary")


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """x * cos + rotated(x) * sin, where rotated turns each pair (a, b) of `x` into (-b, a).

    A pair is entry i of the first and of the second half of the last dimension, (-second, first) being the rotated
    vector; `interleaved`, it is entries 2i and 2i + 1.

    Shapes: x (..., d) with an even d. cos and sin broadcast against x and have a last size of d (a factor for each
    entry, whether or not the two of a pair are equal), d / 2 (one for each pair) or 1. The result is (..., d), leading
    dimensions broadcast, in the dtype to which x, cos and sin promote. All three get their gradients.
    A part of a head is rotated by passing that part.

    Source: Su et al., arXiv:2104.09864. Raises ValueError for an odd d or another last size of cos or sin.
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
            f"rotary was given a last dimension of {width}, which does not divide into pairs. Pass the part of it that "
            "is to be rotated, of an even size."
        )
    for name, factor in (("cos", cos), ("sin", sin)):
        if factor.ndim and factor.shape[-1] not in (width, width // 2, 1):
            raise ValueError(
                f"rotary was given {name} with a last size of {factor.shape[-1]} for an x whose last size is {width}. "
                f"Give it {width} (a factor an entry), {width // 2} (a factor a pair) or 1."
            )


# The registered operator: kernels of our own, for angles that are constants.


def _rotation(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool, kernel: str) -> Tensor:
    """x turned by the angles; `inverse` by the transposed rotation, which is its gradient."""
    dtype = _dtype(x, cos, sin)
    made: Tensor = _KERNELS[kernel].forward(whole(x), dense(cos), dense(sin), interleaved, inverse, dtype)
    return made


def _of_same_layout(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool, kernel: str) -> Tensor:
    return in_order_of_memory(whole(x), _dtype(x, cos, sin))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, cos, sin, ctx.interleaved, ctx.inverse, ctx.kernel = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(x if any(ctx.needs_input_grad[1:3]) else None, cos, sin)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, cos, sin = ctx.saved_tensors
    rest = (None, None, None)
    if x is None:
        back = _ROTATION(gradient, cos, sin, ctx.interleaved, not ctx.inverse, ctx.kernel)
        return (back.to(ctx.dtype), None, None, *rest)

    def formula(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return _formula(
            x,
            cos,
            _opposite(_widened(sin, x, ctx.interleaved), ctx.interleaved) if ctx.inverse else sin,
            ctx.interleaved,
        )

    return (*operators.by_formula(formula, (x, cos, sin), (gradient,), ctx.needs_input_grad[:3]), *rest)


_ROTATION = operators.define(_rotation, _of_same_layout)
operators.differentiate(_ROTATION, _backward, _save)


def _dtype(x: Tensor, cos: Tensor, sin: Tensor) -> torch.dtype:
    if cos.dtype is x.dtype and sin.dtype is x.dtype:
        return x.dtype
    return torch.promote_types(torch.promote_types(x.dtype, cos.dtype), sin.dtype)


def _kernel_misfit(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> str:
    """Why our own kernels do not take a call."""
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        return "cos or sin need gradients, which torch's own code computes."
    if not cos.ndim or not sin.ndim:
        return "cos or sin has no dimension of its own."
    if not broadcasts_to(cos, x) or not broadcasts_to(sin, x):
        return "cos or sin is larger than x."
    if any(factor.device != x.device for factor in (cos, sin)):
        return "cos or sin lies on another device than x."
    if _dtype(x, cos, sin) not in HALVES_AND_SINGLE:
        return f"The result is {_dtype(x, cos, sin)}, which torch's own code computes."
    if fold(whole(x), dense(cos), dense(sin)) is None:
        return "The operands have more than three runs of leading dimensions in memory."
    return ""


def _region_misfit(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> str:
    """Why the compiled region does not take a call."""
    if interleaved:
        return "Neighbouring pairs are turned faster by torch, as complex numbers."
    return _kernel_misfit(x, cos, sin)


def _by_triton(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    result: Tensor = _ROTATION(x, cos, sin, interleaved, False, "triton")
    return result


def _by_region(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    result: Tensor = _ROTATION(x, cos, sin, interleaved, False, "compiled")
    return result


# torch's own code.


def _by_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    if not _plain(x, cos, sin):
        return _formula(x, cos, sin, interleaved)
    if interleaved and _one_a_pair(x, cos) and _one_a_pair(x, sin):
        return _turned(x, cos, sin)
    cos, sin = _widened(cos, x, interleaved), _widened(sin, x, interleaved)
    if x.numel() < _SMALL or _grows(x, cos, sin):
        return _formula(x, cos, sin, interleaved)
    result: Tensor = _Rotation.apply(x, cos, sin, interleaved)  # type: ignore[no-untyped-call]
    return result


def _plain(*operands: Tensor) -> bool:
    """Whether the operands are plain tensors in eager mode; others do better with the formula."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    return all(type(t) in (Tensor, torch.nn.Parameter) for t in operands)


def _grows(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether x * cos has not yet the shape and dtype of the result."""
    shape = torch.broadcast_shapes(x.shape, cos.shape)  # type: ignore[no-untyped-call]
    whole = torch.broadcast_shapes(shape, sin.shape)  # type: ignore[no-untyped-call]
    dtype = torch.promote_types(x.dtype, cos.dtype)
    return bool(shape != whole) or torch.promote_types(dtype, sin.dtype) is not dtype


def _one_a_pair(x: Tensor, factor: Tensor) -> bool:
    return factor.ndim > 0 and 2 * factor.shape[-1] == x.shape[-1]


def _widened(factor: Tensor, x: Tensor, interleaved: bool) -> Tensor:
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


def _joined(first: Tensor, second: Tensor, interleaved: bool) -> Tensor:
    return torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)


def _formula(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """As it is written in models; what a compiler fuses by itself."""
    first, second = _pairs(x, interleaved)
    cos, sin = _widened(cos, x, interleaved), _widened(sin, x, interleaved)
    return x * cos + _joined(-second, first, interleaved) * sin


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbouring pairs as complex numbers: one product, forward and backward."""
    dtype = torch.promote_types(torch.promote_types(x.dtype, cos.dtype), sin.dtype)
    compute = torch.float64 if dtype is torch.float64 else torch.float32
    numbers = _complex(x.to(compute).unflatten(-1, (-1, 2)))  # type: ignore[no-untyped-call]
    turned = numbers * torch.complex(*torch.broadcast_tensors(cos.to(compute), sin.to(compute)))  # type: ignore[no-untyped-call]
    return torch.view_as_real(turned).flatten(-2).to(dtype)


def _complex(pairs: Tensor) -> Tensor:
    """(..., 2) as complex numbers, copied only where their layout in memory is none of complex numbers."""
    aligned = pairs.stride(-1) == 1 and not any(s % 2 for s in (*pairs.stride()[:-1], pairs.storage_offset()))
    return torch.view_as_complex(pairs if aligned else pairs.contiguous())


class _Rotation(torch.autograd.Function):
    """The rotation into one new tensor, and backward by the rotation the other way; x is kept for angles only."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        if interleaved and x.device.type == "cpu" and _equal_in_pairs(cos) and _equal_in_pairs(sin):
            return _turned(x, cos[..., ::2], sin[..., ::2])
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
            back = rotary(grad, cos, _opposite(sin, ctx.interleaved), interleaved=ctx.interleaved)
            to_x = back.sum_to_size(ctx.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            to_cos = (grad * x).sum_to_size(cos.shape).to(cos.dtype)
        if ctx.needs_input_grad[2]:
            first, second = _pairs(x, ctx.interleaved)
            to_sin = (grad * _joined(-second, first, ctx.interleaved)).sum_to_size(sin.shape).to(sin.dtype)
        return to_x, to_cos, to_sin, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        result: Tensor = torch.vmap(_formula, in_dims)(*inputs)
        return result, 0


def _equal_in_pairs(factor: Tensor) -> bool:
    """Whether neighbours are the same number: half of the angles say all."""
    return factor.ndim > 0 and factor.shape[-1] > 1 and torch.equal(factor[..., ::2], factor[..., 1::2])


def _opposite(sin: Tensor, interleaved: bool) -> Tensor:
    """What `sin` is in the transposed rotation: each pair's two, exchanged and negated."""
    if not sin.ndim or sin.shape[-1] == 1:
        return -sin
    first, second = _pairs(sin, interleaved)
    return -_joined(second, first, interleaved)


_ON_GPU = GpuThreshold(extra=0, saved=8)  # 48 microseconds against 55 of the formula's seven functions
_OPERATION = Operation(
    "rotary",
    (
        Provider(
            "rotary", "triton", TRITON, _by_triton, check=_kernel_misfit, devices=("cuda",), default=True,
            summary="one pass over x, angles read from the cache",
            gradient="the same kernel, turning the other way",
        ),
        Provider(
            "rotary", "compiled", COMPILER, _by_region, check=_region_misfit, devices=("cpu",), default=True,
            summary="one loop over x, compiled by Inductor",
            gradient="the same loop, turning the other way",
        ),
        Provider(
            "rotary", "torch", TORCH, _by_torch,
            summary="mul and addcmul into one new tensor, or a product of complex numbers",
            gradient="the rotation the other way; those of cos and sin by autograd",
        ),
    ),
    least=_SMALL,
    on_gpu=_ON_GPU,
)  # fmt: skip
