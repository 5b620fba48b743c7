"""The runs of an original in one mode, and how little memory they keep."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autofuse.verify import expected as expected_module
from autofuse.verify.bounds import DRAWS
from autofuse.verify.expected import ExpectedRuns
from autofuse.verify.runs import ModuleCall


class Layer(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.linear, self.p = nn.Linear(8, 8), p

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(torch.tanh(self.linear(x)), self.p, self.training)


def expected_runs(p: float = 0.0, dtype: torch.dtype = torch.float32) -> ExpectedRuns:
    torch.manual_seed(0)
    return ExpectedRuns(Layer(p).to(dtype), ModuleCall((torch.randn(4, 8, dtype=dtype),), {}), True, None)


def test_randomly_rounded_runs_are_kept_as_sizes() -> None:
    found = expected_runs()
    spreads = found.rounded(found.unit)
    assert len(spreads) == DRAWS
    names = {"result", "gradient of x", "gradient of self.linear.weight", "gradient of self.linear.bias"}
    for one in spreads:
        assert one.keys() == names
        assert all(0 < s.root_mean_square <= s.largest < 1e-5 for s in one.values())
    assert found.rounded(found.unit) is spreads


def test_coarser_rounding_has_a_larger_spread() -> None:
    found = expected_runs()
    fine, coarse = found.rounded(2.0**-24)[0]["result"], found.rounded(2.0**-8)[0]["result"]
    assert coarse.largest > 1000 * fine.largest


def test_two_modes_with_equal_runs_share_tensors_and_keep_their_own_dropout_rates() -> None:
    torch.manual_seed(0)
    module, call = Layer(0.5), ModuleCall((torch.randn(4, 8),), {})
    training = ExpectedRuns(module, call, True, None)
    evaluation = ExpectedRuns(module, call, False, training)
    assert not evaluation.differs_by_mode()
    assert evaluation.own.tensors is training.own.tensors and evaluation.exact is training.exact
    assert training.own.rates == (0.5,) and evaluation.own.rates == ()


def test_every_result_and_gradient_has_an_error_of_the_original() -> None:
    found = expected_runs(dtype=torch.bfloat16)
    own = found.original_error("result")
    assert own is not None and 2**-12 < own < 2**-7
    assert found.original_error("gradient of self.linear.weight") and found.original_error("nothing") is None
    found.rounded(2.0**-4)
    assert (found.original_error("result") or 0.0) > 2 * own


def test_a_large_run_in_double_is_released_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = expected_runs()
    first = found.exact
    found.release_if_large()
    assert found.exact is first
    monkeypatch.setattr(expected_module, "SMALL", 0)
    found.release_if_large()
    again = found.exact
    assert again is not first and again is not None and first is not None
    assert all(torch.equal(again.tensors[n], t) for n, t in first.tensors.items())
