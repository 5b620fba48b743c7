"""Liger's modules in the example models, as its users put them in. It knows liger-kernel 0.8 and examples/, no more.

Where Liger has nothing for a layer it stays: attention; GPT-2's and BERT's MLPs.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.kernels.packages import Unavailable, load_module
from examples import bert, gpt, llama


def missing(device: torch.device) -> str:
    """Why Liger cannot be tried, as a sentence; "" where it can."""
    if device.type != "cuda":
        return "Liger's kernels run on GPUs."
    try:
        load_module("liger_kernel.transformers")
    except Unavailable as why:
        return str(why)
    return ""


def with_liger(model: nn.Module) -> None:
    """Put Liger's norms and SwiGLU in place of the model's, keeping its parameters."""
    modules: Any = load_module("liger_kernel.transformers")
    functions: Any = load_module("liger_kernel.ops.swiglu")
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (norm := _norm(child, modules)) is not None:
                setattr(parent, name, norm)
            elif isinstance(child, llama.FeedForward):
                child.forward = MethodType(_gated(functions.LigerSiLUMulFunction), child)  # type: ignore[method-assign]


def _norm(child: nn.Module, modules: Any) -> nn.Module | None:
    """Liger's norm with the child's parameters. It must not write into gradients: in_place is off."""
    made: nn.Module
    if isinstance(child, llama.RMSNorm):
        made = modules.LigerRMSNorm(child.weight.shape[0], child.eps, in_place=False)
    elif isinstance(child, gpt.LayerNorm | bert.LayerNorm):
        made = modules.LigerLayerNorm(child.weight.shape[0], getattr(child, "eps", 1e-12))
        made.bias = child.bias
    else:
        return None
    made.weight = child.weight
    return made


def _gated(function: Any) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.w2(function.apply(self.w1(x), self.w3(x)))  # type: ignore[no-any-return]

    return forward
