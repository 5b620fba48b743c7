"""Size origins that are found for one example must be right for all calls."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import autofuse
from autofuse.fx.trace.stand_ins import fake_world
from autofuse.fx.trace.tracer import trace_forward
from tests.fx.conftest import assert_same

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
def test_sizes_found_with_one_example_hold_for_others(place: int) -> None:
    class Case(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return CASES[place](x)

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    trace = trace_forward(Case(), (torch.randn(2, 8, 4),), {}, fake_world(mode), mode)
    output = next(n for n in trace.graph.nodes if n.op == "output").args[0]
    for shape in ((2, 8, 4), (3, 10, 4), (1, 6, 4)):
        x = torch.randn(shape)
        for size, actual in zip(trace.sizes[output], CASES[place](x).shape, strict=True):
            assert size is None or eval(str(size), {"x": x, "min": min}) == actual


class _OwnLinear(nn.Module):
    """A linear layer that the user wrote, as in GPT-2."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.out = out
        self.weight, self.bias = nn.Parameter(torch.randn(width, out) / 4), nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor) -> Tensor:
        size = (*x.size()[:-1], self.out)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


class _Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = _OwnLinear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).split(16, dim=2)
        return (q @ k.mT / 4.0).softmax(dim=-1) @ v


def test_the_result_of_the_users_own_layer_has_sizes_so_that_split_is_traced() -> None:
    plain = _Split()
    model = autofuse.optimize(copy.deepcopy(plain), torch.randn(2, 5, 16))
    for length in (5, 3, 8):
        assert_same(plain, model, torch.randn(2, length, 16))
    assert not autofuse.report(model).fallbacks
    model.qkv.out = 32
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 5, 16))  # the original raises too
