"""A watched twin reports the user's class as its class."""

from __future__ import annotations

import types

import torch
from torch import Tensor, nn

from autofuse.fx.trace.twin import Twins, watched_module, watched_object
from tests.fx.conftest import assert_same, fused_rules, optimized


class Attend(nn.Module):
    scale = 0.5

    def forward(self, q: Tensor) -> Tensor:
        return torch.softmax(q @ q.mT * self.scale, -1) @ q


class CallsSuperOfOwnClass(Attend):
    """Recurses without end in any subclass, because it calls `super(self.__class__, self)`."""

    def forward(self, q: Tensor) -> Tensor:
        return super(self.__class__, self).forward(q) * 2


class BranchesOnOwnClass(Attend):
    def forward(self, q: Tensor) -> Tensor:
        attended = torch.softmax(q @ q.mT * SCALES[self.__class__], -1) @ q
        return attended if self.__class__ is BranchesOnOwnClass else attended * 0


SCALES: dict[type, float] = {BranchesOnOwnClass: 0.25}


def test_the_class_of_a_twin_is_the_users_class() -> None:
    twin = watched_module(Attend)()
    assert type(twin) is not Attend and twin.__class__ is Attend and isinstance(twin, Attend)
    other = watched_object(types.SimpleNamespace)()
    assert type(other) is not types.SimpleNamespace and other.__class__ is types.SimpleNamespace


def test_a_forward_that_branches_on_its_class_takes_the_same_branch() -> None:
    for model in (CallsSuperOfOwnClass(), BranchesOnOwnClass()):
        q = torch.randn(2, 4, 4, requires_grad=True)
        fused = optimized(model, q)
        assert fused_rules(fused) == {"AF101"}
        assert_same(model, fused, q)


def test_a_copy_of_a_compiled_module_runs_its_own_code() -> None:
    module, calls = nn.Linear(2, 2), list[int]()
    module._compiled_call_impl = lambda x: calls.append(1) or module._call_impl(x)  # type: ignore[func-returns-value,assignment]
    copied = Twins(lambda t: t.detach().clone(), watched=False).of(module)
    assert torch.equal(copied(torch.ones(2)), nn.Linear.forward(module, torch.ones(2)))
    assert calls == [] and module._compiled_call_impl is not None
