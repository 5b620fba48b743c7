"""Activations spelled out -> torch's own: one kernel instead of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Fused, Kept, Rule

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from autofuse import ops


class HandWrittenErfGelu(Rule):
    """GELU by the error function, spelled out."""

    code = "AF301"
    benefit = 3

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Every way of writing it is read as one: autofuse/canonical/recognise/activations.py.
        return 0.5 * x * (1.0 + torch.erf(x * 0.7071067811865475))

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.gelu(x)

    examples = (
        Fused(
            "half of x times one plus the error function",
            before="""
                import math
                import torch

                def gelu(x):
                    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
            """,
            after="F.gelu(",
        ),
    )


class HandWrittenTanhGelu(Rule):
    """GELU by its tanh approximation, spelled out."""

    code = "AF301"
    benefit = 3

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Every way of writing it is read as one: autofuse/canonical/recognise/activations.py.
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3))))

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.gelu(x, approximate="tanh")

    examples = (
        Fused(
            "the cube is taken out as a factor, as Megatron does",
            before="""
                import torch

                def gelu(x):
                    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))
            """,
            after='approximate="tanh"',
        ),
        Kept(
            "the factor inside is another one",
            """
                import torch

                def almost(x):
                    return 0.5 * x * (1.0 + torch.tanh(0.5 * (x + 0.044715 * torch.pow(x, 3))))
            """,
        ),
    )


class HandWrittenSilu(Rule):
    """SiLU spelled out."""

    code = "AF302"
    benefit = 2

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Every way of writing it is read as one: autofuse/canonical/recognise/activations.py.
        return x * torch.sigmoid(x)

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.silu(x)

    examples = (
        Fused(
            "x times its sigmoid",
            before="""
                import torch

                def swish(x):
                    return torch.sigmoid(x) * x
            """,
            after="F.silu(",
        ),
        Kept(
            "quick GELU scales inside the sigmoid",
            """
                import torch

                def quick_gelu(x):
                    return x * torch.sigmoid(1.702 * x)
            """,
        ),
    )


class HandWrittenMish(Rule):
    """Mish spelled out."""

    code = "AF305"
    benefit = 2

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Every way of writing it is read as one: autofuse/canonical/recognise/activations.py.
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.mish(x)

    examples = (
        Fused(
            "x times the hyperbolic tangent of its softplus",
            before="""
                import torch
                import torch.nn.functional as F

                def mish(x):
                    return x * torch.tanh(F.softplus(x))
            """,
            after="F.mish(",
        ),
        Kept(
            "the softplus is a sharper one",
            """
                import torch
                import torch.nn.functional as F

                def sharper(x):
                    return x * torch.tanh(F.softplus(x, beta=2))
            """,
        ),
    )


class HandWrittenHardswish(Rule):
    """Hard swish spelled out."""

    code = "AF306"
    benefit = 2

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Every way of writing it is read as one: autofuse/canonical/recognise/activations.py.
        return x * F.relu6(x + 3) / 6

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.hardswish(x)

    examples = (
        Fused(
            "x times a sixth of what lies between 0 and 6 of x + 3",
            before="""
                import torch.nn.functional as F

                def hard_swish(x):
                    return x * F.relu6(x + 3.0) / 6.0
            """,
            after="F.hardswish(",
        ),
        Kept(
            "the bounds are others",
            """
                import torch.nn.functional as F

                def half_as_wide(x):
                    return x * (x + 3.0).clamp(0, 3) / 6.0
            """,
        ),
    )
