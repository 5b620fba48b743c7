"""Layer and RMS normalisation spelled out -> torch's own: one pass over the input instead of seven."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Captures, Fails, Fused, Holds, Kept, Rule, Unknown, Verdict

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from autofuse import ops


class HandWrittenLayerNorm(Rule):
    """Layer normalisation spelled out."""

    code = "AF201"
    benefit = 5
    core = "layer_norm"

    @staticmethod
    def before(x: Tensor, eps: float, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
        # Matches whatever computes these statistics: autofuse/canonical/recognise/statistics.py.
        centred = x - x.mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        return normed * weight + bias

    @staticmethod
    def after(x: Tensor, eps: float, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.layer_norm(x, weight=weight, bias=bias, eps=eps)

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return of_the_last_dimension(captures)

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
            "the standard deviation is unbiased and eps stands outside the root",
            """
                import torch

                def norm(x, weight, bias):
                    return weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + bias
            """,
        ),
    )


class HandWrittenRmsNorm(Rule):
    """Root-mean-square normalisation spelled out."""

    code = "AF202"
    benefit = 4
    core = "rms_norm"

    @staticmethod
    def before(x: Tensor, eps: float, weight: Tensor | float = 1.0) -> Tensor:
        # Matches whatever computes these statistics: autofuse/canonical/recognise/statistics.py.
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def after(x: Tensor, eps: float, weight: Tensor) -> Tensor:
        return ops.rms_norm(x, weight=weight, eps=eps)

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return of_the_last_dimension(captures)

    examples = (
        Fused(
            "computed in float32 and cast back before the weight",
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
            "the mean runs over the first dimension",
            """
                import torch

                def norm(x, weight):
                    return x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * weight
            """,
        ),
    )


ASK_THE_TENSORS = "fuse the live model with `autofuse.optimize`, which sees the tensors"


def of_the_last_dimension(captures: Captures) -> Verdict:
    """torch's norms take a weight and a bias of the last dimension's shape, and a number for eps."""
    if captures.number("eps") is False and not captures.absent("eps"):  # torch's RMS norm takes None for its own
        return Fails("eps is a tensor; torch's norms take a number", advice="make {value} a number", capture="eps")
    for name in ("weight", "bias"):
        if captures.absent(name) or captures.rank(name) == 1:
            continue
        if captures.rank(name) is not None or captures.number(name):
            why, advice = f"the {name} does not have the shape of the last dimension", "apply {value} after the norm"
            return Fails(why, advice=advice, capture=name)
        if not captures.attribute(name):
            why = f"whether the {name} has the shape of the last dimension cannot be read from the text"
            return Unknown(why, advice=ASK_THE_TENSORS, capture=name)
        return Holds("unsafe", f"assumes that the {name} has the shape of the last dimension")
    if captures.number("eps") is None:
        return Holds("unsafe", "assumes that eps is a number")
    return Holds()
