"""Whether autocast is active is known without a graph break, and Dynamo sees changes of it."""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.torch_private.autocast import is_autocast_on


def test_it_is_on_within_autocast_for_that_device_alone() -> None:
    assert not is_autocast_on("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        assert is_autocast_on("cpu")
        assert not is_autocast_on("cuda")
    assert not is_autocast_on("meta"), "a device without autocast"


def test_dynamo_traces_it_and_compiles_again_under_autocast() -> None:
    def double_under_autocast(x: Tensor) -> Tensor:
        return x * 2 if is_autocast_on(x.device.type) else x

    compiled = torch.compile(double_under_autocast, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(torch.ones(1)).item() == 2
    assert compiled(torch.ones(1)).item() == 1
