"""The bytes that operators make are those that they allocate, on fakes too."""

from __future__ import annotations

import copy

import torch
from torch import nn

from autofuse.measure.bytes_made import BytesMade
from autofuse.torch_private import FakeTensorMode

CPU = torch.device("cpu")


def test_each_result_counts_and_views_do_not() -> None:
    x = torch.randn(4, 8)
    with BytesMade() as made:
        y = x + 1
        y.view(8, 4).t().mul_(2)
        y.reshape(32)
    assert made.so_far == {CPU: 4 * 8 * 4}


def test_what_is_given_back_still_counts() -> None:
    with BytesMade() as made:
        for _ in range(3):
            torch.ones(100)
    assert made.so_far[CPU] == 3 * 100 * 4


def test_a_fake_counts_for_what_it_stands_for() -> None:
    module = nn.Sequential(nn.Linear(16, 64), nn.GELU())
    with BytesMade() as real:
        module(torch.randn(8, 16))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    stand_ins = {id(p): nn.Parameter(mode.from_tensor(p.detach())) for p in module.parameters()}
    with mode:
        x, copied = torch.empty(8, 16), copy.deepcopy(module, stand_ins)  # type: ignore[arg-type]
    with mode, BytesMade() as fake:
        copied(x)
    assert fake.so_far[CPU] == real.so_far[CPU] - 8 * 16 * 4 == 2 * 8 * 64 * 4  # without the input


def test_devices_are_told_apart() -> None:
    with BytesMade() as made:
        torch.ones(10), torch.ones(20, device="meta")
    assert made.so_far == {CPU: 40, torch.device("meta"): 80}
