"""The cost of one call of an operator: FLOPs, as executed and as asked for, and bytes read and written.

It uses operators' schemas and the formulas of torch.utils.flop_counter. A FLOP is an addition or a multiplication of a
matrix product or a convolution: two for each pair of entries, as in the definition of MFU (Chowdhery et al., PaLM,
arXiv:2204.02311, appendix B). Other computations count as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autofuse.kernels.operators import NAMESPACE
from autofuse.kernels.packages import Unavailable, load_module
from autofuse.ops.flops import SDPA_ON_CPU
from autofuse.profiling.live.bytes_moved import bytes_moved, moves_nothing
from autofuse.torch_private import HigherOrderOperator
from autofuse.torch_private.nested import tensors_in

Formula = Callable[..., int]  # takes shapes in place of tensors, and `out_shape`


class OperatorCost(NamedTuple):
    """The cost of one call.

    flops: executed.
    model_flops: the same without what a kernel recomputes to save memory.
    bytes: distinct elements read and written, each operand once, wherever it is stored.
    dtype: of the first floating operand, "bfloat16"; "tensorfloat32" for float32 products that the device rounds so.
    """

    flops: int
    model_flops: int
    bytes: int
    dtype: str


def cost(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, wanted: Sequence[bool] = ()
) -> OperatorCost | None:
    """Return the cost of a call of `function` that returned `result`; None if it moved nothing (views, allocations).

    wanted: in a backward, for which inputs of the forward operator a gradient is asked; () if unknown.
    """
    if function.namespace in _COMMUNICATION:
        return None
    tensors = tuple(tensors_in((args, tuple(kwargs.values()))))
    flops, model_flops = _flops(function, args, kwargs, result, wanted)
    if not flops and moves_nothing(function, tensors, result):
        return None
    dtype = _dtype_of_operands(tensors, result, _operator_name(_packet(function)) if flops else "")
    return OperatorCost(flops, model_flops, bytes_moved(function, args, kwargs, result), dtype)


def is_opaque(function: Any) -> bool:
    """Whether an operator may compute matrix products without a formula for their number."""
    if not can_count() or _formula_of(function) is not None:
        return False
    if isinstance(function, HigherOrderOperator):
        return True
    if function.namespace == "aten":
        return str(function._opname) in _PRODUCTS_UNCOUNTED
    return function.namespace not in (NAMESPACE, "prim", "prims", *_COMMUNICATION, *_NO_PRODUCTS)


_COMMUNICATION = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"})
_NO_PRODUCTS = frozenset({"fsdp", "profiler", "inductor", "debugprims", "rngprims"})
_PRODUCTS_UNCOUNTED = frozenset(
    "_cudnn_rnn _cudnn_rnn_backward miopen_rnn _thnn_fused_gru_cell "
    "_trilinear _sparse_mm _sparse_addmm "
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math_for_mps "
    "_scaled_grouped_mm _weight_int8pack_mm _weight_int4pack_mm "
    "linalg_inv_ex linalg_solve_ex linalg_qr _linalg_svd".split()
)  # fmt: skip


# FLOPs.


@cache
def can_count() -> bool:
    """Whether torch's formulas can be loaded. They import Triton, whose installation may be broken."""
    try:
        load_module("torch.utils.flop_counter")
    except Unavailable:
        return False
    return True


def _formula_of(function: Any) -> Any:
    """Return the formula of the FLOPs that an operator executes, from torch or from us; None if there is none."""
    counter = load_module("torch.utils.flop_counter")
    packet = _packet(function)
    ours = SDPA_ON_CPU.get(packet) or _OURS.get(_operator_name(packet))
    return counter.flop_registry.get(packet) if ours is None else counter.shape_wrapper(ours)


def _flops(function: Any, args: Any, kwargs: Any, result: Any, wanted: Sequence[bool]) -> tuple[int, int]:
    formula = _formula_of(function) if can_count() else None
    if formula is None:
        return 0, 0
    executed = int(formula(*args, **kwargs, out_val=result))
    asked = _ASKED_FOR.get(_operator_name(_packet(function)))
    if asked is None:
        return executed, executed
    every = (True,) * 3
    return executed, min(executed, int(asked(*_shapes(args), wanted=wanted[:3] if len(wanted) >= 3 else every)))


def _packet(function: Any) -> Any:
    return getattr(function, "_overloadpacket", function)


def _operator_name(packet: Any) -> str:
    """Return the name of an operator, such as "aten.mm"; a higher-order operator has no namespace."""
    return str(getattr(packet, "_qualified_op_name", packet)).replace("::", ".")


def _shapes(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(a.shape) if isinstance(a, Tensor) else a for a in args)


def _product_flops(x: Any, weight: Any) -> int:
    """FLOPs of (..., k) times a weight (n, k)."""
    return int(2 * math.prod(x) * weight[0])


def _convolution_backward(gradient: Any, x: Any, weight: Any, *rest: Any, out_shape: Any = None, **_: Any) -> int:
    """FLOPs of the two gradients of a convolution. Each takes as many FLOPs as the forward.

    torch's formula multiplies the weight's by the number of groups, which is too much.
    """
    transposed, wanted = rest[4], rest[7]
    spatial = (x if transposed else gradient)[2:]
    forward = 2 * gradient[0] * math.prod(spatial) * math.prod(weight)
    return int(forward * (bool(wanted[0]) + bool(wanted[1])))


def _matrix_vector(matrix: Any, vector: Any, **_: Any) -> int:
    return int(2 * math.prod(matrix))


def _grouped_product(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    """FLOPs with groups of rows, (T, k) by (G, k, n), or with groups of the inner dimension, (m, T) by (T, n)."""
    if len(x) == 3 and len(weight) == 3:
        return int(2 * math.prod(x) * weight[-1])
    return int(2 * math.prod(x[-2:]) * weight[-1]) if len(x) == 2 else int(2 * x[-2] * math.prod(weight[-2:]))


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """FLOPs of two matrix products, masked entries included, as flash-attn counts: (batch, length, heads, width)."""
    return int(2 * math.prod(query[:3]) * key[1] * (query[3] + value[3]))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(2 * math.prod(query[:3]) * key[1] * (3 * query[3] + 2 * value[3]))


def _self_attention(x: Any, *matrices: Any) -> int:
    """FLOPs of (batch, length, width) times each of `matrices`, and of the two products of attention."""
    return int(2 * math.prod(x[:2]) * (sum(map(math.prod, matrices)) + 2 * x[1] * x[2]))


def _encoder_layer(x: Any, width: Any, heads: Any, joint: Any, joint_bias: Any, out: Any, *rest: Any, **_: Any) -> int:
    """FLOPs of torch's nn.TransformerEncoderLayer as one operator: without gradients, in evaluation mode."""
    return _self_attention(x, joint, out, rest[8], rest[10])


def _native_attention(query: Any, key: Any, value: Any, width: Any, heads: Any, *rest: Any, **_: Any) -> int:
    return _self_attention(query, rest[0], rest[2])


def _recurrent(x: Any, of_input: Any, of_state: Any, *_: Any, **__: Any) -> int:
    """FLOPs of a recurrent layer, (length, batch, width): each step multiplies its input and the state."""
    return int(2 * math.prod(x[:2]) * (math.prod(of_input) + math.prod(of_state)))


_OURS: Mapping[str, Formula] = {
    "aten.convolution_backward": _convolution_backward,
    "aten.mv": _matrix_vector,
    "aten.addmv": lambda base, matrix, vector, **_: 2 * math.prod(matrix),
    "aten.dot": _matrix_vector,
    "aten.vdot": _matrix_vector,
    "aten.addbmm": lambda base, one, other, **_: 2 * math.prod(one) * other[-1],
    "aten._addmm_activation": lambda base, one, other, **_: 2 * math.prod(one) * other[-1],
    "aten._int_mm": lambda one, other, **_: 2 * math.prod(one) * other[-1],
    "aten._grouped_mm": _grouped_product,
    "aten._transformer_encoder_layer_fwd": _encoder_layer,
    "aten._native_multi_head_attention": _native_attention,
    "aten.mkldnn_rnn_layer": _recurrent,
    "aten.mkldnn_rnn_layer_backward": lambda *operands, **_: 2 * _recurrent(*operands),
    "flash_attn._flash_attn_forward": _attention_flops,
    "flash_attn._flash_attn_backward": _attention_backward,
}


# Model FLOPs of kernels that compute something twice: the scores of attention, the logits of a loss.


def _attention_gradients(gradient: Any, query: Any, key: Any, value: Any, *_: Any, wanted: Sequence[bool]) -> int:
    """FLOPs of attention's backward, (batch, heads, length, width), without recomputation.

    There is one product each for the gradients of the weights (which those of queries and keys need), of queries, of
    keys and of values. Together they are twice the forward.
    """
    of_query, of_key, of_value = wanted
    of_weights = of_query or of_key
    return int(
        2 * math.prod(query[:3]) * key[2] * (query[3] * (of_query + of_key) + value[3] * (of_weights + of_value))
    )


def _flex_gradients(query: Any, key: Any, value: Any, *_: Any, wanted: Sequence[bool]) -> int:
    return _attention_gradients(None, query, key, value, wanted=wanted)


def _flash_gradients(gradient: Any, query: Any, key: Any, value: Any, *_: Any, wanted: Sequence[bool]) -> int:
    by_heads = ((t[0], t[2], t[1], t[3]) for t in (query, key, value))
    return _attention_gradients(None, *by_heads, wanted=wanted)


def _cross_entropy_gradients(gradient: Any, x: Any, weight: Any, *rest: Any, **_: Any) -> int:
    of_x, of_weight = rest[5:7]
    return _product_flops(x, weight) * (bool(of_x) + bool(of_weight))


_ASKED_FOR: Mapping[str, Formula] = {
    "aten._scaled_dot_product_flash_attention_backward": _attention_gradients,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_gradients,
    "aten._scaled_dot_product_efficient_attention_backward": _attention_gradients,
    "aten._scaled_dot_product_cudnn_attention_backward": _attention_gradients,
    f"{NAMESPACE}.attention_blocks_backward": _attention_gradients,
    f"{NAMESPACE}.linear_cross_entropy_backward": _cross_entropy_gradients,
    "flash_attn._flash_attn_backward": _flash_gradients,
    "flex_attention_backward": _flex_gradients,
}


# Dtypes.


def _rounds_float32(products: str) -> bool:
    """Whether tensor cores may round the operands of float32 products. Convolutions have their own switch."""
    switch = torch.backends.cudnn if "convolution" in products else torch.backends.cuda.matmul
    try:
        return bool(switch.allow_tf32)
    except RuntimeError:  # set by the newer switches
        return getattr(switch, "fp32_precision", "") == "tf32"


def _dtype_of_operands(tensors: tuple[Tensor, ...], result: Any, products: str) -> str:
    """Return the dtype of the first floating operand; "tensorfloat32" if the device rounds float32 products.

    Args:
        tensors: The operands.
        result: The result, for an operator without floating operands.
        products: The name of an operator that computes products; "" for another operator.
    """
    every = (*tensors, *tensors_in(result))
    first = next((t for t in every if t.is_floating_point() or t.is_complex()), every[0] if every else None)
    if first is None:
        return ""
    if products and first.is_cuda and first.dtype is torch.float32 and _rounds_float32(products):
        return "tensorfloat32"
    return str(first.dtype).removeprefix("torch.")
