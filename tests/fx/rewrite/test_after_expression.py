"""The FX pass builds nodes for an `after` that calls functions of any module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.rewrite.after_expression import kernel_name
from autofuse.loading.named_object import resolve_name
from autofuse.rule import RuleError

RULE = '''
from __future__ import annotations
from typing import TYPE_CHECKING
from autofuse.rule import Fused, Rule

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from {module} import Kernels


class Softplus(Rule):
    """Softplus by hand."""

    code = "MY101"
    benefit = 9  # more than AF308, which matches the same code

    @staticmethod
    def before(x, factor: float = 1.0):
        return torch.log(1 + torch.exp(x)) * factor

    @staticmethod
    def after(x, factor):
        return {after}

    examples = (Fused("as written", before="import torch\\ndef f(x): return torch.log(1 + torch.exp(x))\\n"),)
'''
KERNELS = """
import torch


class Kernels:
    @staticmethod
    def softplus(x, by=1.0):
        assert isinstance(x, torch.Tensor)
        return torch.nn.functional.softplus(x, threshold=1000) * by
"""


class Smooth(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 8)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(1 + torch.exp(self.dense(x))) * self.factor


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_rules").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.autofuse]\nrules = ["my_rules/"]\n')
    (tmp_path / "kernels_of_mine.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "kernels_of_mine", raising=False)
    resolve_name.cache_clear()
    return tmp_path


def write_rule(project: Path, after: str, module: str = "kernels_of_mine") -> None:
    (project / "my_rules" / "own.py").write_text(RULE.replace("{after}", after).replace("{module}", module))


AFTERS = (
    "F.softplus(x)",
    "Kernels.softplus(x, by=factor)",
    "F.softplus(torch.neg(-x), threshold=1e3)",
    "F.softplus(x.reshape(-1, x.shape[-1])[:, :], beta=1).view(x.size())",
    "torch.logaddexp(torch.zeros(1, dtype=torch.float64), x)",
)


@pytest.mark.parametrize("after", AFTERS)
def test_a_model_runs_what_the_rule_calls_and_computes_the_same(project: Path, after: str) -> None:
    write_rule(project, after)
    model, x = Smooth().double(), torch.randn(4, 8, dtype=torch.double)
    expected = model(x)
    autofuse.optimize(model, x, select="MY101", tune=False)
    assert [s.status for s in autofuse.report(model).sites] == ["fused"], autofuse.report(model)
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(model(x[:3]), expected[:3])


def test_a_number_that_the_code_multiplies_with_reaches_the_function(project: Path) -> None:
    write_rule(project, "Kernels.softplus(x, by=factor)")
    model, x = Smooth(3.0).double(), torch.randn(4, 8, dtype=torch.double)
    expected = model(x)
    autofuse.optimize(model, x, select="MY101", tune=False)
    assert [s.kernel for s in autofuse.report(model).sites] == ["kernels_of_mine.Kernels.softplus"]
    torch.testing.assert_close(model(x), expected)


def test_an_after_that_computes_something_else_is_rolled_back(project: Path) -> None:
    write_rule(project, "F.relu(x)")
    model, x = Smooth().double(), torch.randn(4, 8, dtype=torch.double)
    expected = model(x)
    autofuse.optimize(model, x, select="MY101", tune=False)
    (site,) = autofuse.report(model).sites
    assert (site.status, site.reason_code) == ("rolled-back", "differs")
    torch.testing.assert_close(model(x), expected)


def test_the_site_can_be_timed(project: Path) -> None:
    write_rule(project, "Kernels.softplus(x, by=factor)")
    model, x = Smooth(), torch.randn(2048, 8)
    autofuse.optimize(model, x, select="MY101", tune=True)
    (site,) = autofuse.report(model).sites
    assert "not measured" not in site.reason


def test_a_function_that_cannot_be_imported_is_an_error_with_its_name(project: Path) -> None:
    write_rule(project, "Kernels.softplus(x)", module="nowhere_to_be_found")
    with pytest.raises(RuleError, match=r"Softplus.after uses nowhere_to_be_found.Kernels.softplus, which"):
        autofuse.optimize(Smooth(), select="MY101")


def test_reports_name_the_function() -> None:
    assert kernel_name("torch.nn.functional.softplus") == "torch softplus"
    assert kernel_name("my_package.ops.fast") == "my_package.ops.fast"
    assert kernel_name("rms_norm") == "torch rms_norm"
