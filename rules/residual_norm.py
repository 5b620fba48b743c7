"""Residual add (+ dropout) + norm -> one operation that goes through memory once.

Post-norm needs only what is normed; pre-norm carries the sum on as the residual stream, so the rule has two results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.rules.norm import ASK_THE_TENSORS, of_the_last_dimension

from autofuse.rule import Captures, Fails, Fused, Holds, Kept, Rule, Unknown, Verdict

if TYPE_CHECKING:
    import torch.nn.functional as F
    from torch import Tensor

    from autofuse import ops


class _ResidualNorm(Rule):
    """Residual add, then a norm: which, and whether the sum lives on, is what the rules below fix."""

    benefit = 6

    @staticmethod
    def before(
        x: Tensor, residual: Tensor, shape: tuple[int, ...], eps: float, weight: Tensor | float = 1.0,
        bias: Tensor | float = 0.0, p: float = 0.0, training: bool = False, *, norm: str, prenorm: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        # A norm by hand matches as torch's own does: autofuse/canonical/recognise/statistics.py.
        total = residual + F.dropout(x, p, training)
        normed = F.layer_norm(total, shape, None, None, eps) if norm == "layer" else F.rms_norm(total, shape, None, eps)
        result = normed * weight + bias
        return (total, result) if prenorm else result

    @staticmethod
    def after(
        x: Tensor, residual: Tensor, shape: tuple[int, ...], eps: float, weight: Tensor, bias: Tensor | float = 0.0,
        p: float = 0.0, training: bool = False, *, norm: str, prenorm: Any = False,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        return ops.dropout_add_norm(
            x, residual, weight, bias, eps=eps, dropout_p=p, training=training, norm=norm, prenorm=prenorm
        )

    @staticmethod
    def where(captures: Captures) -> Verdict | None:
        return two_tensors_and_a_norm(captures)


class PostNorm(_ResidualNorm):
    """Residual add, then layer norm."""

    code = "AF203"
    fixed: ClassVar = {"norm": "layer", "prenorm": False}
    examples = (
        Fused(
            "a post-norm block adds the residual to what the sublayer's dropout leaves",
            before="""
                from torch import nn

                class Block(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.dense = nn.Linear(dim, dim)
                        self.drop = nn.Dropout(0.1)
                        self.norm = nn.LayerNorm(dim)

                    def forward(self, x):
                        return self.norm(x + self.drop(self.dense(x)))
            """,
        ),
        Kept(
            "the norm runs over two dimensions",
            """
                import torch.nn.functional as F

                def block(x, y, weight, bias):
                    return F.layer_norm(x + y, (4, 8), weight, bias)
            """,
        ),
    )


class PreNorm(_ResidualNorm):
    """Residual add, then layer norm; the sum lives on."""

    code = "AF203"
    fixed: ClassVar = {"norm": "layer", "prenorm": True}
    examples = (
        Fused(
            "a pre-norm block norms the sum and carries it on",
            before="""
                from torch import nn

                class Block(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.attend = nn.Linear(dim, dim)
                        self.norm = nn.LayerNorm(dim)
                        self.mlp = nn.Linear(dim, dim)

                    def forward(self, x):
                        x = x + self.attend(x)
                        return x + self.mlp(self.norm(x))
            """,
        ),
    )


class PostRmsNorm(_ResidualNorm):
    """Residual add, then RMS norm."""

    code = "AF203"
    fixed: ClassVar = {"norm": "rms", "bias": 0.0, "prenorm": False}
    examples = (
        Fused(
            "the residual is added and RMS normed",
            before="""
                from torch import nn

                class Block(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.dense = nn.Linear(dim, dim)
                        self.norm = nn.RMSNorm(dim, eps=1e-6)

                    def forward(self, x):
                        return self.norm(self.dense(x) + x)
            """,
        ),
    )


class PreRmsNorm(_ResidualNorm):
    """Residual add, then RMS norm; the sum lives on."""

    code = "AF203"
    fixed: ClassVar = {"norm": "rms", "bias": 0.0, "prenorm": True}
    examples = (
        Fused(
            "the sum is RMS normed and carried on",
            before="""
                from torch import nn

                class Block(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.attend = nn.Linear(dim, dim)
                        self.norm = nn.RMSNorm(dim, eps=1e-6)
                        self.mlp = nn.Linear(dim, dim)

                    def forward(self, x):
                        x = x + self.attend(x)
                        return x + self.mlp(self.norm(x))
            """,
        ),
    )


def two_tensors_and_a_norm(captures: Captures) -> Verdict | None:
    """Both sides of the sum are tensors of one shape; the norm runs over the last dimension."""
    if not captures.written("x") or not captures.written("residual"):  # a sum of many is not split anywhere
        return None
    if captures.number("x") or captures.number("residual"):
        return Fails(
            "a number is added, not a residual", advice="leave it as it is; there is no residual to fuse", enables=False
        )
    if captures.rank("x") != captures.rank("residual") and None not in (captures.rank("x"), captures.rank("residual")):
        why = "what is added is broadcast, so it is no residual"
        return Fails(why, advice="expand {value}, or leave it as it is", capture="residual", enables=False)
    affine = of_the_last_dimension(captures)
    if isinstance(affine, Fails) or captures.literal("shape") == -1:
        return affine
    if captures.literal("shape") is not None:
        why = "the norm runs over more than the last dimension"
        return Fails(why, advice="norm over the last dimension alone, if that is what is meant")
    if not captures.attribute("shape"):
        why = "whether the norm runs over the last dimension alone cannot be read from the text"
        return Unknown(why, advice=ASK_THE_TENSORS, capture="shape")
    return Holds("unsafe", "assumes that the norm runs over the last dimension alone")
