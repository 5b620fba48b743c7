"""A part of a forward under no_grad is recorded, and gradients, hooks and other derivatives stay the same."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse


class _Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.rand(8))

    def norm(self, x: Tensor) -> Tensor:
        """RMS norm, which is fused."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


class Teacher(_Base):
    """A child runs under no_grad."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.teacher(x)
        return (self.norm(self.student(x)) - target).square()


class NormInside(_Base):
    """What is fused runs under no_grad itself."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.norm(x)
        return self.student(x) * y


class SameInBoth(_Base):
    """The same computation with and without a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.norm(x)
        return self.norm(x) * y


class HalfInside(_Base):
    """The first steps of the norm run under no_grad, so the norm has another gradient."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            size = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(size + 1e-6) * self.scale + self.norm(x)


class ReturnsOperand(_Base):
    """`float` returns its operand, which keeps its gradient."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.student(x)
        with torch.no_grad():
            same = hidden.float()
        return self.norm(same)


class Decorated(_Base):
    """A helper under no_grad."""

    @torch.no_grad()
    def target(self, x: Tensor) -> Tensor:
        return F.softmax(self.teacher(x) * self.scale, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.student(x)) * self.target(x)


class Weight(_Base):
    """A parameter is read under no_grad."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            w = self.student.weight / self.student.weight.norm(dim=-1, keepdim=True)
        return self.norm(F.linear(x, w))


CASES = (Teacher, NormInside, SameInBoth, HalfInside, Decorated, Weight)


def results(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    """The output and all gradients."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    out = model(x)
    out.mean().backward()
    return [out, x.grad, *(p.grad for p in model.parameters())]


def assert_same(model: nn.Module, fused: nn.Module, x: Tensor) -> None:
    """A gradient that is None stays None."""
    for one, other in zip(results(model, x), results(fused, x), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(other, one)


@pytest.mark.parametrize("kind", CASES)
def test_a_part_under_no_grad_is_captured_and_gradients_stay(kind: type[_Base]) -> None:
    torch.manual_seed(0)
    model = kind().double()
    fused = autofuse.optimize(copy.deepcopy(model), (torch.randn(3, 8).double(),), tune=False)
    assert [s.rule for s in autofuse.report(fused).sites if s.status == "fused"], autofuse.report(fused)
    for rows in (3, 5):
        assert_same(model, fused, torch.randn(rows, 8).double())
    assert not autofuse.report(fused).fallbacks


def test_an_operand_that_an_operation_returns_keeps_its_gradient_only_in_that_dtype() -> None:
    torch.manual_seed(0)
    model = ReturnsOperand()
    fused = autofuse.optimize(copy.deepcopy(model), (torch.randn(3, 8),), tune=False)
    assert [s.rule for s in autofuse.report(fused).sites if s.status == "fused"], autofuse.report(fused)
    assert_same(model, fused, torch.randn(5, 8))
    model, fused = model.double(), fused.double()  # now `float` returns a new tensor
    model.scale.data, fused.scale.data = model.scale.data.float(), fused.scale.data.float()
    assert_same(model, fused, torch.randn(5, 8).double())


def test_a_child_under_no_grad_runs_its_hooks_without_gradients() -> None:
    model = autofuse.optimize(Teacher(), (torch.randn(3, 8),), tune=False)
    enabled = []
    model.teacher.register_forward_hook(lambda *_: enabled.append(torch.is_grad_enabled()))
    assert model(torch.randn(3, 8)).requires_grad
    assert enabled == [False] and torch.is_grad_enabled()


def test_an_error_of_a_child_leaves_gradients_enabled() -> None:
    model = autofuse.optimize(Teacher(), (torch.randn(3, 8),), tune=False)

    def fail(*_: object) -> None:
        raise KeyError("as in the original")

    model.teacher.register_forward_hook(fail)
    with pytest.raises(KeyError):
        model(torch.randn(3, 8))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", [NormInside, HalfInside])
def test_forward_mode_derivatives_are_those_of_the_original(kind: type[_Base]) -> None:
    model = kind().double()
    x = torch.randn(3, 8).double()
    fused = autofuse.optimize(copy.deepcopy(model), (x,), tune=False)
    one, other = (torch.func.jvp(m, (x,), (torch.ones_like(x),))[1] for m in (model, fused))
    torch.testing.assert_close(other, one)


class LeavesItDisabled(_Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        torch.set_grad_enabled(False)
        return y


class EnablesInside(_Base):
    """Gradients are enabled again inside of no_grad."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad(), torch.enable_grad():
            y = self.norm(self.student(x))
        return y


class Infers(_Base):
    """Tensors of inference mode are of another kind."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = self.norm(x)
        return self.student(x) * y.clone()


class WritesParameter(_Base):
    """A moving average."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.teacher.weight.lerp_(self.student.weight, 0.1)
        return self.norm(self.student(x))


@pytest.mark.parametrize("kind", [LeavesItDisabled, Infers, WritesParameter])
def test_what_a_graph_cannot_hold_stays(kind: type[_Base]) -> None:
    fused = autofuse.optimize(kind(), (torch.randn(3, 8),), tune=False)
    try:
        assert not [s for s in autofuse.report(fused).sites if s.status == "fused"], autofuse.report(fused)
    finally:
        torch.set_grad_enabled(True)


def test_gradients_enabled_inside_of_no_grad_stay_enabled() -> None:
    torch.manual_seed(0)
    model = EnablesInside().double()
    fused = autofuse.optimize(copy.deepcopy(model), (torch.randn(3, 8).double(),), tune=False)
    assert_same(model, fused, torch.randn(4, 8).double())
