"""Each reason of the writers is given for a program, with its line and its advice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.reasons import writing
from autofuse.reasons.table import codes_of
from autofuse.results.sites import SiteReport
from tests.reasons.programs import Refused, check, found_in_text, name_of

TWO_STATEMENTS = "write the sum and its norm as two statements"
ATTENDS = "F.softmax(q @ k.mT, -1) @ v"

CASES = [
    Refused("written-twice", f"return {ATTENDS} + {ATTENDS}", "", "compute it once, and use its name"),
    Refused(
        "binds-name",
        "out = F.softmax((t := q * 2) @ k.mT, -1) @ v\nreturn out + t",
        "", "bind it by a statement of its own, before",
    ),
    Refused(
        "sum-not-apart",
        "y = self.fc(x)\ny += x\nreturn y + self.fc(self.norm(y))",
        "", TWO_STATEMENTS, "AF203",
    ),
    Refused("sum-unnamed", "q, v = q + self.fc(v), 1\nreturn q, self.norm(q)", "", TWO_STATEMENTS, "AF203"),
    Refused(
        "norm-elsewhere",
        "h = q + self.fc(v)\nself.count = 1\nreturn h, self.norm(h)",
        "", TWO_STATEMENTS, "AF203",
    ),
    Refused(
        "dtypes-may-differ", "return x * torch.rsqrt(x.half().pow(2).mean(-1, keepdim=True) + 1e-6)",
        "", "cast the input to the dtype of the result before the norm", "AF202",
    ),
    Refused(
        "import-too-late",
        "import torch\nq, k, v = torch.randn(3, 2, 4, 8)\nout = torch.softmax(q @ k.mT, -1) @ v\nimport os",
        "", "move the imports to the top of the file", "AF101", "autofuse",
    ),
    Refused(
        "helper-calls",
        """
        import torch


        def heated(s):
            told = print("heated")
            return s * 0.5


        def f(q, k, v):
            s = heated(q @ k.mT)
            return torch.softmax(s, -1) @ v
        """,
        "", "make that call where the helper is called",
    ),
    Refused(
        "head-stays",
        "if (p := F.softmax(q @ k.mT, -1)) is not None:\n    return p @ v",
        "", "compute it by a statement of its own, before",
    ),
    Refused(
        "deleted-together",
        "s = q @ k.mT\np = F.softmax(s, -1)\nn = x + 1\ndel s, n\nreturn p @ v",
        "", "give each name a `del` of its own",
    ),
    Refused(
        "name-written",
        """
        y = x - x.mean(-1, keepdim=True)
        return y.mul_(torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)), y
        """,
        "", "give the changed tensor a name of its own", "AF201",
    ),
    Refused(
        "layers-unnamed",
        "net = x\nreturn nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.ReLU())(q)",
        "", "assign the Sequential to an attribute of its own", "AF304", "autofuse",
    ),
    Refused(
        "mask-filled",
        "return lambda m: F.softmax((q @ k.mT).masked_fill(m == 0, -1e9), -1) @ v",
        "", "write the computation on lines of its own",
    ),
    Refused(
        "classes-not-last",
        "return -(q.log_softmax(2).gather(2, k.unsqueeze(2))).mean()",
        "", "move the classes to the last dimension", "AF501",
    ),
    Refused(
        "reduction-unread",
        "return F.nll_loss(F.log_softmax(q, -1).transpose(1, 2), k, reduction=x)",
        "", "fuse the live model with `autofuse.optimize`, which sees the tensors", "AF501",
    ),
    Refused(
        "value-out-of-reach",
        """
        s = q @ k.mT
        if x:
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        return s.softmax(-1) @ v
        """,
        "s = s.masked_fill", "assign it to a name that still holds it", "AF101",
    ),
    Refused(
        "attribute-changes",
        """
        if x:
            s = (q @ k.mT) / self.d
        else:
            s = (q @ k.mT) / self.d
        self.d = 3
        return F.softmax(s, -1) @ v
        """,
        "s = (q @ k.mT) / self.d", "assign it to a name that still holds it",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_reason_has_its_code_its_line_and_its_advice(case: Refused) -> None:
    check(found_in_text(case), case)


RULE = '''
from __future__ import annotations
from typing import TYPE_CHECKING
from autofuse.rule import Fused, Rule

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
        return {after}

    examples = (Fused("as written", before="import torch\\ndef f(x): return torch.exp(torch.tanh(x))\\n"),)
'''


class Smooth(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(torch.tanh(x))


class AsksForASize(nn.Module):
    """The number of keys is known to the child alone."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = Doubled()

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ self.keys(k).mT
        weights = scores.softmax(-1)
        return weights @ self.keys(k) * scores.size(-1)


class OneTargetForAll(nn.Module):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return (torch.logsumexp(x, 1) - x.gather(1, target[:, None])[:, 0]).mean()


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x.mT, scale_factor=2.0).mT


class SeesLayouts(nn.Module):
    """The child sees how its argument lies in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.weight, self.bias = Viewed(), nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x.mT
        centred = x - x.mean(-1, keepdim=True)
        x = centred / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * self.weight + self.bias
        return self.child(x)


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.deep(x.mT.view(-1, 8))


def declined(model: nn.Module, *inputs: Tensor) -> SiteReport:
    sites = autofuse.report(autofuse.optimize(model, inputs, tune=False)).with_status("declined")
    assert sites, autofuse.report(model)
    return sites[0]


@pytest.mark.parametrize(
    ("after", "code"), [("F.conv2d(x, x)", "operands-refused"), ("F.softplus(x[:1])", "other-shape")]
)
def test_a_rule_that_should_have_declined_is_told_of(
    after: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "own.py").write_text(RULE.replace("{after}", after))
    (tmp_path / "pyproject.toml").write_text('[tool.autofuse]\nrules = ["rules/"]\n')
    monkeypatch.chdir(tmp_path)
    site = declined(Smooth(), torch.randn(4, 8))
    assert (site.rule, site.reason_code, site.line is not None) == ("MY101", code, True)
    assert site.advice == "leave it as it is, and report it: the rule should have declined"


def test_a_size_that_nothing_else_tells_keeps_what_it_is_asked_of() -> None:
    site = declined(AsksForASize(), torch.randn(2, 4, 8), torch.randn(2, 4, 8))
    assert (site.reason_code, site.advice) == ("size-of-removed", "ask an operand for its size instead")


def test_what_a_child_would_see_lie_otherwise_is_left_alone() -> None:
    site = declined(SeesLayouts(), torch.randn(2, 4, 8))
    assert (site.rule, site.reason_code) == ("AF201", "other-layout")
    assert site.advice == "make the operand contiguous before: `x = x.contiguous()`"


def test_a_loss_of_one_target_for_all_rows_is_left_alone() -> None:
    site = declined(OneTargetForAll(), torch.randn(4, 8), torch.tensor([2]))
    assert (site.rule, site.reason_code) == ("AF501", "rows-unknown")
    assert site.advice == "give the loss one target for each row"


# No program is known that gives these: they keep what is written right where the writer cannot tell.
UNREACHED = {"operand-of-lines", "name-rebound", "value-in-child", "value-unspelled"}
BY_HAND = {"operands-refused", "other-shape", "size-of-removed", "other-layout", "rows-unknown"}


def test_every_reason_of_the_writers_is_given_for_a_program() -> None:
    assert {c.code for c in CASES} | BY_HAND | UNREACHED == {c.name for c in codes_of(writing)}
