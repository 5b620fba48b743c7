"""Users' rules work in the codemod and in the FX pass: one file edits sources, fuses models, and computes the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.loading.named_object import resolve_name
from autofuse.loading.registry import load_rules
from autofuse.project.run import rewrite_text

KERNELS = """
import torch
import torch.nn.functional as F


def squared_relu(x):
    return F.relu(x).square()


def standardize(x, *, dim=-1, eps=1e-5):
    return (x - x.mean(dim, keepdim=True)) / (x.std(dim, keepdim=True) + eps)


def token_rms(x):
    return x.square().mean(dim=(1, 2), keepdim=True).sqrt()


def hinge(scores, target):
    return (1 - scores * target).clamp(min=0).mean()


def entropy(logits):
    logged = logits.log_softmax(-1)
    return -(logged.exp() * logged).sum(-1)


def reglu(x, gate, up):
    return F.relu(F.linear(x, gate)) * F.linear(x, up)
"""
RULE = """
from __future__ import annotations
from typing import TYPE_CHECKING
from autofuse.rule import Fused, Holds, Rule

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from kernels_for_rules import entropy, hinge, reglu, squared_relu, standardize, token_rms


class Own(Rule):
    \"\"\"One of many.\"\"\"

    code = "ZZ100"
    benefit = 9

    @staticmethod
    def before({parameters}):
        {before}

    @staticmethod
    def after({parameters}):
        return {after}

    @staticmethod
    def where(captures):
        return Holds()

    examples = (Fused("as tested", before={example!r}),)
"""


@dataclass(frozen=True)
class Own:
    """A rule, code in another spelling, and the number of its tensors. `positive`: they are between 0 and 1."""

    parameters: str
    before: str
    after: str
    code: tuple[str, ...]
    tensors: str = "x"
    positive: bool = False

    @property
    def example(self) -> str:
        return self.source(self.code[0])

    def source(self, code: str) -> str:
        return f"import torch\nimport torch.nn.functional as F\n\n\ndef f({self.tensors}):\n    return {code}\n"


RULES = {
    "log-sum-exp": Own(
        "x",
        "return torch.log(torch.sum(torch.exp(x), dim=-1))",
        "torch.logsumexp(x, dim=-1)",
        ("x.exp().sum(-1).log()", "torch.log(x.exp().sum(dim=-1))"),
    ),
    "log-sum-exp, stable": Own(
        "x",
        "m = x.amax(-1, keepdim=True); return m + torch.log(torch.sum(torch.exp(x - m), dim=-1, keepdim=True))",
        "torch.logsumexp(x, dim=-1, keepdim=True)",
        ("(x - x.amax(dim=-1, keepdim=True)).exp().sum(-1, keepdim=True).log() + x.amax(-1, keepdim=True)",),
    ),
    "cosine similarity": Own(
        "x, y",
        "return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))",
        "F.cosine_similarity(x, y, dim=-1)",
        (
            "torch.sum(y * x, dim=-1) / (torch.norm(x, dim=-1) * torch.norm(y, dim=-1))",
            "(x * y).sum(dim=-1) / x.pow(2).sum(-1).sqrt() / y.norm(dim=-1)",
        ),
        "x, y",
    ),
    "squared ReLU": Own(
        "x",
        "return torch.relu(x) ** 2",
        "squared_relu(x)",
        ("F.relu(x).square()", "torch.relu(x) * torch.relu(x)", "x.clamp(min=0) ** 2"),
    ),
    "RMS over tokens": Own(
        "x",
        "return torch.sqrt((x ** 2).mean(dim=(1, 2), keepdim=True))",
        "token_rms(x)",
        ("x.pow(2).mean((1, 2), True) ** 0.5",),
    ),
    "huber loss": Own(
        "x, y, delta",
        "e = torch.abs(x - y); return torch.where(e < delta, 0.5 * e ** 2, delta * (e - 0.5 * delta)).mean()",
        "F.huber_loss(x, y, delta=delta)",
        ("torch.where((x - y).abs() < 0.5, (x - y).abs().square() / 2, 0.5 * ((x - y).abs() - 0.5 * 0.5)).mean()",),
        "x, y",
    ),
    "leaky ReLU": Own(
        "x, slope",
        "return torch.where(x > 0, x, slope * x)",
        "F.leaky_relu(x, slope)",
        ("torch.where(0 < x, x, x * 0.1)",),
    ),
    "standardising": Own(
        "x, eps",
        "return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)",
        "standardize(x, eps=eps)",
        ("(x - torch.mean(x, dim=-1, keepdim=True)) / (torch.std(x, dim=-1, keepdim=True) + 1e-6)",),
    ),
    "logit": Own("x", "return torch.log(x / (1 - x))", "torch.logit(x)", ("(x / (1.0 - x)).log()",), positive=True),
    "logit, by differences": Own(
        "x",
        "return torch.log(x) - torch.log1p(-x)",
        "torch.logit(x)",
        ("torch.log(x) - torch.log(1 - x)",),
        positive=True,
    ),
    "hinge": Own(
        "x, y",
        "return torch.clamp(1 - x * y, min=0).mean()",
        "hinge(x, y)",
        ("F.relu(1 - y * x).mean()",),
        "x, y",
    ),
    "entropy": Own(
        "x",
        "p = torch.softmax(x, dim=-1); return -(p * torch.log(p)).sum(-1)",
        "entropy(x)",
        ("-(F.softmax(x, -1) * F.softmax(x, -1).log()).sum(dim=-1)",),
    ),
    "a gated unit": Own(
        "x, gate, up",
        "return torch.relu(F.linear(x, gate)) * F.linear(x, up)",
        "reglu(x, gate, up)",
        ("F.linear(x, up) * F.linear(x, gate).relu()",),
        "x, gate, up",
    ),
    "log of a sigmoid": Own(
        "x",
        "return torch.log(torch.sigmoid(x))",
        "F.logsigmoid(x)",
        ("x.sigmoid().log()", "torch.log(1 / (1 + torch.exp(-x)))"),
    ),
    "mean squared error": Own(
        "x, y",
        "return ((x - y) ** 2).mean()",
        "F.mse_loss(x, y)",
        ("torch.mean(torch.square(x - y))", "(x - y).pow(2).mean()"),
        "x, y",
    ),
    "two-dimensional softmax": Own(
        "x",
        "return torch.exp(x) / torch.exp(x).sum(dim=(-2, -1), keepdim=True)",
        "F.softmax(x.flatten(-2), dim=-1).view(x.shape)",
        ("x.exp() / x.exp().sum((-2, -1), True)",),
    ),
}
CASES = [pytest.param(own, code, id=f"{name}: {code}") for name, own in RULES.items() for code in own.code]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a folder of rules and a package that the rule calls."""
    (tmp_path / "my_rules").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.autofuse]\nrules = ["my_rules/"]\n')
    (tmp_path / "kernels_for_rules.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "kernels_for_rules", raising=False)
    resolve_name.cache_clear()
    return tmp_path


def written(project: Path, own: Own) -> None:
    text = RULE.format(
        parameters=own.parameters,
        before="\n        ".join(own.before.split("; ")),
        after=own.after,
        example=own.example,
    )
    (project / "my_rules" / "own.py").write_text(text)


def function(source: str) -> Callable[..., Tensor]:
    namespace: dict[str, Any] = {}
    exec(compile(source, "<a file>", "exec"), namespace)
    made: Callable[..., Tensor] = namespace["f"]
    return made


def operands(own: Own) -> list[Tensor]:
    torch.manual_seed(0)
    given = [torch.randn(4, 6, 6, dtype=torch.double), *(torch.randn(6, 6, dtype=torch.double) for _ in range(2))]
    if own.tensors == "x, y":
        given = [given[0], torch.randn(4, 6, 6, dtype=torch.double)]
    if own.positive:
        given = [g.sigmoid() for g in given]
    return [g.requires_grad_() for g in given[: own.tensors.count(",") + 1]]


def results(f: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    """The results of a function and its gradients."""
    out = f(*given)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), given)]


@pytest.mark.parametrize(("own", "code"), CASES)
def test_a_file_is_rewritten_and_computes_the_same(project: Path, own: Own, code: str) -> None:
    written(project, own)
    rules = [r for r in load_rules((project / "my_rules",)) if r.rule.code == "ZZ100"]
    result = rewrite_text(own.source(code), rules)
    called = own.after.partition("(")[0]
    assert f"return {called}(" in result
    given = operands(own)
    torch.testing.assert_close(results(function(result), given), results(function(own.source(code)), given))


def module(own: Own, code: str, folder: Path) -> nn.Module:
    """A module in a separate file that computes `code`."""
    text = (
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\nclass Runs(nn.Module):\n"
        f"    def forward(self, {own.tensors}):\n        return {code}\n"
    )
    (folder / "runs.py").write_text(text)
    namespace: dict[str, Any] = {"__name__": "runs"}
    exec(compile(text, str(folder / "runs.py"), "exec"), namespace)
    made: nn.Module = namespace["Runs"]()
    return made


@pytest.mark.parametrize(("own", "code"), CASES)
def test_a_model_is_fused_and_computes_the_same(project: Path, own: Own, code: str) -> None:
    written(project, own)
    model, given = module(own, code, project), operands(own)
    expected = results(model, given)
    autofuse.optimize(model, tuple(given), select="ZZ100", tune=False)
    report = autofuse.report(model)
    assert [s.status for s in report.sites] == ["fused"], report
    torch.testing.assert_close(results(model, given), expected)
