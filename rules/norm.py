"""Hand-written layer norm and RMS norm -> torch's own: one pass over the input instead of seven."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Captures, Fails, Fused, Holds, Kept, Rule, Unknown, Verdict

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from autofuse import ops


class HandWrittenLayerNorm(Rule):
    """Hand-written layer norm."""

    code = "AF201"
    benefit = 5
    core = "layer_norm"

    @staticmethod
    def before(x: Tensor, eps: float, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
        # Other ways of computing these statistics match too: autofuse/canonical/recognise/statistics.py.
        centred = x - x.mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        return normed * weight + bias

    @staticmethod
    def after(x: Tensor, eps: float, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.layer_norm(x, weight=weight, bias=bias, eps=eps)

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return check_norm_arguments(captures)

    examples = (
        Fused(
            "mean and biased variance over the last dimension, then weight and bias",
            before="""
                import torch
                from torch import nn

                class Norm(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.weight = nn.Parameter(torch.ones(dim))
                        self.bias = nn.Parameter(torch.zeros(dim))

                    def forward(self, x):
                        mean = x.mean(-1, keepdim=True)
                        var = x.var(-1, unbiased=False, keepdim=True)
                        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias
            """,
            after="F.layer_norm(",
        ),
        Kept(
            "the standard deviation is unbiased, and eps is added to it and not to the variance",
            """
                import torch

                def norm(x, weight, bias):
                    return weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + bias
            """,
        ),
    )


class HandWrittenRmsNorm(Rule):
    """Hand-written RMS norm."""

    code = "AF202"
    benefit = 4
    core = "rms_norm"

    @staticmethod
    def before(x: Tensor, eps: float, weight: Tensor | float = 1.0) -> Tensor:
        # Other ways of computing these statistics match too: autofuse/canonical/recognise/statistics.py.
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def after(x: Tensor, eps: float, weight: Tensor) -> Tensor:
        return ops.rms_norm(x, weight=weight, eps=eps)

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return check_norm_arguments(captures)

    examples = (
        Fused(
            "the norm is computed in float32 and cast back before the weight is applied",
            before="""
                import torch
                from torch import nn

                class Norm(nn.Module):
                    def __init__(self, dim: int, eps: float = 1e-6):
                        super().__init__()
                        self.eps = eps
                        self.weight = nn.Parameter(torch.ones(dim))

                    def forward(self, x):
                        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
                        return normed.type_as(x) * self.weight
            """,
            after="F.rms_norm(",
        ),
        Kept(
            "the mean is over the first dimension",
            """
                import torch

                def norm(x, weight):
                    return x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * weight
            """,
        ),
    )


USE_LIVE_MODEL = "fuse the live model with `autofuse.optimize`, which sees the tensors"


def check_norm_arguments(captures: Captures) -> Verdict:
    """Check the arguments of a norm: torch's norms take a weight and bias of shape (dim,), and a number for eps."""
    if captures.number("eps") is False and not captures.absent("eps"):  # torch's RMS norm accepts eps=None
        why = "eps is a tensor, but torch's norms take a number"
        return Fails(why, advice="make {value} a number", capture="eps")
    names = [n for n in ("weight", "bias") if not captures.absent(n) and captures.rank(n) != 1]
    for name in names:
        if captures.rank(name) is not None or captures.number(name):
            why, advice = f"the {name} does not have the shape of the last dimension", "apply {value} after the norm"
            return Fails(why, advice=advice, capture=name)
    for name in names:
        if not captures.attribute(name):
            why = f"the text does not show whether the {name} has the shape of the last dimension"
            return Unknown(why, advice=USE_LIVE_MODEL, capture=name)
    if names:
        return Holds("unsafe", f"assumes that the {names[0]} has the shape of the last dimension")
    if captures.number("eps") is None:
        return Holds("unsafe", "assumes that eps is a number")
    return Holds()
