"""Liger's modules in the example models, as its users insert them. For liger-kernel 0.8 and the models of examples/.

Layers for which Liger has nothing stay: attention, and the MLPs of GPT-2 and BERT.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.kernels.packages import Unavailable, load_module
from examples import bert, gpt, llama


def missing(device: torch.device) -> str:
    """The reason why Liger is not usable, as a sentence; "" if it is."""
    if device.type != "cuda":
        return "Liger's kernels run on GPUs."
    try:
        load_module("liger_kernel.transformers")
    except Unavailable as why:
        return str(why)
    return ""


def with_liger(model: nn.Module) -> None:
    """Replaces the model's norms and SwiGLU by Liger's, with the same parameters."""
    modules: Any = load_module("liger_kernel.transformers")
    functions: Any = load_module("liger_kernel.ops.swiglu")
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (norm := _norm(child, modules)) is not None:
                setattr(parent, name, norm)
            elif isinstance(child, llama.FeedForward):
                child.forward = MethodType(_gated_forward(functions.LigerSiLUMulFunction), child)  # type: ignore[method-assign]


def _norm(child: nn.Module, modules: Any) -> nn.Module | None:
    """Liger's norm with the child's parameters. in_place is off, because it would overwrite gradients."""
    norm_or_none: nn.Module
    if isinstance(child, llama.RMSNorm):
        norm_or_none = modules.LigerRMSNorm(child.weight.shape[0], child.eps, in_place=False)
    elif isinstance(child, gpt.LayerNorm | bert.LayerNorm):
        norm_or_none = modules.LigerLayerNorm(child.weight.shape[0], getattr(child, "eps", 1e-12))
        norm_or_none.bias = child.bias
    else:
        return None
    norm_or_none.weight = child.weight
    return norm_or_none


def _gated_forward(function: Any) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.w2(function.apply(self.w1(x), self.w3(x)))  # type: ignore[no-any-return]

    return forward
