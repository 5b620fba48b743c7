"""A part of a call convicts what is wrong, and leaves what it cannot tell to the whole call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autofuse.verify.in_parts import PartwiseReference
from autofuse.verify.modules import ModuleReference

X = torch.randn(8, 256, 16)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Wrong(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * 1.01


class WrongWhereLarge(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * (1.01 if x.shape[0] > 2 else 1.0)


class OnlyWhole(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x.view(8, 256, 16)))


def _pair(original: type[Scale], rewritten: type[Scale]) -> tuple[Scale, Scale]:
    one, other = original(), rewritten()
    other.load_state_dict(one.state_dict())
    return one, other


def test_what_is_right_passes_and_says_on_what_part() -> None:
    one, other = _pair(Scale, Scale)
    outcome = PartwiseReference(ModuleReference(one, (X,))).check(other, [])
    assert outcome is not None and outcome.ok
    assert outcome.size == "2 of 8 rows, length 128 of 256"


def test_what_is_wrong_fails() -> None:
    one, other = _pair(Scale, Wrong)
    outcome = PartwiseReference(ModuleReference(one, (X,))).check(other, [])
    assert outcome is not None and not outcome.ok


def test_what_is_wrong_on_the_whole_alone_is_left_to_the_whole() -> None:
    one, other = _pair(Scale, WrongWhereLarge)
    assert PartwiseReference(ModuleReference(one, (X,))).check(other, []) is None


@pytest.mark.parametrize("misses", [["a module"]])
def test_a_forward_that_did_not_run_shows_nothing(misses: list[str]) -> None:
    one, other = _pair(Scale, Scale)
    assert PartwiseReference(ModuleReference(one, (X,))).check(other, misses) is None


def test_an_original_that_takes_no_part_is_left_to_the_whole() -> None:
    one, other = _pair(OnlyWhole, OnlyWhole)
    assert PartwiseReference(ModuleReference(one, (X,))).check(other, []) is None


def test_a_small_call_has_no_part() -> None:
    one, _ = _pair(Scale, Scale)
    assert not PartwiseReference(ModuleReference(one, (X[:2, :64],))).can_tell


class Late(Scale):
    """It differs from `Scale` beyond the part alone: in the rows `at`, by the factor `by`."""

    at, by = slice(128, None), 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        if x.shape[1] <= 128:
            return y
        factors = torch.ones(x.shape[1], 1, dtype=y.dtype)
        factors[self.at] = self.by
        return y * factors


@pytest.mark.parametrize(
    ("dtype", "at", "by"),
    [
        (torch.float32, slice(128, None), 1.001), (torch.float32, slice(200, 201), 1.001),
        (torch.bfloat16, slice(128, None), 1.1), (torch.bfloat16, slice(200, 201), 1.5),
        (torch.float16, slice(128, None), 1.02), (torch.float16, slice(200, 201), 1.1),
    ],
)  # fmt: skip
def test_what_is_wrong_beyond_the_part_is_left_to_the_whole(dtype: torch.dtype, at: slice, by: float) -> None:
    one, other = _pair(Scale, Late)
    other.at, other.by = at, by  # type: ignore[attr-defined]
    reference = PartwiseReference(ModuleReference(one.to(dtype), (X.to(dtype),)))
    assert reference.check(other.to(dtype), []) is None
    other.by = 1.0  # type: ignore[attr-defined]
    found = reference.check(other, [])
    assert found is not None and found.ok


class InDouble(Scale):
    """What a fused kernel does: it rounds once."""

    def forward(self, x: Tensor) -> Tensor:
        linear = self.linear
        return torch.tanh(x.double() @ linear.weight.double().t() + linear.bias.double()).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_rounds_elsewhere_passes(dtype: torch.dtype) -> None:
    one, other = _pair(Scale, InDouble)
    found = PartwiseReference(ModuleReference(one.to(dtype), (X.to(dtype),))).check(other.to(dtype), [])
    assert found is not None and found.ok
