"""A norm of a live model keeps the dtype of its result and gives no warning, for all dtypes of the operands."""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings

import pytest
import torch
from torch import Tensor, nn

import autofuse

HALF, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))
        self.eps = 1e-6


class Llama(Norm):
    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


class Gemma(Norm):
    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class LayerNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.weight * (x - mean) / torch.sqrt(var + self.eps)


def wrong(original: nn.Module, optimized: nn.Module, x: Tensor) -> str:
    """The difference of the two on `x`; "" if there is none."""
    before, after = original(x), optimized(x)
    if before.dtype is not after.dtype:
        return f"{before.dtype} became {after.dtype}"
    coarse = 0.02 if HALF in (x.dtype, original.weight.dtype, before.dtype) else 1e-5  # type: ignore[comparison-overlap]
    off = (before.double() - after.double()).abs().max().item()
    return "" if off <= coarse * before.abs().max().item() else f"differs by {off:.3g}"


@pytest.mark.parametrize("kind", [Llama, Gemma, LayerNorm])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_fused_norm_gives_the_dtype_of_the_original(kind: type[Norm], autocast: bool) -> None:
    for given, dtype in itertools.product((HALF, SINGLE), (HALF, SINGLE)):
        torch.manual_seed(0)
        original = kind().to(dtype)
        context = torch.autocast("cpu", dtype=HALF) if autocast else contextlib.nullcontext()
        optimized = autofuse.optimize(copy.deepcopy(original), (torch.randn(4, 64).to(given),), tune=False)
        assert [s.status for s in autofuse.report(optimized).sites] == ["fused"]
        with warnings.catch_warnings(record=True) as told, context:
            warnings.simplefilter("always")
            for later in (HALF, SINGLE, DOUBLE):
                found = wrong(original, optimized, torch.randn(4, 64).to(later))
                assert not found, (given, dtype, later, found)
        assert not [str(w.message) for w in told if "ismatch" in str(w.message)]
