"""Rotary embeddings of query and key with the same angles, in one launch instead of two.

The kernel and its accuracy are those of `rotary`. What is saved is a launch and the Python code around it, forward and
backward. So the pair is rotated together only where `rotary` would rotate both with our kernel.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autofuse.kernels.folded_operands import empty_in_memory_order, with_contiguous_rows, without_broadcast
from autofuse.kernels.gpu_thresholds import GpuThreshold
from autofuse.kernels.operation import OPERATIONS, Operation
from autofuse.kernels.operators import Kernels, define, differentiate, formula_gradients
from autofuse.kernels.packages import TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.ops.rotary import result_dtype, rotary, rotate_back, rotation_formula

_KERNELS = Kernels(triton="autofuse.kernels.triton.rotary")
_ROTARY = OPERATIONS["rotary"]


def rotary_pair(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """`rotary` of query and key with the same angles.

    Args:
        query: shape (..., d), d even.
        key: shape (..., d); its leading dimensions may differ from the query's.
        cos: as in `rotary`, for both.
        sin: as cos.
        interleaved: whether pairs are neighbours.

    Returns:
        The rotated query and the rotated key.

    Raises:
        ValueError: as `rotary` does.
    """
    result: tuple[Tensor, Tensor] = _OP(query, key, cos, sin, interleaved)
    return result


def rotations(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool, kernel: str
) -> tuple[Tensor, Tensor]:
    """Query and key rotated by the angles. With `inverse`, by the transposed rotation."""
    result: tuple[Tensor, Tensor] = _KERNELS[kernel].forward_pair(
        without_broadcast(query), without_broadcast(key), with_contiguous_rows(cos), with_contiguous_rows(sin),
        interleaved, inverse, result_dtype(query, cos, sin),
    )  # fmt: skip
    return result


def _fake(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool, kernel: str
) -> tuple[Tensor, Tensor]:
    dtype = result_dtype(query, cos, sin)
    return (
        empty_in_memory_order(without_broadcast(query), dtype),
        empty_in_memory_order(without_broadcast(key), dtype),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, cos, sin, ctx.interleaved, ctx.inverse, ctx.kernel = inputs
    ctx.dtype = query.dtype
    ctx.set_materialize_grads(False)
    angles = any(ctx.needs_input_grad[2:4])
    ctx.save_for_backward(query if angles else None, key if angles else None, cos, sin)


def _backward(ctx: Any, of_query: Tensor | None, of_key: Tensor | None) -> tuple[Tensor | None, ...]:
    saved, rest = ctx.saved_tensors, (None, None, None)
    query, _, cos, sin = saved
    if query is not None and (of_query is not None or of_key is not None):
        return *_gradients_with_angles(ctx, saved, (of_query, of_key)), *rest
    wanted = [g if wants else None for g, wants in zip((of_query, of_key), ctx.needs_input_grad, strict=False)]
    if wanted[0] is not None and wanted[1] is not None:
        both = _ROTATIONS(wanted[0], wanted[1], cos, sin, ctx.interleaved, not ctx.inverse, ctx.kernel)
        return *(g if g.dtype is ctx.dtype else g.to(ctx.dtype) for g in both), None, None, *rest
    one = [
        None if g is None else rotate_back(g, cos, sin, ctx.interleaved, ctx.inverse, ctx.kernel).to(ctx.dtype)
        for g in wanted
    ]
    return *one, None, None, *rest


def _gradients_with_angles(
    ctx: Any, saved: tuple[Tensor, ...], gradients: tuple[Tensor | None, Tensor | None]
) -> list[Tensor | None]:
    """The gradients of query, key, cos and sin by torch's formula. The kernels have none for angles."""

    def formula(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        how = cos, sin, ctx.interleaved, ctx.inverse
        return rotation_formula(query, *how), rotation_formula(key, *how)

    return formula_gradients(formula, saved, gradients, ctx.needs_input_grad[:4])


_ROTATIONS = define(rotations, _fake)
differentiate(_ROTATIONS, _backward, _save)


def _refusal(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> str:
    """The reason why our kernel does not rotate both together."""
    if key.dtype is not query.dtype or key.device != query.device or key.shape[-1:] != query.shape[-1:]:
        return "It needs query and key of one width and dtype, on one device."
    for name, x in (("query", query), ("key", key)):
        if (taker := _ROTARY.taker(x, cos, sin, interleaved).name) != "triton":
            return f"ops.rotary rotates the {name} with {taker}."
    return ""


def _by_triton(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Any:
    return _ROTATIONS(query, key, cos, sin, interleaved, False, "triton")


def _by_torch(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Any:
    return rotary(query, cos, sin, interleaved), rotary(key, cos, sin, interleaved)


_OP = Operation(
    "rotary_pair",
    (
        Provider(
            "rotary_pair", "triton", TRITON, _by_triton, check=_refusal, devices=("cuda",), default=True,
            summary="One launch that rotates query and key.",
            gradient="The same kernel with the inverse rotation, for both gradients.",
        ),
        Provider(
            "rotary_pair", "torch", TORCH, _by_torch, default=True, summary="rotary of the query, and of the key.",
            gradient="That of rotary.",
        ),
    ),
    least=_ROTARY.least,
    on_gpu=GpuThreshold(extra=0, saved=8),
)  # fmt: skip
_ROTARY.followers.append(_OP)
