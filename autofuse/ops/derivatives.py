"""Derivatives that fused attention kernels do not have: forward mode, and derivatives of gradients.

Hand-written code has both, so an operation that replaces it must have them. Attention then uses torch's unfused
formula. If the need is known when the operation runs (forward mode, nested transforms of torch.func), the formula runs
at once. Otherwise it runs in a backward pass that builds a graph of itself (a gradient penalty, MAML).
"""

from __future__ import annotations

from typing import Any

import torch
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
from autofuse.torch_private import functional as F

_KERNELS = "ScaledDotProduct"  # the beginning of the names of all fused kernels' autograd nodes


def needs_unfused_formula(*operands: Tensor) -> bool:
    """Whether something is requested that fused kernels do not have: forward mode, nested gradients, vmap on a CPU."""
    if forward_ad._current_level >= 0:
        return True
    if torch.compiler.is_compiling() or peek_interpreter_stack() is None:
        return False
    stack = get_interpreter_stack() or ()
    gradients = [i for i in stack if is_gradient_interpreter(i)]
    if len(gradients) < len(stack) and operands[0].is_cpu:
        return True  # for this kernel, torch's vmap has no rule: it would run it once for each entry, with a warning
    return len(gradients) > 1 or bool(gradients) and any(map(_is_tracked_outside, operands))


def _is_tracked_outside(x: Tensor) -> bool:
    """Whether a tensor inside torch.func.grad is also part of a graph around it."""
    return bool(is_gradtrackingtensor(x)) and bool(get_unwrapped(x).requires_grad)


def unfused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float | None
) -> Tensor:
    """scaled_dot_product_attention with torch's unfused formula, which has every derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(
            query, key, value, mask, p, is_causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )


def differentiable_twice(result: Tensor) -> Tensor:
    """`result` of a kernel, with a hook: a backward pass that builds a graph uses the unfused formula."""
    if torch.compiler.is_compiling():
        return result
    node = result.grad_fn
    if node is not None and type(node).__name__.startswith(_KERNELS) and peek_interpreter_stack() is None:
        node.register_hook(_differentiable_gradients)
    return result


def _differentiable_gradients(gradients: tuple[Tensor | None, ...], grad_outputs: tuple[Tensor | None, ...]) -> Any:
    """Hook of the kernel's node: replaces the gradients of query, key and value by differentiable ones.

    Returns None, which keeps the kernel's gradients, if no graph is built.
    """
    if not torch.is_grad_enabled() or grad_outputs[0] is None:
        return None
    node: Any = current_autograd_node()
    if node is None or getattr(node, "_saved_dropout_p", False):
        return None  # only the kernel knows which weights were dropped
    try:
        saved = (node._saved_query, node._saved_key, node._saved_value)
    except CheckpointError:
        return None  # non-reentrant checkpointing unpacks each saved tensor once, and the kernel has already done so
    operands = query, key, value = tuple(
        x.view_as(x) for x in saved
    )  # one tensor may be query, key and value; each needs its own gradient
    mask = getattr(node, "_saved_attn_mask", getattr(node, "_saved_attn_bias", None))
    result = unfused_attention(query, key, value, mask, 0.0, node._saved_is_causal, node._saved_scale)
    needed = [i for i, gradient in enumerate(gradients[:3]) if gradient is not None and operands[i].requires_grad]
    differentiable = torch.autograd.grad(result, [operands[i] for i in needed], grad_outputs[0], create_graph=True)
    replacements = dict(zip(needed, differentiable, strict=True))
    return tuple(replacements.get(i, gradient) for i, gradient in enumerate(gradients))
