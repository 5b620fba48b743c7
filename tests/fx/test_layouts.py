"""Results of fused modules have the memory layout of the original's results, for every layout of the arguments.

The table has every kind of value that a rule computes, times layouts of the arguments at optimize and at later calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse

SHAPE = (2, 3, 5, 8)
D = SHAPE[-1]


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(D)), nn.Parameter(torch.rand(D))
        self.linear, self.other, self.norm = nn.Linear(D, D), nn.Linear(D, D), nn.LayerNorm(D)
        self.register_buffer("dropped", torch.ones(5, D).triu(1).bool())


class Gelu(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


class TanhGelu(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Silu(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class MaskedSoftmax(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(self.dropped, -1e9).softmax(-1)


class RMSNorm(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class LayerNorm(Parts):
    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * self.weight + self.bias


class ResidualNorm(Parts):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x + self.linear(x)
        return h, self.norm(h)


class SumOfTwo(Parts):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = x + y
        return h, self.norm(h)


class Gated(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.linear(x)) * self.other(x)


class GatedHalves(Parts):
    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return F.silu(a) * b


class Attention(Parts):
    def forward(self, x: Tensor) -> Tensor:
        q, k = self.linear(x), self.other(x)
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), -1) @ x


class NormAfterGelu(Parts):
    def forward(self, x: Tensor) -> Tensor:
        x = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Returned(nn.Module):
    """An elementwise child, whose result has the layout of its argument."""

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh()


class AfterAChild(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.child = Returned()

    def forward(self, x: Tensor) -> Tensor:
        x = self.child(x)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Viewing(nn.Module):
    """A child that accepts only the layout for which it was written."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2).view(x.shape[0], -1) if not x.is_contiguous() else x.view(x.shape[0], -1)


class BeforeAChild(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.child = Viewing()

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return self.child(x)


class ViewedInside(Parts):
    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return x.permute(0, 3, 1, 2).view(x.shape[0], -1)


class Turned(Parts):
    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight).transpose(1, 2)


MODELS = (
    Gelu, TanhGelu, Silu, MaskedSoftmax, RMSNorm, LayerNorm, ResidualNorm, SumOfTwo, Gated, GatedHalves, Attention,
    NormAfterGelu, AfterAChild, BeforeAChild, ViewedInside, Turned,
)  # fmt: skip


def contiguous(x: Tensor) -> Tensor:
    return x.contiguous()


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)


def transposed(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def about(x: Tensor) -> Tensor:
    return x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)


def sliced(x: Tensor) -> Tensor:
    return torch.cat([x, x], -1)[..., : x.shape[-1]]


def sliced_and_turned(x: Tensor) -> Tensor:
    return heads(torch.cat([x, x], -1))[..., : x.shape[-1]]


def expanded(x: Tensor) -> Tensor:
    return x[:1].expand_as(x)


def expanded_within(x: Tensor) -> Tensor:
    return x[:, :, :1].expand_as(x)


def stepped(x: Tensor) -> Tensor:
    return torch.stack([x, x], -1)[..., 0]


LAYOUTS: tuple[Callable[[Tensor], Tensor], ...] = (
    contiguous, channels_last, transposed, heads, about, sliced, sliced_and_turned, expanded, expanded_within, stepped,
)  # fmt: skip


@pytest.mark.parametrize("lazily", [False, True], ids=["example", "lazily"])
@pytest.mark.parametrize("first", [contiguous, channels_last, sliced_and_turned, expanded])
@pytest.mark.parametrize("model", MODELS)
def test_results_have_the_originals_memory_layout(model: type[Parts], first: Any, lazily: bool) -> None:
    torch.manual_seed(0)
    original = model().double()
    torch.manual_seed(0)
    optimized = model().double()
    runs(original, optimized, [first], None if lazily else first)
    runs(original, optimized, LAYOUTS, None)


@pytest.mark.parametrize("second", LAYOUTS)
def test_two_arguments_may_have_different_memory_layouts(second: Any) -> None:
    original = SumOfTwo().double()
    optimized = SumOfTwo().double()
    optimized.load_state_dict(original.state_dict())
    x = torch.randn(SHAPE, dtype=torch.float64)
    autofuse.optimize(optimized, (x, x), tune=False)
    for first in LAYOUTS:
        same(original, optimized, first(x), second(x * 2))


@pytest.mark.parametrize("model", [m for m in MODELS if m not in (GatedHalves, ViewedInside)])
def test_one_layouts_fused_forward_serves_another_layout(model: type[Parts]) -> None:
    optimized = model().double()
    x = torch.randn(SHAPE, dtype=torch.float64)
    autofuse.optimize(optimized, inputs(optimized, x), tune=False)

    assert autofuse.report(optimized).with_status("fused"), autofuse.report(optimized).sites
    optimized(*inputs(optimized, x))
    assert not autofuse.report(optimized).fallbacks


def inputs(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    return (x, x * 2) if isinstance(model, SumOfTwo) else (x,)


def runs(original: nn.Module, optimized: nn.Module, layouts: Any, example: Any) -> None:
    x = torch.randn(SHAPE, dtype=torch.float64)
    if not hasattr(optimized, "asked"):
        optimized.__dict__["asked"] = True
        autofuse.optimize(optimized, None if example is None else inputs(optimized, example(x)), tune=False)
    for layout in layouts:
        same(original, optimized, *inputs(original, layout(x)))


def same(original: nn.Module, optimized: nn.Module, *given: Tensor) -> None:
    """Compares values, gradients and strides. If one raises, the other must raise."""
    expected, found = call(original, given), call(optimized, given)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-9)
            if name.startswith("result"):
                assert found[name].stride() == value.stride(), (name, given[0].stride())
        else:
            assert found[name] == value


def call(model: nn.Module, given: tuple[Tensor, ...]) -> dict[str, Any]:
    leaves = [x.detach().requires_grad_() for x in given]
    try:
        returned = model(*leaves)
    except RuntimeError as error:
        return {"raises": type(error)}
    results = returned if isinstance(returned, tuple) else (returned,)
    model.zero_grad()
    sum((r * torch.arange(r.numel()).reshape(r.shape)).sum() for r in results).backward()  # type: ignore[union-attr]
    seen: dict[str, Any] = {f"result {i}": r.detach() for i, r in enumerate(results)}
    seen |= {f"of {i}": x.grad for i, x in enumerate(leaves)}
    return seen | {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
