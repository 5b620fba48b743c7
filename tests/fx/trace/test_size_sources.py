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
    lambda x: x.flatten(0, 1).sort(0)[0],
    lambda x: x[:, x[0, :, 0].argsort()],
    lambda x: x[torch.zeros(3, 1, dtype=torch.long), x[0, :, 0].argsort()],
    lambda x: x[:, :, x[0, 0].sort()[1], None],
    lambda x: x[x[:, 0, 0].argsort(), :, x[0, :1, 0].long() * 0],
    lambda x: x[0, x[0, :, 0].argsort()],
    lambda x: x.topk(3, dim=1)[1],
    lambda x: x.topk(2)[0],
    lambda x: x.max(1)[1],
    lambda x: torch.max(x, x[:, :1]),
    lambda x: x.min(dim=0, keepdim=True)[0],
    lambda x: x.argmax(1),
    lambda x: x.argmax(1, keepdim=True),
    lambda x: x.argmax().reshape(1),
    lambda x: x.logsumexp(-1, keepdim=True),
    lambda x: x.gather(1, x[:, :2].long().clamp(0, 1)),
    lambda x: torch.zeros_like(x).scatter_add(1, x[:, :2].long().clamp(0, 1), x),
    lambda x: x.index_select(1, x[0, :, 0].argsort()),
    lambda x: x.select(1, 0),
    lambda x: x.narrow(1, 1, 3),
    lambda x: torch.mm(x[0], x[0].T),
    lambda x: torch.histc(x, bins=5),
    lambda x: F.one_hot(x[0].long().clamp(0, 3), 4),
    lambda x: F.one_hot(x[0].long().clamp(0, 3), num_classes=x.size(1)),
    lambda x: x[:, :1].squeeze(1),
    lambda x: x[:1].squeeze(0),
    lambda x: x.squeeze(1),
    lambda x: x.repeat(2, 1, 3),
    lambda x: x[0].repeat(x.size(0), 2, 1),
    lambda x: x.repeat_interleave(3, dim=1),
    lambda x: x.repeat_interleave(2),
    lambda x: x.repeat_interleave(torch.tensor([1, 3]), dim=2) if x.size(2) == 2 else x,
    lambda x: F.scaled_dot_product_attention(x, x[:, :2], x[:, :2, :3]),
    lambda x: x.new_zeros(x.size(0), 3),
    lambda x: x.new_full((3, x.size(1)), 1.0),
    lambda x: x.reshape(-1).sort().values,
]
# Sizes that a rule must know, because modules with these operations run in other sizes than the example's.
KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "sort": lambda x: x.flatten().sort()[0],
    "indices of rows": lambda x: x[x[:, 0, 0].argsort()],
    "two indices": lambda x: x[x[:, 0, 0].argsort(), x[:, 0, 0].argsort()],
    "topk": lambda x: x.topk(2)[1],
    "max": lambda x: x.max(-1)[0],
    "gather": lambda x: x.gather(1, x[:, :2].long().clamp(0, 1)),
    "index_select": lambda x: x.index_select(1, x[0, :, 0].argsort()),
    "one_hot": lambda x: F.one_hot(x.long().clamp(0, 3), 4),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "new_zeros": lambda x: x.new_zeros(x.size(1), 2),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add_(1, x.long().clamp(0, 1), x),
}


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


@pytest.mark.parametrize("name", KNOWN)
def test_each_size_is_known_after(name: str) -> None:
    class Case(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return KNOWN[name](x)

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    trace = trace_forward(Case(), (torch.randn(2, 8, 4),), {}, fake_world(mode), mode)
    output = next(n for n in trace.graph.nodes if n.op == "output").args[0]
    assert None not in trace.sizes[output]
    assert not any("shape ==" in test for test in trace.guards.tests)


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
