"""The replaced and the new code of a rewrite compute the same, each on its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import autofuse
from autofuse.fx.rewrite.excerpt import Excerpt
from autofuse.fx.rewrite.module_plan import ModulePlan, plan_trace
from autofuse.fx.trace.stand_ins import fake_world
from autofuse.fx.trace.tracer import trace_forward
from autofuse.loading.registry import load_rules


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """A prenorm step. Its second result is computed from the first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + y
        return x + self.norm(x)


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ x.transpose(-2, -1)) / x.size(-1) ** 0.5
        return torch.softmax(scores, dim=-1) @ x


def _plan(module: nn.Module, *inputs: Tensor) -> ModulePlan:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    trace = trace_forward(module, inputs, {}, fake_world(mode), mode)
    with torch.enable_grad():
        return plan_trace(trace, load_rules(), frozenset(), None)


def _excerpts(plan: ModulePlan) -> list[Excerpt]:
    return [f.excerpt for f in plan.found if f.excerpt is not None]


def _real(given: Any) -> Any:
    return torch.randn(given.shape, dtype=given.dtype) if isinstance(given, Tensor) else given


@pytest.mark.parametrize(
    ("module", "inputs", "operation"),
    [
        (Norm(), (torch.randn(4, 8),), "rms_norm"),
        (Block(), (torch.randn(4, 8), torch.randn(4, 8)), "dropout_add_norm"),
        (Attention(), (torch.randn(2, 2, 4, 8),), "attention"),
    ],
)
def test_both_sides_give_the_same_results(module: nn.Module, inputs: tuple[Tensor, ...], operation: str) -> None:
    (excerpt,) = _excerpts(_plan(module, *inputs))
    before, after = excerpt.functions(module)
    assert excerpt.operation == operation
    assert operation in after.code and operation not in before.code
    values = [_real(v) for v in excerpt.example_inputs]
    for found, expected in zip(after(*values), before(*values), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_rewrite_inside_a_rewrite_has_its_own_excerpt() -> None:
    class Feed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.up(x)
            return self.down(0.5 * x * (1 + torch.erf(x / 2**0.5)))

    module = Feed()
    found = _excerpts(_plan(module, torch.randn(4, 8)))
    assert [e.operation for e in found] == ["mlp"] or {"gelu", "mlp"} == {e.operation for e in found}
    for excerpt in found:
        before, after = excerpt.functions(module)
        values = [_real(v) for v in excerpt.example_inputs]
        torch.testing.assert_close(after(*values)[0], before(*values)[0])


def test_an_optimized_module_computes_the_same() -> None:
    module, x = Norm(), torch.randn(4, 8)
    expected = module(x)
    autofuse.optimize(module, (x,))
    torch.testing.assert_close(module(x), expected)
