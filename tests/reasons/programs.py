"""Programs that the codemod or the FX pass refuses, and the expected refusals."""

from __future__ import annotations

import linecache
import textwrap
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

import autofuse
from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.results.sites import SiteReport
from autofuse.source.find.check import proposals
from autofuse.source.targets import DEFAULT

HEAD = """\
import random
import weakref
import torch
import torch.nn.functional as F
from torch import nn


OUTSIDE = nn.Linear(8, 8)
KEPT = []
SHIFT = torch.ones(4, 4)
LARGE = dict.fromkeys(range(300), 1.0) | {"a": 2.0}


class Scaled:
    by = 0.5

    def __init__(self):
        self.by = 0.25


SCALED = Scaled()


class Tagged(nn.Parameter):
    pass


class Child(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, other=None):
        self.calls = self.calls + 1
        return x * 2, 3.5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 8)
        self.child = Child()
        self.others = [OUTSIDE]
        self.maps = []
        self.steps = iter(range(3))
        self.weak = weakref.ref(SCALED)
        self.tag = Tagged(torch.ones(8))

"""


@dataclass(frozen=True)
class Refused:
    """A program that is refused, and what the refusal must contain.

    Attributes:
        code: the name of the reason.
        text: a whole file, or the body of Block.forward(q, k, v, x=None) after HEAD.
        line: a part of the line that the refusal names; "" if it names none.
        advice: a part of the advice.
        rule: the code of the rule.
        target: the library whose calls are written.
    """

    code: str
    text: str
    line: str = ""
    advice: str = ""
    rule: str = "AF101"
    target: str = DEFAULT

    @property
    def source(self) -> str:
        text = textwrap.dedent(self.text).strip("\n") + "\n"
        if text.startswith(("import", "from", "class", "def", "#")):
            return text
        return f"{HEAD}    def forward(self, q, k, v, x=None):\n{textwrap.indent(text, ' ' * 8)}"

    @property
    def number(self) -> int | None:
        lines = enumerate(self.source.splitlines(), 1)
        return next(n for n, line in lines if self.line in line) if self.line else None


def name_of(case: Refused) -> str:
    return f"{case.code} ({case.rule})" if case.target == DEFAULT else f"{case.code} ({case.target})"


def refused_finding(case: Refused) -> Finding:
    """The finding of the codemod that has the reason."""
    findings = [p.finding for p in proposals(case.source.encode(), "f.py", rules=load_rules(), target=case.target)]
    matching = [f for f in findings if f.code == case.rule and f.reason_code == case.code]
    assert matching, [(f.code, f.status, f.reason_code, f.reason) for f in findings]
    return matching[0]


def refused_site(case: Refused, extra: Any = None) -> SiteReport:
    """The site of `optimize` that has the reason. Block is called with q, k, v and `extra`."""
    torch.manual_seed(0)
    block = make_block(case)
    inputs = (*torch.randn(3, 2, 4, 8), extra)
    sites = autofuse.report(autofuse.optimize(block, inputs, tune=False)).sites
    matching = [s for s in sites if s.reason_code == case.code]
    assert matching, [(s.rule, s.status, s.reason_code, s.reason) for s in sites]
    return matching[0]


def make_block(case: Refused) -> nn.Module:
    """The module that a program defines. Its source lines are readable."""
    file = f"refused {case.code}.py"
    linecache.cache[file] = (len(case.source), None, case.source.splitlines(keepends=True), file)
    module = ModuleType("refused")
    exec(compile(case.source, file, "exec"), module.__dict__)
    block: nn.Module = module.Block()
    return block


def check(found: Finding | SiteReport, case: Refused) -> None:
    """Asserts that the code, the line and the advice are those of `case`."""
    assert found.status in ("declined", "report")
    actual = (found.value_line, found.reason, found.advice)
    assert found.value_line == case.number, actual
    assert case.number is None or f"line {case.number}" in found.reason, actual
    assert case.advice in found.advice and bool(case.advice) == bool(found.advice), actual


class Holder(SimpleNamespace):
    """An object that is neither a tensor nor plain data."""

    def other(self) -> Holder:
        return Holder(x=1)

    def change(self) -> None:
        self.x += 1

    def log(self, value: object) -> None:
        print(type(value).__name__)


__all__ = ["Holder", "Refused", "check", "make_block", "name_of", "refused_finding", "refused_site"]
