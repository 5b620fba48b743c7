"""Sizes that are told for all calls must be right for all calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.fx.trace import fake_world, traced

CASES: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.view(x.size(0), x.size(1), 2, -1).transpose(1, 2),
    lambda x: x.reshape(x.size(0) * x.size(1), -1),
    lambda x: x.permute(2, 0, 1).unsqueeze(0)[..., None],
    lambda x: x[:, : x.size(1) // 2, 1:][:, None],
    lambda x: x[:, :3] + x[:, :1],
    lambda x: torch.cat((x, x), dim=1).softmax(-1),
    lambda x: x @ x.mT,
    lambda x: torch.einsum("bid,bjd->bij", x, x),
    lambda x: x.mean(-1, keepdim=True) * x,
    lambda x: x.sum(1),
    lambda x: torch.full((x.size(1), x.size(1)), 2.0).triu(1),
    lambda x: torch.arange(x.size(1)).expand(x.size(0), -1),
    lambda x: x.chunk(2, dim=-1)[1],
    lambda x: F.pad(x, (0, 1)),
    lambda x: x.flatten(1),
]


@pytest.mark.parametrize("place", range(len(CASES)))
def test_sizes_told_from_one_example_hold_for_another(place: int) -> None:
    class Case(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return CASES[place](x)

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    found = traced(Case(), (torch.randn(2, 8, 4),), {}, fake_world(mode), mode)
    output = next(n for n in found.graph.nodes if n.op == "output").args[0]
    for shape in ((2, 8, 4), (3, 10, 4), (1, 6, 4)):
        x = torch.randn(shape)
        for told, actual in zip(found.sizes[output], CASES[place](x).shape, strict=True):
            assert told is None or eval(str(told), {"x": x, "min": min}) == actual
