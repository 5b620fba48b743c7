"""Residual add (and dropout), then a norm -> one operation with one pass over memory.

A post-norm block uses only the result of the norm. A pre-norm block also uses the sum, as the residual stream, so the
operation then has two results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.rules.norm import USE_LIVE_MODEL, check_norm_arguments

from autofuse.rule import Captures, Fails, Fused, Holds, Kept, Rule, Unknown, Verdict

if TYPE_CHECKING:
    import torch.nn.functional as F
    from torch import Tensor

    from autofuse import ops


class _ResidualNorm(Rule):
    """Residual add, then a norm. The rules below fix the norm, and whether the sum is a result too."""

    benefit = 6

    @staticmethod
    def before(
        x: Tensor, residual: Tensor, shape: tuple[int, ...], eps: float, weight: Tensor | float = 1.0,
        bias: Tensor | float = 0.0, p: float = 0.0, training: bool = False, *, norm: str, prenorm: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        # A hand-written norm matches too: autofuse/canonical/recognise/statistics.py.
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
        return check_residual_and_norm(captures)


class PostNorm(_ResidualNorm):
    """Residual add, then layer norm (post-norm)."""

    code = "AF203"
    fixed: ClassVar = {"norm": "layer", "prenorm": False}
    examples = (
        Fused(
            "a post-norm block: dropout, residual add, norm",
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
            "the norm is over two dimensions",
            """
                import torch.nn.functional as F

                def block(x, y, weight, bias):
                    return F.layer_norm(x + y, (4, 8), weight, bias)
            """,
        ),
    )


class PreNorm(_ResidualNorm):
    """Residual add, then layer norm (pre-norm: the sum is used later too)."""

    code = "AF203"
    fixed: ClassVar = {"norm": "layer", "prenorm": True}
    examples = (
        Fused(
            "a pre-norm block: the sum is normalized, and is the next residual",
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
    """Residual add, then RMS norm (post-norm)."""

    code = "AF203"
    fixed: ClassVar = {"norm": "rms", "bias": 0.0, "prenorm": False}
    examples = (
        Fused(
            "the residual is added, and the sum is normalized",
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
    """Residual add, then RMS norm (pre-norm: the sum is used later too)."""

    code = "AF203"
    fixed: ClassVar = {"norm": "rms", "bias": 0.0, "prenorm": True}
    examples = (
        Fused(
            "the sum is normalized, and is the next residual",
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


def check_residual_and_norm(captures: Captures) -> Verdict | None:
    """Check that the summands are two tensors of the same shape, and that the norm is over the last dimension."""
    if not captures.written("x") or not captures.written(
        "residual"
    ):  # the program computes no sum of exactly these two
        return None
    if captures.number("x") or captures.number("residual"):
        return Fails(
            "the added value is a number, not a residual",
            advice="leave it as it is: there is no residual to fuse",
            enables=False,
        )
    if captures.rank("x") != captures.rank("residual") and None not in (captures.rank("x"), captures.rank("residual")):
        why = "the added tensor is broadcast, so it is not a residual"
        return Fails(why, advice="expand {value}, or leave it as it is", capture="residual", enables=False)
    affine = check_norm_arguments(captures)
    if isinstance(affine, Fails) or captures.literal("shape") == -1:
        return affine
    if captures.literal("shape") is not None:
        why = "the norm is over more than the last dimension"
        return Fails(why, advice="normalize over the last dimension only, if that is intended")
    if isinstance(affine, Unknown):
        return affine
    if not captures.attribute("shape"):
        why = "the text does not show whether the norm is over the last dimension only"
        return Unknown(why, advice=USE_LIVE_MODEL, capture="shape")
    return Holds("unsafe", "assumes that the norm is over the last dimension only")
