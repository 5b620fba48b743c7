"""CreatedBytes counts the bytes that operators allocate, also on fake tensors."""

from __future__ import annotations

import copy

import torch
from torch import nn

from autofuse.measure.created_bytes import CreatedBytes
from autofuse.torch_private import FakeTensorMode

CPU = torch.device("cpu")


def test_each_result_counts_and_views_do_not() -> None:
    x = torch.randn(4, 8)
    with CreatedBytes() as created:
        y = x + 1
        y.view(8, 4).t().mul_(2)
        y.reshape(32)
    assert created.by_device == {CPU: 4 * 8 * 4}


def test_freed_tensors_still_count() -> None:
    with CreatedBytes() as created:
        for _ in range(3):
            torch.ones(100)
    assert created.by_device[CPU] == 3 * 100 * 4


def test_a_fake_tensor_counts_like_a_real_one() -> None:
    module = nn.Sequential(nn.Linear(16, 64), nn.GELU())
    with CreatedBytes() as real:
        module(torch.randn(8, 16))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    stand_ins = {id(p): nn.Parameter(mode.from_tensor(p.detach())) for p in module.parameters()}
    with mode:
        x, copied = torch.empty(8, 16), copy.deepcopy(module, stand_ins)  # type: ignore[arg-type]
    with mode, CreatedBytes() as fake:
        copied(x)
    assert fake.by_device[CPU] == real.by_device[CPU] - 8 * 16 * 4 == 2 * 8 * 64 * 4  # without the input


def test_bytes_are_counted_for_each_device() -> None:
    with CreatedBytes() as created:
        torch.ones(10), torch.ones(20, device="meta")
    assert created.by_device == {CPU: 40, torch.device("meta"): 80}
