"""The module that the source door rewrites and the one that the live door optimizes compute the same.

And the doors agree on which rules apply where: the same codes, and a live site lies in the lines of the finding.
"""

from __future__ import annotations

import pytest

from tests.metamorphic.programs import Program, fused_examples, spelled
from tests.metamorphic.rewriting import TIMES, live, outcome, through_text, told

LAYOUT = 2  # lines: the live door takes a layout of the result with it, which the text leaves as it is written
# Where the doors differ, and why. Strict: an entry that agrees fails its test.
DIFFERENT: dict[str, str] = {}
BOTH = [p for p in [*fused_examples(), *spelled()[:: 1 if TIMES > 1 else 8]] if {"live", "text"} <= {*p.doors}]


def marked(program: Program) -> object:
    reason = DIFFERENT.get(program.name)
    return pytest.param(
        program, id=program.name, marks=[pytest.mark.xfail(reason=reason, strict=True)] if reason else []
    )


@pytest.mark.parametrize("program", [marked(p) for p in BOTH])
def test_both_doors_find_the_same_and_compute_the_same(program: Program) -> None:
    text, found = through_text(program.text)
    made = live(program, program.text)
    assert not made.off, f"{made.off}\n{made.report}"
    assert not made.outcome.off(outcome(program, text)), text
    written = [f for f in found if f.status in ("safe", "unsafe")]
    for site in (s for s in made.sites if s.status == "fused" and not s.reason):  # a reason: part of a wider match
        here = [f for f in written if f.code == site.rule and f.line <= (site.line or 0) <= f.end_line + LAYOUT]
        assert here, f"live only: {site}\n{told(found)}\n{program.text}"
    applied = {s.rule for s in made.sites if s.status == "fused"}
    wider = [f for f in written if f.code not in applied]  # a part of a wider match that only the live door makes
    assert not [f for f in wider if f.code == program.code], f"text only: {told(wider)}\n{made.report}\n{program.text}"
