"""The reasons for fusions that did not run or were rolled back.

Other tests produce most of them, and name their codes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.session.state import PATTERNS
from autofuse.reasons import outcomes
from autofuse.reasons.table import codes_of
from tests.reasons.programs import Refused, refused_site

RULE = '''
from __future__ import annotations
from typing import TYPE_CHECKING
from autofuse.rule import Captures, Fused, Holds, Rule, Verdict

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F


class Own(Rule):
    """A rule of one's own."""

    code = "MY101"

    @staticmethod
    def before(x):
        return torch.exp(torch.tanh(x))

    @staticmethod
    def after(x):
        return F.softplus(x)

    @staticmethod
    def where(captures: Captures) -> Verdict:
        assert captures.rank("x") is None, "the rule was never tried on a tensor"
        return Holds()

    examples = (Fused("as written", before="import torch\\ndef f(x): return torch.exp(torch.tanh(x))\\n"),)
'''
ELSEWHERE = {
    "logits-read": "tests/fx/session/test_lazy_heads.py",
    "no-loss-seen": "tests/fx/session/test_lazy_heads.py",
    "slow-products": "tests/fx/session/test_lazy_heads.py",
    "padding-not-faster": "tests/fx/session/test_padded_layers.py",
    "logits-unchecked": "tests/fx/session/test_lazy_heads.py",
    "never-called": "tests/fx/session/test_optimize.py",
    "not-verified": "tests/fx/session/test_memory_room.py",
    "whole-not-verified": "tests/fx/session/test_memory_room.py",
    "differs": "tests/fx/rewrite/test_after_expression.py",
    "whole-differs": "tests/fx/session/test_model_check.py",
    "not-faster": "tests/fx/session/test_gain_checks.py",
    "too-noisy": "tests/fx/session/test_site_timing.py",
    "slows-step": "tests/fx/session/test_whole_step.py",
    "compiled-is-faster": "tests/fx/session/test_compiling.py",
    "other-rank": "tests/fx/session/test_ranks.py",
    "out-of-memory": "tests/fx/session/test_out_of_memory.py",
    "internal-error": "tests/fx/session/test_internal_errors.py",
    "rule-failed": "tests/fx/session/test_internal_errors.py",
}
HERE = {"not-verified-yet", "called-in-many-ways", "graph-unreadable"}


class Attends(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return torch.softmax(q @ k.mT * scale, -1) @ v


class Smooth(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(torch.tanh(x))


def test_a_model_that_raises_is_verified_at_a_later_call() -> None:
    site = refused_site(Refused("not-verified-yet", "return F.softmax(q @ k.mT, -1) @ v + missing"))
    assert site.reason.startswith("not verified yet (the model raised NameError")
    assert site.advice == "pass example inputs that the module accepts"


def test_further_kinds_of_arguments_run_the_original() -> None:
    model, inputs = Attends(), tuple(torch.randn(3, 2, 4, 8))
    autofuse.optimize(model, (*inputs, 0.0), tune=False)
    for count in range(PATTERNS):
        model(*inputs, float(count + 1))
    (site,) = [s for s in autofuse.report(model) if s.reason_code == "called-in-many-ways"]
    assert site.reason == f"called with more than {PATTERNS} kinds of arguments: further kinds run the original forward"
    assert site.advice.startswith("use fewer combinations of flags")


def test_a_graph_that_cannot_be_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "own.py").write_text(RULE)
    (tmp_path / "pyproject.toml").write_text('[tool.autofuse]\nrules = ["rules/"]\n')
    monkeypatch.chdir(tmp_path)
    torch.compiler.reset()
    model = Smooth()
    torch.compile(model, backend="autofuse")(torch.randn(4, 8))
    (site,) = autofuse.analysis().sites
    assert (site.status, site.reason_code) == ("declined", "graph-unreadable")
    assert "never tried on a tensor" in site.reason


@pytest.mark.parametrize(("code", "file"), ELSEWHERE.items(), ids=list(ELSEWHERE))
def test_the_file_that_tests_a_reason_names_its_code(code: str, file: str) -> None:
    assert f'"{code}"' in (Path(__file__).parents[2] / file).read_text()


def test_every_reason_of_a_session_has_a_test() -> None:
    assert set(ELSEWHERE) | HERE == {c.name for c in codes_of(outcomes)}
