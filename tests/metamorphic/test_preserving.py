"""An equivalent program is fused like the original, and computes the same before and after, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from autofuse.reasons import writing
from tests.metamorphic import structure, temporaries
from tests.metamorphic.programs import Program, found_spellings, fused_examples
from tests.metamorphic.rewriting import (
    PRESERVING,
    TYPESETTING,
    Step,
    each_of,
    live,
    original,
    outcome,
    rewritten,
    steps,
    text_of_findings,
    through_text,
)

# What stands partly in a function of its own, partly outside, is not always rewritten in text: the function may be
# called elsewhere. Live models have no such borders.
IN_PARTS = {
    structure.compute_in_a_helper, structure.compute_in_a_method, structure.compute_in_a_static_method,
    structure.compute_in_a_nested_function,
}  # fmt: skip
# A sum and its norm are one call with two results, which stands where `x = x + f(x)` did: a plain assignment.
TWO_RESULTS = ("PreNorm", "PreRmsNorm")
OTHER_ASSIGNMENTS = {temporaries.name_a_part_in_passing, temporaries.name_a_part_with_its_type}
WRITTEN = steps(PRESERVING, 1, 5)
SET = steps(TYPESETTING, 0, 2)
Count = Callable[[str, object], None]


def excused_in_text(program: Program, wanted: list[Step]) -> bool:
    made = {transformation for transformation, _ in wanted}
    return bool(made & IN_PARTS) or program.name.startswith(TWO_RESULTS) and bool(made & OTHER_ASSIGNMENTS)


def check_text(program: Program, wanted: list[Step], layout: list[Step]) -> None:
    text = rewritten(program, wanted, layout)
    now = outcome(program, text)
    assert not original(program).off(now), f"the transformations are wrong: {original(program).off(now)}\n{text}"
    after, found = through_text(text)
    assert not now.off(outcome(program, after)), f"{now.off(outcome(program, after))}\n{text}\n->\n{after}"
    if not excused_in_text(program, wanted) and not any(f.reason_code == writing.LONGER.name for f in found):
        fused = [f for f in found if f.code == program.code and f.status in ("safe", "unsafe")]
        assert fused, f"{text_of_findings(found)}\n{text}"


def check_live(program: Program, wanted: list[Step]) -> None:
    text = rewritten(program, wanted)
    made = live(program, text)
    assert not made.off, f"{made.off}\n{made.report}\n{text}"
    if structure.record not in {transformation for transformation, _ in wanted}:  # a context may be anything
        assert any(s.rule == program.code and s.status == "fused" for s in made.sites), f"{made.report}\n{text}"


@pytest.mark.parametrize("program", fused_examples(), ids=str)
def test_every_spelling_of_an_example_is_rewritten(program: Program, record_property: Count) -> None:
    @each_of(3, WRITTEN, SET)
    def check(wanted: list[Step], layout: list[Step]) -> None:
        record_property("programs", 1)
        check_text(program, wanted, layout)

    check()


@pytest.mark.parametrize("program", fused_examples(), ids=str)
def test_every_spelling_of_an_example_is_optimized(program: Program, record_property: Count) -> None:
    @each_of(1, WRITTEN)
    def check(wanted: list[Step]) -> None:
        record_property("programs", 1)
        check_live(program, wanted)

    check()


def test_every_variant_of_the_spellings_is_rewritten(record_property: Count) -> None:
    @each_of(40, st.sampled_from([p for p in found_spellings() if "text" in p.entry_points]), WRITTEN, SET)
    def check(program: Program, wanted: list[Step], layout: list[Step]) -> None:
        record_property("programs", 1)
        check_text(program, wanted, layout)

    check()


def test_every_variant_of_the_spellings_is_optimized(record_property: Count) -> None:
    @each_of(8, st.sampled_from([p for p in found_spellings() if "live" in p.entry_points]), WRITTEN)
    def check(program: Program, wanted: list[Step]) -> None:
        record_property("programs", 1)
        check_live(program, wanted)

    check()
