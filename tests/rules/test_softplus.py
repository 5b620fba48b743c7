"""Hand-written softplus: which edits are safe, and where results change."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.find.check import proposals

BARE = "torch.log(1 + torch.exp(x))"


def finding(expression: str, parameters: str = "x", name: str = "softplus") -> Finding:
    source = f"import torch\n\n\ndef {name}({parameters}):\n    return {expression}\n"
    (found,) = proposals(source.encode(), "file.py", rules=load_rules())
    return found.finding


def softplus_with_threshold(threshold: str) -> str:
    return f"torch.where(x > {threshold}, x, torch.log1p(torch.exp(x)))"


@pytest.mark.parametrize(
    "expression, why",
    [
        (BARE, "where exp(x) overflows, this code returns infinity"),
        ("torch.log1p(x.exp())", "where exp(x) overflows, this code returns infinity"),
        (softplus_with_threshold("20"), "in float16, exp overflows below the threshold"),
        (softplus_with_threshold("100.0"), "below the threshold exp overflows"),
    ],
)
def test_an_edit_that_removes_an_infinity_is_made_only_on_request(expression: str, why: str) -> None:
    found = finding(expression)
    assert (found.code, found.status) == ("AF308", "unsafe") and why in found.message


def test_a_threshold_below_which_nothing_overflows_is_safe() -> None:
    floats = softplus_with_threshold("11").replace("x,", "x.float(),").replace("(x", "(x.float()")
    assert finding(floats).status == "safe"
    assert "assumes that `x` is floating-point" in finding(softplus_with_threshold("11"), name="f").message


def test_if_the_threshold_may_be_a_tensor_only_the_inner_softplus_is_offered() -> None:
    found = finding(softplus_with_threshold("limit"), "x, limit")
    assert found.status == "unsafe" and "where exp(x) overflows" in found.message
    assert found.rule == "HandWrittenSoftplus" and finding(softplus_with_threshold("11")).rule == "ThresholdedSoftplus"


class Bare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(1.0 + torch.exp(x))


class Thresholded(nn.Module):
    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > self.threshold, x, torch.log1p(torch.exp(x)))


def test_optimize_changes_only_infinities() -> None:
    x = torch.tensor([-100.0, -20.0, -1.0, 0.0, 5.0, 19.0, 21.0, 80.0, 100.0])
    fused = autofuse.optimize(Bare(), (x,), tune=False)
    assert [s.rule for s in autofuse.report(fused).sites if s.status == "fused"] == ["AF308"]
    expected, found = Bare()(x), fused(x)
    assert expected[-1] == math.inf and found[-1] == 100.0
    torch.testing.assert_close(found[:-1], expected[:-1])


@pytest.mark.parametrize("threshold", [-1.0, 3.0, 20.0])
def test_optimize_passes_the_threshold_on(threshold: float) -> None:
    x = torch.linspace(-30.0, 30.0, 101)
    fused = autofuse.optimize(Thresholded(threshold), (x,), tune=False)
    assert [s.rule for s in autofuse.report(fused).sites if s.status == "fused"] == ["AF308"]
    torch.testing.assert_close(fused(x), Thresholded(threshold)(x))


@pytest.mark.parametrize("dtype, largest", [(torch.float16, 11.0), (torch.bfloat16, 88.0), (torch.float32, 88.0)])
def test_exp_overflows_at_the_limits_of_the_rule(dtype: torch.dtype, largest: float) -> None:
    at, above = torch.tensor([largest, largest + 1], dtype=dtype).exp()
    assert at.isfinite() and above.isinf()
