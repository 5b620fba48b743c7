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
