"""The name of what runs each operation, for reports."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from autofuse.kernels.operation import OPERATIONS
from autofuse.ops.activations import FUNCTIONS

_KERNELS: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"torch {name}" for name in FUNCTIONS},
        "adamw": "torch AdamW, fused",
        "attention": "torch scaled_dot_product_attention",
        "masked": "torch masked_fill or add",
        "masked_softmax": "torch add, softmax",
        "sink_attention": "torch matmul, softmax",
        "soft_capped_attention": "torch matmul, tanh, softmax",
        "varlen_attention": "torch scaled_dot_product_attention, or varlen_attn",
        "layer_norm": "torch layer_norm",
        "rms_norm": "torch rms_norm",
        "dropout_add_norm": "torch add, layer_norm or rms_norm",
        "rotary": "torch mul, addcmul, or a product of complex numbers",
        "rotary_pair": "torch mul, addcmul, for query and key",
        "gelu_tanh": "torch gelu",
        "activation": "torch activation",
        "bias_gelu": "torch add, gelu",
        "gated_mlp": "torch linear, activation, mul",
        "gated_activation": "torch activation, mul",
        "gated_product": "torch activation, mul",
        "glu": "torch glu",
        "expert_linear": "torch linear, for each expert",
        "grouped_linear": "torch mm, for each expert's rows",
        "linear": "torch linear",
        "mlp": "torch linear, activation, linear",
        "cross_entropy": "torch cross_entropy",
        "nll": "torch cross_entropy",
        "rows": "torch reshape",
        "linear_cross_entropy": "torch linear and cross entropy, in blocks of rows",
        "linear_divergence": "torch linear and log_softmax, in blocks of rows",
        "linear_entropy": "torch linear and log_softmax, in blocks of rows",
        "linear_logsumexp": "torch linear and logsumexp, in blocks of rows",
        "divergence": "torch kl_div",
        "entropy": "torch exp, mul, sum",
    }
)


_HANDLED_BY_ALL = frozenset({"kept", "lookup", "count", "of_probabilities", "repeats"})


def kernel_of(operation: str, *args: Any, **kwargs: Any) -> str:
    """The kernel that runs `autofuse.ops.<operation>`, for reports: "torch scaled_dot_product_attention".

    Args:
        operation: the name of an operation.
        *args: the arguments of a call; fake tensors are enough. Without arguments, the name of torch's code.
        **kwargs: further arguments of the call.

    Returns:
        The provider and the operation ("compiled rms_norm"), or torch's function.

    Raises:
        ValueError: if there is no such operation.
    """
    kernel = _KERNELS.get(operation)
    if kernel is None:
        raise ValueError(f"autofuse.ops has no operation called {operation!r}. It has {', '.join(sorted(_KERNELS))}.")
    if not args or operation not in OPERATIONS:
        return kernel
    options = {
        name: value for name, value in kwargs.items() if name not in _HANDLED_BY_ALL | _handled_before_choice(operation)
    }
    taker = OPERATIONS[operation].taker(*args, **options)
    return kernel if taker.name == "torch" else f"{taker.name} {operation}"


def _handled_before_choice(operation: str) -> frozenset[str]:
    """The parameters that the public function handles before it asks a kernel."""
    return frozenset({"mask_is_causal"}) if operation in ("soft_capped_attention", "sink_attention") else frozenset()
