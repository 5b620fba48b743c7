"""A refusal names the culprit, its line, and what to change. The FX pass and the codemod report the same."""

from __future__ import annotations

import linecache
import re
import textwrap
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from torch import nn

import autofuse
from autofuse.display.findings import annotation_of, line_of
from autofuse.ir.graph import Graph
from autofuse.loading.registry import load_rules
from autofuse.match.refusals import AuthorText, Refusal, refusal, unread
from autofuse.reasons import forwards, matches
from autofuse.reasons.reason import because
from autofuse.results.findings import Finding, as_json
from autofuse.results.sites import SiteReport
from autofuse.rule import Fails, Unknown
from autofuse.source.find.check import proposals

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.weight = nn.Parameter(torch.ones(8))
        self.maps = []

    def forward(self, q, k, v):
"""


@dataclass(frozen=True)
class Refused:
    """A forward, and what its refusal must contain: the value, and parts of the line, the reason and the advice."""

    name: str
    body: str
    value: str
    line: str
    reason: str
    advice: str
    rule: str = "AF101"

    @property
    def text(self) -> str:
        return HEAD + textwrap.indent(textwrap.dedent(self.body).strip("\n"), " " * 8) + "\n"

    @property
    def number(self) -> int:
        return next(n for n, line in enumerate(self.text.splitlines(), 1) if self.line in line)


BOTH = [
    Refused(
        "returned",
        "attn = torch.softmax(q @ k.mT * 0.3, -1)\nout = attn @ v\nreturn out, attn",
        "attn", "return out, attn", "the matrix of probabilities `attn` is returned", "return `attn` only if",
    ),
    Refused(
        "returned after dropout",
        "attn = self.drop(torch.softmax(q @ k.mT * 0.3, -1))\nreturn attn @ v, attn",
        "attn", "return attn @ v", "after dropout `attn` is returned", "return `attn` only if the caller requests it",
    ),
    Refused(
        "returned in part",
        "p = F.softmax(q @ k.mT, dim=-1)\nfirst = p[:, 0]\nreturn p @ v, first",
        "p", "return p @ v", "`p` is returned", "return `p` only if the caller requests it",
    ),
    Refused(
        "over the queries",
        "scores = q @ k.mT\nattn = scores.softmax(-2)\nreturn attn @ v",
        "attn", "scores.softmax(-2)", "`softmax` has the arguments (-2), and the rule needs (-1)", "`dim=-1`",
    ),
    Refused(
        "an operand is changed",
        "keys = k.clone()\nattn = (q @ keys.mT).softmax(-1)\nkeys.add_(1)\nreturn attn @ v + keys.sum()",
        "keys", "keys.add_(1)", "the operand `keys` is changed in place", "to a new name",
    ),
    Refused(
        "a scale that differs from key to key",
        "scale = v.sum(-1, keepdim=True).mT\nreturn torch.softmax(q @ k.mT * scale, -1) @ v",
        "scale", "scale = ", "may have another value for each key", "multiply the query by `scale`",
    ),
]  # fmt: skip

TEXT = [
    Refused(
        "an operand may be written",
        "keys = k.clone()\nattn = (q @ keys.mT).softmax(-1)\nkeys.random_(2)\nreturn attn @ v + keys.sum()",
        "keys", "keys.random_(2)", "the operand `keys`", "move that call before or after",
    ),
    Refused(
        "stored in a list",
        "p = F.softmax(q @ k.mT, -1)\nself.maps.append(p)\nreturn p @ v",
        "p", "self.maps.append(p)", "`p` is used by .append()", "only if the caller requests it",
    ),
    Refused(
        "stored in an attribute",
        "p = F.softmax(q @ k.mT, -1)\nself.last = p\nreturn p @ v",
        "p", "self.last = p", "`p` is stored in an attribute", "store `p` only if the caller requests it",
    ),
    Refused(
        "printed",
        "p = F.softmax(q @ k.mT, -1)\nprint(p.mean())\nreturn p @ v",
        "p", "print(p.mean())", "`p` is used by print()", "use `p` only if the caller requests it",
    ),
    Refused(
        "tested",
        "p = F.softmax(q @ k.mT, -1)\nif p.isnan().any():\n    return v\nreturn p @ v",
        "p", "if p.isnan()", "`p` is used by .isnan()", "use `p` only if the caller requests it",
    ),
    Refused(
        "asserted",
        "p = F.softmax(q @ k.mT, -1)\nassert p.max() <= 1\nreturn p @ v",
        "p", "assert p.max()", "`p` is asserted", "look at `p` only if the caller requests it",
    ),
    Refused(
        "yielded",
        "p = F.softmax(q @ k.mT, -1)\nyield p.mean()\nyield p @ v",
        "p", "yield p.mean()", "`p` is yielded", "pass `p` on only if the caller requests it",
    ),
    Refused(
        "in a loop",
        "p = F.softmax(q @ k.mT, -1)\nfor _ in range(3):\n    v = p @ v\nreturn v",
        "p", "p = F.softmax", "a part of it is in a `loop` block", "move all of it into that block",
    ),
]  # fmt: skip

LIVE = [
    Refused(
        "a norm with a tensor for eps",
        "eps = self.weight[0]\nreturn q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + eps) * self.weight",
        "eps", "eps = ", "eps is a tensor", "make `eps` a number", "AF202",
    ),
    Refused(
        "assigned",
        "p = F.softmax(q @ k.mT, -1)\nself.last = p\nreturn p @ v",
        "self.last", "self.last = p", "forward assigns to self.last", "under a flag", "",
    ),
    Refused(
        "branched on",
        "p = F.softmax(q @ k.mT, -1)\nif p.sum() > 3:\n    return v\nreturn p @ v",
        "p.sum() > 3", "if p.sum()", "needs the values in a tensor", "torch.where", "",
    ),
    Refused(
        "a global tensor",
        "p = F.softmax(q @ k.mT + SHIFT, -1)\nreturn p @ v",
        "F.softmax(q @ k.mT + SHIFT, -1)", "p = F.softmax(q", "a tensor that is not an argument", "as a buffer", "",
    ),
]  # fmt: skip


def case_id(case: Refused) -> str:
    return case.name


def found_in_text(case: Refused) -> Finding:
    found = [p.finding for p in proposals(case.text.encode(), "block.py", rules=load_rules())]
    (finding,) = [f for f in found if f.status == "declined" and f.code == case.rule and case.reason in f.reason]
    return finding


def found_live(case: Refused) -> SiteReport:
    torch.manual_seed(0)
    file = f"{case.name}.py"
    linecache.cache[file] = (len(case.text), None, case.text.splitlines(keepends=True), file)
    module = ModuleType("block")
    exec(compile(case.text, file, "exec"), module.__dict__)
    vars(module)["SHIFT"] = torch.ones(4, 4)
    block: nn.Module = module.Block()
    q, k, v = torch.randn(3, 2, 4, 8)
    sites = autofuse.report(autofuse.optimize(block, (q, k, v))).sites
    (site,) = [s for s in sites if s.status == "declined" and s.rule == case.rule and case.reason in s.reason]
    return site


@pytest.mark.parametrize("case", [*BOTH, *TEXT], ids=case_id)
def test_check_names_the_value_its_line_and_what_to_change(case: Refused) -> None:
    found = found_in_text(case)
    assert (found.value, found.value_line) == (case.value, case.number)
    assert f"line {case.number}" in found.reason and case.advice in found.advice
    assert found.advice.endswith((f", then {case.rule} applies", "as it is"))
    shown = "".join(text for text, _ in line_of(found))
    assert found.reason in shown and shown.endswith(f"; {found.advice}\n") and "\n" not in shown[:-1]
    assert found.advice.split(",")[0] in annotation_of(found).replace("%0A", "\n")


@pytest.mark.parametrize("case", [*BOTH, *LIVE], ids=case_id)
def test_the_report_names_the_value_its_line_and_what_to_change(case: Refused) -> None:
    found = found_live(case)
    assert (found.value, found.value_line) == (case.value, case.number)
    assert f"line {case.number}" in found.reason and case.advice in found.advice


@pytest.mark.parametrize("case", BOTH, ids=case_id)
def test_the_fx_pass_and_the_codemod_report_the_same(case: Refused) -> None:
    text, live = found_in_text(case), found_live(case)
    assert (live.reason, live.advice, live.reason_code) == (text.reason, text.advice, text.reason_code)


def test_the_report_of_optimize_prints_and_stores_the_advice() -> None:
    torch.manual_seed(0)
    report = autofuse.report(autofuse.optimize(_Returns(), tuple(torch.randn(3, 2, 4, 8))))
    (site,) = report.sites
    assert "only if the caller requests it" in re.sub(r"\s+", " ", str(report))
    told = report.to_dict()["sites"][0]
    assert (told["advice"], told["reason_code"]) == (site.advice, "value-returned") and site.value == "attn"


class _Returns(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        attn = torch.softmax(q @ k.mT, -1)
        return attn @ v, attn


def test_the_json_of_check_has_the_advice() -> None:
    (found,) = as_json([found_in_text(BOTH[0])])["findings"]  # type: ignore[misc]
    assert (found["value"], found["value_line"]) == ("attn", BOTH[0].number) and "requests it" in found["advice"]
    assert found["reason_code"] == "value-returned"


# From reasons to sentences.


def test_unknown_parts_are_omitted() -> None:
    value = Graph().const(1)
    told = refusal(Unknown("nothing is known"), "AF101", lambda v: AuthorText("x", 3))
    assert told == Refusal("nothing is known", code="rule-unknown")
    returned = because(matches.VALUE_RETURNED, what="a sum", which="a sum")
    told = refusal(Fails(returned, value, use=value), "AF101", lambda v: AuthorText())
    assert told.reason == "a sum is returned" and told.advice.startswith("return it only") and told.line is None


def test_a_rules_own_advice_comes_first() -> None:
    told = refusal(Fails("it is returned", advice="do this"), "MY101", lambda v: AuthorText())
    assert (told.advice, told.code) == ("do this, then MY101 applies", "rule-declined")


def test_advice_that_does_not_enable_the_rule_does_not_name_it() -> None:
    verdict = Fails("it is one already", advice="leave it as it is", enables=False)
    assert refusal(verdict, "MY101", lambda v: AuthorText()).advice == "leave it as it is"


def test_a_rules_sentence_and_advice_may_contain_braces() -> None:
    verdict = Fails("{x} is a set", Graph().const(1), "write `{1}` for {value}")
    told = refusal(verdict, "MY101", lambda v: AuthorText("y", 2))
    assert told.reason == "{x} is a set: `y` (line 2)" and told.advice == "write `{1}` for `y`, then MY101 applies"


def test_the_refusal_of_a_forward_quotes_the_expression() -> None:
    told = unread(because(forwards.NEEDS_NUMBERS, name="bool"), AuthorText("x > 0", 4))
    assert told.reason == "forward needs the values in a tensor (bool): `x > 0` (line 4)" and told.advice
