"""Modules with torch's grouped matrix product are traced in every dtype that has kernels."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.fx.trace import grouped_products
from autofuse.torch_private import FAKE_TENSOR_LOG, FakeTensorMode

pytestmark = pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no grouped product")


class Experts(nn.Module):
    """Experts as in transformers: rows sorted by expert, two grouped products, and a gate between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 16, 64) / 4)
        self.down = nn.Parameter(torch.randn(3, 32, 16) / 4)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        chosen, order = torch.sort(chosen)
        ends = torch.cumsum(torch.histc(chosen.float(), bins=3, min=0, max=2), 0, dtype=torch.int32)
        gate, up = F.grouped_mm(x[order], self.up, offs=ends).chunk(2, -1)
        result = F.grouped_mm(F.silu(gate) * up, self.down, offs=ends) * weights[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, order, result)


def call(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 16, generator=generator).to(dtype)
    return x, torch.randint(3, (24,), generator=generator), torch.rand(24, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gate_between_grouped_products_is_fused(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = Experts().to(dtype)
    model = autofuse.optimize(copy.deepcopy(plain), call(dtype), tune=False)
    assert [(s.rule, s.status) for s in autofuse.report(model)] == [("AF303", "fused")]
    results = []
    for each in (plain, model):
        result = each(*call(dtype))
        result.square().mean().backward()
        results.append((result, *(p.grad for p in each.parameters())))
    bound = 16 * torch.finfo(dtype).eps
    for actual, expected in zip(results[1], results[0], strict=True):
        assert (actual - expected).abs().max() <= bound * expected.abs().max()


class SortedRows(Experts):
    """The rows come sorted by expert, so the product gets the argument itself."""

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        ends = torch.cumsum(torch.histc(chosen.float(), bins=3, min=0, max=2), 0, dtype=torch.int32)
        gate, up = F.grouped_mm(x, self.up, offs=ends).chunk(2, -1)
        return F.grouped_mm(F.silu(gate) * up, self.down, offs=ends) * weights.unsqueeze(-1)


def test_layouts_that_the_product_rejects_are_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the layout of an argument matters is found by runs with other layouts, which the product may reject."""
    monkeypatch.setattr(logging.getLogger(FAKE_TENSOR_LOG), "handlers", [caplog.handler])
    torch.manual_seed(0)
    x, chosen, weights = call(torch.float32)
    model = autofuse.optimize(SortedRows(), (x[:7], chosen[:7].sort().values, weights[:7]), tune=False)
    assert [s.status for s in autofuse.report(model)] == ["fused"]
    assert [record.getMessage() for record in caplog.records] == []


class Choices(Experts):
    """Two choices for each token, and the original order restored, as in transformers."""

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        tokens, choices = x.size(0), chosen.size(-1)
        expert, order = torch.sort(chosen.reshape(-1))
        ends = torch.cumsum(torch.histc(expert.float(), bins=3, min=0, max=2), 0, dtype=torch.int32)
        gate, up = F.grouped_mm(x[order // choices], self.up, offs=ends).chunk(2, -1)
        result = F.grouped_mm(F.silu(gate) * up, self.down, offs=ends) * weights.reshape(-1)[order].unsqueeze(-1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.size(0), device=x.device)
        return result[inverse].view(tokens, choices, x.size(-1)).sum(dim=1)


def test_the_number_of_tokens_may_differ_and_torch_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)

    def arguments(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(tokens, 16), torch.rand(tokens, 3).topk(2)[1], torch.rand(tokens, 2)

    plain = Choices()
    model = autofuse.optimize(copy.deepcopy(plain), arguments(24), tune=False)
    assert [(s.rule, s.status) for s in autofuse.report(model)] == [("AF303", "fused")]
    for tokens in (24, 40, 7):
        x = arguments(tokens)
        torch.testing.assert_close(model(*x), plain(*x))
    assert not autofuse.report(model).fallbacks
    assert not caplog.records


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_fake_product_has_the_shape_and_dtype_of_the_real_one(dtype: torch.dtype) -> None:
    x, weight, ends = torch.randn(24, 16), torch.randn(3, 16, 64), torch.tensor([8, 9, 24], dtype=torch.int32)
    x, weight = x.to(dtype), weight.to(dtype)
    real = F.grouped_mm(x, weight, offs=ends)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (x, weight, ends)]
        result = grouped_products.run(F.grouped_mm, (fakes[0], fakes[1]), {"offs": fakes[2]})
    assert result.shape == real.shape and result.dtype is real.dtype and result.stride() == real.stride()


def test_fake_tensors_are_refused_if_the_kernel_refuses_real_ones() -> None:
    with FakeTensorMode():
        for dtype in (torch.float64, torch.int64):
            x, weight = torch.ones(24, 16, dtype=dtype), torch.ones(3, 16, 64, dtype=dtype)
            with pytest.raises(RuntimeError, match="Expected"):
                grouped_products.run(F.grouped_mm, (x, weight), {"offs": torch.ones(3, dtype=torch.int32)})
