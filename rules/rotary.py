"""Rotary position embeddings spelled out -> one operation: the rotated copy of the input is never written to memory.

By Su et al., arXiv:2104.09864; in halves as GPT-NeoX and Llama of HuggingFace have them, in neighbouring pairs as
RoFormer and GPT-J do, which Llama of Meta writes as a product of complex numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Fused, Kept, Rule

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from autofuse import ops


class RotaryOfHalves(Rule):
    """A rotary embedding that rotates half against half."""

    code = "AF401"
    benefit = 4
    promotes = True

    @staticmethod
    def before(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # Every way of turning the pairs is read as one: autofuse/canonical/recognise/rotary.py.
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    @staticmethod
    def after(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return ops.rotary(x, cos, sin)

    examples = (
        Fused(
            "a helper rotates, as in most models",
            before="""
                import torch

                def rotate_half(x):
                    x1 = x[..., : x.shape[-1] // 2]
                    x2 = x[..., x.shape[-1] // 2 :]
                    return torch.cat((-x2, x1), dim=-1)

                def apply_rotary_pos_emb(q, k, cos, sin):
                    q_embed = (q * cos) + (rotate_half(q) * sin)
                    k_embed = (k * cos) + (rotate_half(k) * sin)
                    return q_embed, k_embed
            """,
            after="rotary(q, cos, sin)",
        ),
        Fused(
            "half against half, with one angle for each pair",
            before="""
                import torch

                def rotate(x, cos, sin):
                    x1, x2 = x.chunk(2, dim=-1)
                    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
            """,
            after="rotary(x, cos, sin)",
        ),
        Kept(
            "neither half is negated, so nothing is rotated",
            """
                import torch

                def swapped(x, cos, sin):
                    x1, x2 = x.chunk(2, dim=-1)
                    return x * cos + torch.cat((x2, x1), dim=-1) * sin
            """,
        ),
        Kept(
            "the two halves are turned by different angles, in different directions",
            """
                import torch

                def sheared(x, cos, sin):
                    x1, x2 = x.chunk(2, dim=-1)
                    return torch.cat((x1 * cos + x2 * sin, x2 * cos + x1 * sin), dim=-1)
            """,
        ),
    )


class RotaryOfPairs(Rule):
    """A rotary embedding that rotates neighbouring entries against each other."""

    code = "AF402"
    benefit = 4
    promotes = True

    @staticmethod
    def before(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # Every way of turning the pairs is read as one: autofuse/canonical/recognise/rotary.py.
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return x * cos + rotated * sin

    @staticmethod
    def after(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return ops.rotary(x, cos, sin, interleaved=True)

    examples = (
        Fused(
            "every second entry, negated, beside its neighbour",
            before="""
                import torch

                def rotate(x, cos, sin):
                    x1, x2 = x[..., ::2], x[..., 1::2]
                    return x * cos + torch.stack((-x2, x1), dim=-1).reshape_as(x) * sin
            """,
            after="rotary(x, cos, sin, interleaved=True)",
        ),
        Fused(
            "pairs as complex numbers",
            before="""
                import torch

                def rotate(x, freqs_cis):
                    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
                    return torch.view_as_real(pairs * freqs_cis).flatten(-2).type_as(x)
            """,
            after="rotary(x.float(), freqs_cis.real, freqs_cis.imag, interleaved=True)",
        ),
        Kept(
            "pairs are rotated, and then laid out as halves",
            """
                import torch

                def rotate(x, cos, sin):
                    x1, x2 = x[..., ::2], x[..., 1::2]
                    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
            """,
        ),
    )
