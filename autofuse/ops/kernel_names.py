"""What runs each operation, by name, for reports. Knows names; who takes a call is the operation's own choice."""

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
        "gelu_tanh": "torch gelu",
        "activation": "torch activation",
        "bias_gelu": "torch add, gelu",
        "gated_mlp": "torch linear, activation, mul",
        "gated_activation": "torch activation, mul",
        "gated_product": "torch activation, mul",
        "glu": "torch glu",
        "expert_linear": "torch linear, for each expert",
        "grouped_linear": "torch mm, for each expert's rows",
        "mlp": "torch linear, activation, linear",
        "cross_entropy": "torch cross_entropy",
        "log_likelihood": "torch cross_entropy, neg",
        "nll": "torch cross_entropy",
        "rows": "torch reshape",
        "linear_cross_entropy": "torch linear and cross entropy, in blocks of rows",
    }
)


_NOT_FOR_KERNELS = frozenset({"kept", "lookup", "count", "of_probabilities", "repeats"})


def kernel_of(operation: str, *args: Any, **kwargs: Any) -> str:
    """What runs `autofuse.ops.<operation>`, for reports: "torch scaled_dot_product_attention", "compiled rms_norm".

    For a call with these arguments, fakes of which do as well; without any, torch's code. Raises ValueError for a name
    that is no operation.
    """
    kernel = _KERNELS.get(operation)
    if kernel is None:
        raise ValueError(f"autofuse.ops has no operation called {operation!r}. It has {', '.join(sorted(_KERNELS))}.")
    if not args or operation not in OPERATIONS:
        return kernel
    told = {name: given for name, given in kwargs.items() if name not in _NOT_FOR_KERNELS | _not_taken(operation)}
    taker = OPERATIONS[operation].taker(*args, **told)
    return kernel if taker.name == "torch" else f"{taker.name} {operation}"


def _not_taken(operation: str) -> frozenset[str]:
    """What the public function settles before it asks a kernel."""
    return frozenset({"mask_is_causal"}) if operation in ("soft_capped_attention", "sink_attention") else frozenset()
