"""Tests of what a trace records and what it refuses, and that tracing has no side effects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import autofuse
from autofuse.fx.trace.stand_ins import fake_world
from autofuse.fx.trace.tracer import ForwardTrace, trace_forward
from autofuse.fx.trace.values import Untraceable

LOG: list[object] = []


def trace(module: nn.Module, *args: Any, **kwargs: Any) -> ForwardTrace:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return trace_forward(module, args, kwargs, fake_world(mode), mode)


class AssignsAttribute(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.last = x.softmax(-1)
        return self.last


class AppendsToList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(x)
        return x.softmax(-1)


class ReadsNumbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.mean().item()


class BranchesOnData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1) if x.sum() > 0 else x


class Prints(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print(f"mean {x.mean()}")
        return x.softmax(-1)


class WritesWithoutGradient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        weights = x.softmax(-1)
        with torch.no_grad():
            weights.clamp_(min=0.1)
        return weights * x


class Autocasts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x.mT


class DrawsInPython(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        import random

        return x * random.random()


class IsGenerator(nn.Module):
    def forward(self, x: Tensor) -> Any:
        yield x.softmax(-1)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (AssignsAttribute, "assigns to self.last"),
        (AppendsToList, "changes self.log"),
        (ReadsNumbers, "needs the values in a tensor"),
        (BranchesOnData, "needs the values in a tensor"),
        (Prints, "needs the values in a tensor"),
        (WritesWithoutGradient, "under no_grad"),
        (Autocasts, "under no_grad, autocast"),
        (DrawsInPython, "draws random numbers"),
        (IsGenerator, "generator"),
    ],
)
def test_a_forward_that_a_graph_cannot_represent_is_refused_with_a_reason(kind: type[nn.Module], why: str) -> None:
    module = kind()
    with pytest.raises(Untraceable, match=why):
        trace(module, torch.randn(2, 4, 4))
    assert not getattr(module, "log", []) and not hasattr(module, "last")


def test_a_refusal_names_its_line() -> None:
    with pytest.raises(Untraceable) as error:
        trace(AssignsAttribute(), torch.randn(2, 4))
    assert error.value.place is not None and error.value.place.file == __file__


def test_torch_is_not_patched_during_a_trace() -> None:
    before = {name: getattr(torch, name) for name in ("ones", "arange", "full", "tensor")}
    call = nn.Module.__call__

    class ChecksTorch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert nn.Module.__call__ is call and all(getattr(torch, n) is f for n, f in before.items())
            mask = torch.ones(x.size(1), x.size(1)).tril() * torch.arange(x.size(1))
            return x @ mask

    trace(ChecksTorch(), torch.randn(2, 4, 4))


def test_no_hook_runs_and_no_child_runs_on_real_tensors() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)).train()
    hook_calls: list[int] = []
    for m in module.modules():
        m.register_forward_hook(lambda *_: hook_calls.append(1))
    x, state = torch.randn(3, 4), torch.get_rng_state()
    trace(module, x)
    assert not hook_calls and int(module[2].num_batches_tracked) == 0 and torch.equal(state, torch.get_rng_state())


def test_sizes_stay_symbolic() -> None:
    class Shapes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            batch, length, width = x.shape
            mask = torch.full((length, length), float("-inf")).triu(1)
            return (x.view(batch * length, width).view(batch, length, -1) @ x.mT + mask).softmax(-1)

    result = trace(Shapes(), torch.randn(2, 4, 8))
    assert "shape" not in result.guards.text


def test_a_size_that_is_used_as_a_number_is_guarded_by_its_origin() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            q = self.proj(x).view(x.size(0), x.size(1), 2, x.size(2) // 2).transpose(1, 2)
            return q * q.size(-1) ** -0.5

    assert "(x.shape[2] // 2) == 4" in trace(Root(), torch.randn(2, 4, 8)).guards.text


def test_writes_are_recorded() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            y += 1
            y[:, 0] = 0
            y.masked_fill_(y > 1, 0.0)
            torch.exp(y, out=y.detach())
            return y

    nodes = list(trace(Writes(), torch.randn(2, 4)).graph.nodes)
    assert [str(n.target) for n in nodes if n.meta.get("writes")][:1] == ["add_"]
    assert sum(bool(n.meta.get("writes")) for n in nodes) == 4


def test_a_sequential_of_light_layers_is_entered_and_another_is_called() -> None:
    class UserModule(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.known = nn.Sequential(nn.Softmax(-1), UserModule())
            self.other = nn.Sequential(nn.Softmax(-1), nn.BatchNorm1d(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.other(self.known(x))  # type: ignore[no-any-return]

    result = trace(Root(), torch.randn(2, 4))
    called = [n.target for n in result.graph.nodes if n.op == "call_module"]
    assert called == ["known.0", "known.1", "other"] and result.entered_children == {"known"}


def test_calls_of_einops_are_traced() -> None:
    einops = pytest.importorskip("einops")

    class Heads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = einops.rearrange(x, "b t (h d) -> b h t d", h=2)
            scores = einops.einsum(q, q, "b h i d, b h j d -> b h i j")
            weights = F.softmax(scores + einops.repeat(x.new_zeros(1), "() -> b", b=1), -1)
            return einops.reduce(weights @ q, "b h t d -> b t d", "mean")  # type: ignore[no-any-return]

    result = trace(Heads(), torch.randn(2, 4, 8))
    assert "x.shape[1]" not in result.guards.text


@pytest.mark.parametrize("check", [
    lambda x: x.view(2, 3, 4), lambda x: x.reshape(-1, 3, 4), lambda x: torch.reshape(x, (2, 3, 4)),
    lambda x: x.unflatten(1, (3, 1)), lambda x: x.expand(2, 3, 4), lambda x: x.view_as(torch.ones(2, 3, 4)),
])  # fmt: skip
def test_an_unused_view_still_raises_for_other_sizes(check: Any) -> None:
    class Checked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            check(x)
            return torch.softmax(x @ x.transpose(-2, -1) * 0.3, -1) @ x

    x, other = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    optimized = autofuse.optimize(Checked(), x, tune=False)
    assert autofuse.report(optimized).with_status("fused")
    torch.testing.assert_close(optimized(x), Checked()(x))
    for module in (Checked(), optimized):
        with pytest.raises(RuntimeError):
            module(other)
