"""Derivatives that the fused attention kernels do not have: forward mode, and the derivative of a gradient.

Code that is spelled out has both, so an operation that stands for it has to. Where either is asked for, attention is
computed by torch's unfused formula: at once if that is known when the operation runs (forward mode, nested
transforms of torch.func), else in the backward pass that builds a graph of itself (a gradient penalty, MAML).
Knows attention's kernels and how torch keeps what they save; must not know masks or layouts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointError

from autofuse.torch_private import (
    current_autograd_node,
    forward_ad,
    get_interpreter_stack,
    get_unwrapped,
    is_gradient_interpreter,
    is_gradtrackingtensor,
    peek_interpreter_stack,
)

_KERNELS = "ScaledDotProduct"  # how the graph's nodes of all fused kernels are called


def beyond_kernels(*operands: Tensor) -> bool:
    """Whether derivatives of what is computed from `operands` are known to be asked for that no kernel has."""
    if forward_ad._current_level >= 0:
        return True
    if torch.compiler.is_compiling() or peek_interpreter_stack() is None:
        return False
    gradients = [i for i in get_interpreter_stack() if is_gradient_interpreter(i)]
    return len(gradients) > 1 or bool(gradients) and any(map(_is_tracked_outside, operands))


def _is_tracked_outside(x: Tensor) -> bool:
    """Whether a tensor inside of torch.func.grad is also part of a graph around it."""
    return bool(is_gradtrackingtensor(x)) and bool(get_unwrapped(x).requires_grad)


def unfused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float | None
) -> Tensor:
    """scaled_dot_product_attention by torch's unfused formula, which has every derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(
            query, key, value, mask, p, is_causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )


def differentiable_twice(result: Tensor) -> Tensor:
    """`result` of a kernel; a backward pass through it that builds a graph takes the unfused formula."""
    if torch.compiler.is_compiling():
        return result
    node = result.grad_fn
    if node is not None and type(node).__name__.startswith(_KERNELS) and peek_interpreter_stack() is None:
        node.register_hook(_with_a_graph)
    return result


def _with_a_graph(found: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]) -> Any:
    """The gradients of query, key and value as functions that have derivatives; the kernel's where none are asked."""
    if not torch.is_grad_enabled() or given[0] is None:
        return None
    node: Any = current_autograd_node()
    if node is None or getattr(node, "_saved_dropout_p", False):
        return None  # which weights were dropped, only the kernel knows
    try:
        saved = (node._saved_query, node._saved_key, node._saved_value)
    except CheckpointError:
        return None  # checkpointing without reentry gives each tensor out once, and the kernel has had them
    operands = query, key, value = tuple(x.view_as(x) for x in saved)  # the same tensor may be all three
    mask = getattr(node, "_saved_attn_mask", getattr(node, "_saved_attn_bias", None))
    result = unfused(query, key, value, mask, 0.0, node._saved_is_causal, node._saved_scale)
    wanted = [i for i, gradient in enumerate(found[:3]) if gradient is not None and operands[i].requires_grad]
    made = torch.autograd.grad(result, [operands[i] for i in wanted], given[0], create_graph=True)
    replaced = dict(zip(wanted, made, strict=True))
    return tuple(replaced.get(i, gradient) for i, gradient in enumerate(found))
