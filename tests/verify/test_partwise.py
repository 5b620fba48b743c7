"""A check of a part finds wrong code; if the part cannot decide, the whole call needs the full check."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.verify.modules import ModuleReference, Verification
from autofuse.verify.partwise import PartwiseReference

X = torch.randn(8, 256, 16)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class WrongScale(Scale):
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


def test_correct_code_passes_and_the_part_is_named() -> None:
    one, other = _pair(Scale, Scale)
    outcome = PartwiseReference(ModuleReference(one, (X,))).check(other, [])
    assert outcome is not None and outcome.ok
    assert outcome.size == "2 of 8 rows, length 128 of 256"


def test_wrong_code_fails() -> None:
    one, other = _pair(Scale, WrongScale)
    outcome = PartwiseReference(ModuleReference(one, (X,))).check(other, [])
    assert outcome is not None and not outcome.ok


def test_code_that_is_wrong_only_on_the_whole_call_needs_the_full_check() -> None:
    one, other = _pair(Scale, WrongWhereLarge)
    assert PartwiseReference(ModuleReference(one, (X,))).check(other, []) is None


@pytest.mark.parametrize("misses", [["a module"]])
def test_a_forward_that_did_not_run_gives_no_verdict(misses: list[str]) -> None:
    one, other = _pair(Scale, Scale)
    assert PartwiseReference(ModuleReference(one, (X,))).check(other, misses) is None


def test_an_original_that_accepts_no_part_needs_the_full_check() -> None:
    one, other = _pair(OnlyWhole, OnlyWhole)
    assert PartwiseReference(ModuleReference(one, (X,))).check(other, []) is None


def test_a_small_call_has_no_part() -> None:
    one, _ = _pair(Scale, Scale)
    assert not PartwiseReference(ModuleReference(one, (X[:2, :64],))).can_decide


class Late(Scale):
    """Equals `Scale` on the part; beyond it, the rows `at` differ by the factor `by`."""

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
        (torch.bfloat16, slice(128, None), 1.05), (torch.bfloat16, slice(200, 201), 1.1),
        (torch.float16, slice(128, None), 1.02), (torch.float16, slice(200, 201), 1.1),
        (torch.float64, slice(128, None), 1.001), (torch.float64, slice(200, 201), 1.001),
    ],
)  # fmt: skip
def test_code_that_is_wrong_beyond_the_part_needs_the_full_check(dtype: torch.dtype, at: slice, by: float) -> None:
    one, other = _pair(Scale, Late)
    other.at, other.by = at, by  # type: ignore[attr-defined]
    reference = PartwiseReference(ModuleReference(one.to(dtype), (X.to(dtype),)))
    assert reference.check(other.to(dtype), []) is None
    other.by = 1.0  # type: ignore[attr-defined]
    found = reference.check(other, [])
    assert found is not None and found.ok


class Deep(nn.Module):
    """A residual network, whose results in half precision are off by some percent. One row may be wrong."""

    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = X.shape[-1]
        self.layers, self.by = nn.ModuleList(nn.Linear(width, width) for _ in range(20)), by

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        factors = torch.ones(x.shape[1], 1, dtype=x.dtype)
        factors[200:201] = self.by
        return x * factors


@pytest.mark.parametrize("by", [1.3, 0.7])
def test_one_wrong_row_of_a_deep_model_in_half_precision_is_noticed(by: float) -> None:
    reference = PartwiseReference(ModuleReference(Deep().bfloat16(), (X.bfloat16(),)))
    assert reference.check(Deep(by).bfloat16(), []) is None
    found = reference.check(Deep().bfloat16(), [])
    assert found is not None and found.ok


class RoundsOnce(Scale):
    """Rounds only once, as a fused kernel does."""

    def forward(self, x: Tensor) -> Tensor:
        linear = self.linear
        return torch.tanh(x.double() @ linear.weight.double().t() + linear.bias.double()).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_code_that_rounds_in_other_places_passes(dtype: torch.dtype) -> None:
    one, other = _pair(Scale, RoundsOnce)
    found = PartwiseReference(ModuleReference(one.to(dtype), (X.to(dtype),))).check(other.to(dtype), [])
    assert found is not None and found.ok


class Dropping(Scale):
    """Notes the calls, by mode and number of rows, in which it runs."""

    rate = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[bool, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((self.training, len(x)))
        return F.dropout(torch.tanh(self.linear(x)), self.rate, self.training)


class DroppingMore(Dropping):
    rate = 0.75


class WrongInEvaluation(Dropping):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if self.training else 1.01)


def _checked(original: type[Scale], rewritten: type[Scale], training: bool = True) -> tuple[Scale, Verification | None]:
    one, other = _pair(original, rewritten)
    reference = ModuleReference(one.train(training), (X,), parts_checked=True)
    return one, PartwiseReference(reference).check(other, [])


@pytest.mark.parametrize("training", [True, False])
def test_a_module_whose_parts_were_checked_runs_the_whole_call_in_training_and_in_its_own_mode(training: bool) -> None:
    one, outcome = _checked(Dropping, Dropping, training)
    assert outcome is not None and outcome.ok
    whole = [mode for mode, rows in one.calls if rows == len(X)]  # type: ignore[union-attr]
    assert whole == ([True] if training else [True, False])
    assert {mode for mode, rows in one.calls if rows < len(X)} == {True, False}  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [DroppingMore, WrongInEvaluation])
def test_a_module_whose_parts_were_checked_may_still_be_wrong(wrong: type[Scale]) -> None:
    _, outcome = _checked(Dropping, wrong)
    assert outcome is not None and not outcome.ok


def test_dropout_is_not_sampled_if_the_parts_were_checked_and_drop_at_the_same_rates() -> None:
    sampled, _ = _pair(Dropping, Dropping)
    PartwiseReference(ModuleReference(sampled, (X,))).check(Dropping(), [])
    one, _ = _checked(Dropping, Dropping)
    assert len(one.calls) < len(sampled.calls)  # type: ignore[arg-type]
