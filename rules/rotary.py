"""Hand-written rotary position embeddings -> one operation, which never writes the rotated copy of the input to memory.

Rotary embeddings are by Su et al., arXiv:2104.09864. GPT-NeoX and Hugging Face's Llama rotate the two halves against
each other. RoFormer and GPT-J rotate neighbouring pairs, which Meta's Llama writes as a product of complex numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Fused, Kept, Rule

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from autofuse import ops


class RotaryOfHalves(Rule):
    """Hand-written rotary embedding that rotates the two halves."""

    code = "AF401"
    benefit = 4
    promotes = True

    @staticmethod
    def before(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # Other ways of rotating match too: autofuse/canonical/recognise/rotary.py.
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    @staticmethod
    def after(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return ops.rotary(x, cos, sin)

    examples = (
        Fused(
            "a helper function rotates the halves, as in most models",
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
            "the halves are rotated with one angle for each pair",
            before="""
                import torch

                def rotate(x, cos, sin):
                    x1, x2 = x.chunk(2, dim=-1)
                    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
            """,
            after="rotary(x, cos, sin)",
        ),
        Kept(
            "neither half is negated, so this is not a rotation",
            """
                import torch

                def swapped(x, cos, sin):
                    x1, x2 = x.chunk(2, dim=-1)
                    return x * cos + torch.cat((x2, x1), dim=-1) * sin
            """,
        ),
        Kept(
            "both halves have the same sign for sin, so this is not a rotation",
            """
                import torch

                def sheared(x, cos, sin):
                    x1, x2 = x.chunk(2, dim=-1)
                    return torch.cat((x1 * cos + x2 * sin, x2 * cos + x1 * sin), dim=-1)
            """,
        ),
    )


class RotaryOfPairs(Rule):
    """Hand-written rotary embedding that rotates neighbouring pairs."""

    code = "AF402"
    benefit = 4
    promotes = True

    @staticmethod
    def before(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # Other ways of rotating match too: autofuse/canonical/recognise/rotary.py.
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return x * cos + rotated * sin

    @staticmethod
    def after(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return ops.rotary(x, cos, sin, interleaved=True)

    examples = (
        Fused(
            "every second entry is negated and exchanged with its neighbour",
            before="""
                import torch

                def rotate(x, cos, sin):
                    x1, x2 = x[..., ::2], x[..., 1::2]
                    return x * cos + torch.stack((-x2, x1), dim=-1).reshape_as(x) * sin
            """,
            after="rotary(x, cos, sin, interleaved=True)",
        ),
        Fused(
            "the pairs are complex numbers",
            before="""
                import torch

                def rotate(x, freqs_cis):
                    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
                    return torch.view_as_real(pairs * freqs_cis).flatten(-2).type_as(x)
            """,
            after="rotary(x.float(), freqs_cis.real, freqs_cis.imag, interleaved=True)",
        ),
        Kept(
            "pairs are rotated, but the result is ordered as halves",
            """
                import torch

                def rotate(x, cos, sin):
                    x1, x2 = x[..., ::2], x[..., 1::2]
                    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
            """,
        ),
    )
