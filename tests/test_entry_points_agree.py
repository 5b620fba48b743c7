"""The codemod and the FX pass agree: the rewritten file and the optimized model compute the same.

They also agree on the rules and places: the same codes, and a site of the FX pass is in the lines of the finding.
"""

from __future__ import annotations

import pytest

from tests.metamorphic.programs import Program, found_spellings, fused_examples
from tests.metamorphic.rewriting import TIMES, live, outcome, text_of_findings, through_text

LAYOUT = 2  # lines: the FX pass includes a change of layout in the site, which the codemod leaves as it is
# Programs for which they differ, and why. Strict: an entry for which they agree fails.
DIFFERENT: dict[str, str] = {}
BOTH = [
    p
    for p in [*fused_examples(), *found_spellings()[:: 1 if TIMES > 1 else 8]]
    if {"live", "text"} <= {*p.entry_points}
]


def mark_program(program: Program) -> object:
    reason = DIFFERENT.get(program.name)
    return pytest.param(
        program, id=program.name, marks=[pytest.mark.xfail(reason=reason, strict=True)] if reason else []
    )


@pytest.mark.parametrize("program", [mark_program(p) for p in BOTH])
def test_both_entry_points_find_the_same_sites_and_compute_the_same(program: Program) -> None:
    text, found = through_text(program.text)
    made = live(program, program.text)
    assert not made.off, f"{made.off}\n{made.report}"
    assert not made.outcome.off(outcome(program, text)), text
    written = [f for f in found if f.status in ("safe", "unsafe")]
    for site in (
        s for s in made.sites if s.status == "fused" and not s.reason
    ):  # with a reason, it is part of a wider match
        here = [f for f in written if f.code == site.rule and f.line <= (site.line or 0) <= f.end_line + LAYOUT]
        assert here, f"live only: {site}\n{text_of_findings(found)}\n{program.text}"
    applied = {s.rule for s in made.sites if s.status == "fused"}
    wider = [f for f in written if f.code not in applied]  # a part of a wider match that only the FX pass finds
    assert not [f for f in wider if f.code == program.code], (
        f"text only: {text_of_findings(wider)}\n{made.report}\n{program.text}"
    )
