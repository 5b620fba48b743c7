# ruff: noqa
"""Looks like a rotary position embedding, and must be left alone."""

import math

import torch
import torch.nn as nn
from einops import rearrange


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class NothingNegated(nn.Module):
    def forward(self, q, cos, sin):
        x1, x2 = q.chunk(2, dim=-1)
        return q * cos + torch.cat((x2, x1), dim=-1) * sin


class BothNegated(nn.Module):
    def forward(self, q, cos, sin):
        x1, x2 = q.chunk(2, dim=-1)
        return q * cos + torch.cat((-x2, -x1), dim=-1) * sin


class NotSwapped(nn.Module):
    def forward(self, q, cos, sin):
        x1, x2 = q.chunk(2, dim=-1)
        return q * cos + torch.cat((-x1, x2), dim=-1) * sin


class HalvesOfTheLength(nn.Module):
    """The halves are those of the positions, not of the entries."""

    arguments = {"fixed": "q_even"}

    def forward(self, fixed, cos, sin):
        x1, x2 = fixed.chunk(2, dim=-2)
        return fixed * 2.0 + torch.cat((-x2, x1), dim=-2) * 3.0


class JoinedAlongAnotherAxis(nn.Module):
    def forward(self, q, cos, sin):
        x1, x2 = q.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-2) * 2.0


class SignsOfAShear(nn.Module):
    arguments = {"cos": "cos_half", "sin": "sin_half"}

    def forward(self, q, cos, sin):
        x1, x2 = q.chunk(2, dim=-1)
        return torch.cat((x1 * cos + x2 * sin, x2 * cos + x1 * sin), dim=-1)


class BothMinus(nn.Module):
    arguments = {"cos": "cos_half", "sin": "sin_half"}

    def forward(self, q, cos, sin):
        x1, x2 = q.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos - x1 * sin), dim=-1)


class TwoAngles(nn.Module):
    """Each half is turned by angles of its own."""

    arguments = {"cos": "cos_half", "sin": "sin_half", "cos2": "cos_half", "sin2": "sin_half"}

    def forward(self, q, cos, sin, cos2, sin2):
        x1, x2 = q.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos2 + x1 * sin2), dim=-1)


class OfTwoTensors(nn.Module):
    """The rotated vector is another tensor's."""

    def forward(self, q, k, cos, sin):
        return q * cos + rotate_half(k) * sin


class HalvesOfTwoTensors(nn.Module):
    def forward(self, q, k, cos, sin):
        x1, x2 = q.chunk(2, dim=-1)[0], k.chunk(2, dim=-1)[1]
        return q * cos + torch.cat((-x2, x1), dim=-1) * sin


class UnequalParts(nn.Module):
    def forward(self, q, cos, sin):
        n = q.shape[-1] // 4
        x1, x2 = q[..., :n], q[..., n:]
        return q * cos + torch.cat((-x2, x1), dim=-1) * sin


class UnequalPartsInNumbers(nn.Module):
    def forward(self, q, cos, sin):
        x1, x2 = q[..., :3], q[..., 3:]
        return q * cos + torch.cat((-x2, x1), dim=-1) * sin


class ThreeParts(nn.Module):
    def forward(self, q, cos, sin):
        x1, x2, x3, x4 = q.chunk(4, dim=-1)
        return q * cos + torch.cat((-x2, x1, -x4, x3), dim=-1) * sin


class OverlappingHalves(nn.Module):
    def forward(self, q, cos, sin):
        d = q.shape[-1] // 2
        x1, x2 = q[..., :d], q[..., d - 1 : -1]
        return q * cos + torch.cat((-x2, x1), dim=-1) * sin


class PairsLaidOutAsHalves(nn.Module):
    arguments = {"cos": "cos_half", "sin": "sin_half"}

    def forward(self, q, cos, sin):
        x1, x2 = q[..., ::2], q[..., 1::2]
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class HalvesLaidOutAsPairs(nn.Module):
    def forward(self, q, cos, sin):
        x1, x2 = q.chunk(2, dim=-1)
        return q * cos + torch.stack((-x2, x1), dim=-1).flatten(-2) * sin


class PairsEveryThird(nn.Module):
    arguments = {"q": "q_of_six"}

    def forward(self, q):
        x1, x2 = q[..., ::3], q[..., 1::3]
        return torch.stack((-x2, x1), dim=-1).flatten(-2) * 2.0


class StackedTheOtherWay(nn.Module):
    """The two of a pair end up in different halves."""

    def forward(self, q, cos, sin):
        x1, x2 = q[..., ::2], q[..., 1::2]
        return q * cos + torch.stack((-x2, x1), dim=-2).flatten(-2) * sin


class RotatedVectorReturned(nn.Module):
    def forward(self, q, cos, sin):
        rotated = rotate_half(q)
        return q * cos + rotated * sin, rotated


class WrittenBetween(nn.Module):
    def forward(self, q, cos, sin):
        q = q + 0.0
        rotated = rotate_half(q)
        q.mul_(2.0)
        return q * cos + rotated * sin


class ComplexConjugated(nn.Module):
    """The pairs are turned, and then mirrored."""

    def forward(self, q, freqs_cis):
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real((pairs * freqs_cis).conj().resolve_conj()).flatten(-2)


class ComplexSquared(nn.Module):
    def forward(self, q, freqs_cis):
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * pairs).flatten(-2)


class ComplexStretched(nn.Module):
    """The factor is real, which only the FX pass knows."""

    entry_points = ("live",)
    arguments = {"factor": "cos_half"}

    def forward(self, q, factor):
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * factor).flatten(-2)


class SinusoidalEmbedding(nn.Module):
    """Absolute positions: sines and cosines side by side, added."""

    arguments = {"angles": "cos_half"}

    def forward(self, q, angles):
        return q + torch.cat((angles.sin(), angles.cos()), dim=-1)


class TimestepEmbedding(nn.Module):
    arguments = {"angles": "cos_half"}

    def forward(self, angles):
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


class AddedInsteadOfMultiplied(nn.Module):
    def forward(self, q, cos, sin):
        return q + cos + rotate_half(q) * sin
