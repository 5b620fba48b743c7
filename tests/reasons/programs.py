"""Programs that are refused, through either door: what is said of each is compared with what is expected."""

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
    def forward(self, x, other=None):
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
    """A program, and what must be said of it: the code, a part of the line that is named ("" for none), the advice.

    `text`: a whole file, or the body of Block.forward(q, k, v, x=None), which stands behind HEAD.
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


def found_in_text(case: Refused) -> Finding:
    found = [p.finding for p in proposals(case.source.encode(), "f.py", rules=load_rules(), target=case.target)]
    told = [f for f in found if f.code == case.rule and f.reason_code == case.code]
    assert told, [(f.code, f.status, f.reason_code, f.reason) for f in found]
    return told[0]


def found_live(case: Refused, given: Any = None) -> SiteReport:
    """What optimize says of Block, which is called with `given` besides q, k and v."""
    torch.manual_seed(0)
    block = made(case)
    inputs = (*torch.randn(3, 2, 4, 8), given)
    sites = autofuse.report(autofuse.optimize(block, inputs, tune=False)).sites
    told = [s for s in sites if s.reason_code == case.code]
    assert told, [(s.rule, s.status, s.reason_code, s.reason) for s in sites]
    return told[0]


def made(case: Refused) -> nn.Module:
    """The module of a program, whose lines can be read."""
    file = f"refused {case.code}.py"
    linecache.cache[file] = (len(case.source), None, case.source.splitlines(keepends=True), file)
    module = ModuleType("refused")
    exec(compile(case.source, file, "exec"), module.__dict__)
    block: nn.Module = module.Block()
    return block


def check(found: Finding | SiteReport, case: Refused) -> None:
    """The code, the line and the advice are those that are expected."""
    assert found.status in ("declined", "report")
    said = (found.value_line, found.reason, found.advice)
    assert found.value_line == case.number, said
    assert case.number is None or f"line {case.number}" in found.reason, said
    assert case.advice in found.advice and bool(case.advice) == bool(found.advice), said


class Holder(SimpleNamespace):
    """An object that is no tensor, and not plain."""

    def other(self) -> Holder:
        return Holder(x=1)

    def change(self) -> None:
        self.x += 1

    def log(self, value: object) -> None:
        print(type(value).__name__)


__all__ = ["Holder", "Refused", "check", "found_in_text", "found_live", "made", "name_of"]
