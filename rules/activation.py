"""Hand-written activations -> torch's own: one kernel instead of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Fused, Kept, Rule

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from autofuse import ops


class HandWrittenErfGelu(Rule):
    """Hand-written GELU with the error function."""

    code = "AF301"
    benefit = 3

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Other ways of writing it match too: autofuse/canonical/recognise/activations.py.
        return 0.5 * x * (1.0 + torch.erf(x * 0.7071067811865475))

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.gelu(x)

    examples = (
        Fused(
            "half of x, times one plus the error function",
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
    """Hand-written GELU with the tanh approximation."""

    code = "AF301"
    benefit = 3

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Other ways of writing it match too: autofuse/canonical/recognise/activations.py.
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3))))

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.gelu(x, approximate="tanh")

    examples = (
        Fused(
            "x is factored out of the polynomial, as in Megatron",
            before="""
                import torch

                def gelu(x):
                    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))
            """,
            after='approximate="tanh"',
        ),
        Kept(
            "the factor inside tanh is another number",
            """
                import torch

                def almost(x):
                    return 0.5 * x * (1.0 + torch.tanh(0.5 * (x + 0.044715 * torch.pow(x, 3))))
            """,
        ),
    )


class HandWrittenSilu(Rule):
    """Hand-written SiLU."""

    code = "AF302"
    benefit = 2

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Other ways of writing it match too: autofuse/canonical/recognise/activations.py.
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
            "quick GELU scales x inside the sigmoid",
            """
                import torch

                def quick_gelu(x):
                    return x * torch.sigmoid(1.702 * x)
            """,
        ),
    )


class HandWrittenMish(Rule):
    """Hand-written Mish."""

    code = "AF305"
    benefit = 2

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Other ways of writing it match too: autofuse/canonical/recognise/activations.py.
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.mish(x)

    examples = (
        Fused(
            "x times tanh of its softplus",
            before="""
                import torch
                import torch.nn.functional as F

                def mish(x):
                    return x * torch.tanh(F.softplus(x))
            """,
            after="F.mish(",
        ),
        Kept(
            "the softplus has another beta",
            """
                import torch
                import torch.nn.functional as F

                def sharper(x):
                    return x * torch.tanh(F.softplus(x, beta=2))
            """,
        ),
    )


class HandWrittenHardswish(Rule):
    """Hand-written hard swish."""

    code = "AF306"
    benefit = 2

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Other ways of writing it match too: autofuse/canonical/recognise/activations.py.
        return x * F.relu6(x + 3) / 6

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.hardswish(x)

    examples = (
        Fused(
            "x times relu6(x + 3) / 6",
            before="""
                import torch.nn.functional as F

                def hard_swish(x):
                    return x * F.relu6(x + 3.0) / 6.0
            """,
            after="F.hardswish(",
        ),
        Kept(
            "the bounds of the clamp are other numbers",
            """
                import torch.nn.functional as F

                def half_as_wide(x):
                    return x * (x + 3.0).clamp(0, 3) / 6.0
            """,
        ),
    )
