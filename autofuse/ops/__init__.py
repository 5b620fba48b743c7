"""The operations that rewritten code calls: plain functions of tensors.

Each operation has several providers and chooses one at run time (autofuse/kernels/operation.py).
`autofuse.ops.reference` has a plain formula with the same signature for each. This folder does not depend on rules: an
operation does not know which rule inserted it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from autofuse.results.distribution import unsupported_torch

if _problem := unsupported_torch():
    raise ImportError(_problem)

from autofuse.kernels import package_providers as others
from autofuse.ops.activations import FUNCTIONS, activation
from autofuse.ops.adamw import adamw
from autofuse.ops.attention import attention
from autofuse.ops.bias_gelu import bias_gelu
from autofuse.ops.cross_entropy import cross_entropy, nll, rows
from autofuse.ops.dropout_add_norm import dropout_add_norm
from autofuse.ops.experts import expert_linear, grouped_linear
from autofuse.ops.gated import gated_activation, gated_product, glu
from autofuse.ops.gated_mlp import gated_mlp
from autofuse.ops.kernel_names import kernel_of
from autofuse.ops.layer_norm import layer_norm
from autofuse.ops.linear import linear
from autofuse.ops.linear_cross_entropy import linear_cross_entropy
from autofuse.ops.linear_distributions import (
    divergence,
    entropy,
    linear_divergence,
    linear_entropy,
    linear_logsumexp,
)
from autofuse.ops.masks import masked
from autofuse.ops.mlp import mlp
from autofuse.ops.rms_norm import rms_norm
from autofuse.ops.rotary import rotary
from autofuse.ops.rotary_pair import rotary_pair
from autofuse.ops.sink_attention import sink_attention
from autofuse.ops.soft_capped_attention import soft_capped_attention
from autofuse.ops.softmax import masked_softmax
from autofuse.ops.varlen_attention import varlen_attention

__all__ = [
    "activation",
    "adamw",
    "attention",
    "bias_gelu",
    "cross_entropy",
    "divergence",
    "dropout_add_norm",
    "entropy",
    "expert_linear",
    "gated_activation",
    "gated_mlp",
    "gated_product",
    "glu",
    "grouped_linear",
    "kernel_of",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "linear_divergence",
    "linear_entropy",
    "linear_logsumexp",
    "masked",
    "masked_softmax",
    "mlp",
    "nll",
    "rms_norm",
    "rotary",
    "rotary_pair",
    "rows",
    "sink_attention",
    "soft_capped_attention",
    "varlen_attention",
]

if TYPE_CHECKING:
    from torch import Tensor

    def __getattr__(name: str) -> Callable[..., Tensor]: ...


globals().update(FUNCTIONS)  # the functions that the files of autofuse/ops/activations/ list in `__all__`
__all__ += sorted(FUNCTIONS)
others.offer()  # adds providers from other packages to the operations that the modules above define
