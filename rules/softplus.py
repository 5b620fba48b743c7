"""Hand-written softplus -> torch's own, which does not overflow.

exp(x) is infinite above 88 in float32 and bfloat16, and above 11 in float16. There, hand-written softplus without a
threshold is infinite too, and torch's softplus is x. Few programs need infinity, but it is another result, so such
an edit is unsafe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Captures, Fused, Holds, Kept, Rule, Unknown, Verdict

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from autofuse import ops

_FLOAT16 = 11.0  # exp(x) is infinite in float16 for a larger x
_FLOAT32 = 88.0  # exp(x) is infinite in float32 and bfloat16 for a larger x


class HandWrittenSoftplus(Rule):
    """Hand-written softplus."""

    code = "AF308"
    benefit = 2
    fallback = True  # hand-written Mish contains it, and so does the form with a threshold

    @staticmethod
    def before(x: Tensor) -> Tensor:
        return torch.log(1.0 + torch.exp(x))

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.softplus(x)

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return Holds("unsafe", "where exp(x) overflows, this code returns infinity, and torch's softplus returns x")

    examples = (
        Fused(
            "the logarithm of one plus the exponential",
            before="""
                import torch

                def softplus(x):
                    return torch.log(1 + torch.exp(x))
            """,
            after="F.softplus(x)",
        ),
        Fused(
            "log1p, which is more accurate",
            before="""
                import torch

                def softplus(x):
                    return torch.log1p(x.exp())
            """,
            after="F.softplus(x)",
        ),
        Kept(
            "two is added instead of one",
            """
                import torch

                def shifted(x):
                    return torch.log(2 + torch.exp(x))
            """,
        ),
    )


class ThresholdedSoftplus(Rule):
    """Hand-written softplus with a threshold, above which it returns x."""

    code = "AF308"
    benefit = 3

    @staticmethod
    def before(x: Tensor, threshold: float) -> Tensor:
        return torch.where(x > threshold, x, torch.log(1.0 + torch.exp(x)))

    @staticmethod
    def after(x: Tensor, threshold: float) -> Tensor:
        return ops.softplus(x, threshold=threshold)

    @staticmethod
    def where(captures: Captures) -> Verdict | None:
        threshold = captures.literal("threshold")
        if not isinstance(threshold, (int, float)):
            known = captures.number("threshold")
            if known is None:
                return Unknown(
                    "torch's softplus takes a number as threshold, and the text does not show that this is one"
                )
            return Holds("unsafe", "assumes that exp of the threshold is finite") if known else None
        if threshold <= _FLOAT16:
            return Holds()
        if threshold <= _FLOAT32:
            return Holds("unsafe", "in float16, exp overflows below the threshold, and torch's softplus does not")
        return Holds("unsafe", "below the threshold exp overflows, and torch's softplus does not")

    examples = (
        Fused(
            "torch's own threshold",
            before="""
                import torch

                def softplus(x):
                    return torch.where(x > 20, x, torch.log1p(torch.exp(x)))
            """,
            after="F.softplus(x)",
        ),
        Fused(
            "a threshold below which exp is finite in every dtype",
            before="""
                import torch

                def softplus(x):
                    return torch.where(x > 10.0, x, torch.log(1.0 + torch.exp(x)))
            """,
            after="threshold=10.0",
        ),
        Kept(
            "above the threshold it returns another value than x",
            """
                import torch

                def shifted(x, y):
                    return torch.where(x > 20, y, torch.log1p(torch.exp(x)))
            """,
        ),
    )
