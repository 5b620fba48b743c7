"""Attention on DTensors. One rank is enough here; the distributed matrix runs two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from autofuse import ops

dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("masked", [None, "causal", "bool", "bias"])
@pytest.mark.parametrize("split", [None, 0, 1, 2])
def test_distributed_operands_give_what_plain_ones_do(mesh: Any, split: int | None, masked: str | None) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    torch.manual_seed(0)
    plain = [torch.randn(2, 4, 6, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    placement = Replicate() if split is None else Shard(split)
    parted = [distribute_tensor(t.detach(), mesh, [placement]).requires_grad_() for t in plain]
    given: dict[str, Any] = {"is_causal": masked == "causal", "scale": 0.3}
    mask = _mask(masked)
    everywhere = None if mask is None else distribute_tensor(mask, mesh, [Replicate()])
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        result = ops.attention(*parted, mask=everywhere, **given)
    expected = ops.attention(*plain, mask=mask, **given)
    assert isinstance(result, DTensor)
    torch.testing.assert_close(result.full_tensor(), expected, rtol=1e-12, atol=1e-12)
    result.full_tensor().square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(parted, plain, strict=True):
        torch.testing.assert_close(one.grad.full_tensor(), other.grad, rtol=1e-12, atol=1e-12)
    fused = any("scaled_dot_product" in e.name for e in seen.events())
    assert fused == (split != 2), "batches and heads go to the kernel, queries to the formula"


def _mask(kind: str | None) -> Tensor | None:
    if kind not in ("bool", "bias"):
        return None
    lower = torch.ones(6, 6, dtype=torch.bool).tril()
    return lower if kind == "bool" else torch.zeros(6, 6, dtype=torch.float64).masked_fill(~lower, -1.0)
