"""A mutated program computes the same before and after: outputs, gradients and everything else that is visible.

A mutated program may still be fused. Then the fused code must compute what the mutated program computes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from tests.metamorphic import changing
from tests.metamorphic.draft import Draft
from tests.metamorphic.programs import Program, found_spellings, fused_examples, has_nan, kept_examples, lookalikes
from tests.metamorphic.rewriting import (
    CHANGING,
    PRESERVING,
    Step,
    each_of,
    live,
    outcome,
    rewritten,
    steps,
    text_of_findings,
    through_text,
)

MUTATED = steps(CHANGING, 1, 2)
REWRITTEN = steps(PRESERVING, 0, 2)
Count = Callable[[str, object], None]
# The assumptions in the messages of unsafe edits.
ASSUMED = ("assumes", "hooks would not run")
# What torch itself says where a tensor is written that the backward pass still needs: the original may have kept a
# copy, by chance.
WRITTEN_IN_PLACE = ("modified by an inplace operation", "is a view and its base or another view")


def check_text(program: Program, wanted: list[Step]) -> None:
    text = rewritten(program, wanted)
    now = outcome(program, text)
    if now.error or any(map(has_nan, now.results)):
        return
    for unsafe in (True, False):
        after, found = through_text(text, unsafe)
        taken = [f for f in found if f.status in ("safe", "unsafe")]
        if after == text or unsafe and any(a in f.reason for f in taken for a in ASSUMED):
            continue  # what an unsafe edit assumes, a mutation may well break
        if unsafe and "bfloat16" in text:
            continue  # an operation of autofuse's computes half precision in float32: its rounding is another
        new = outcome(program, after)
        if not any(t in new.error for t in WRITTEN_IN_PLACE):
            assert not now.off(new), f"{now.off(new)}\n{text_of_findings(found)}\n{text}\n->\n{after}"


def check_live(program: Program, wanted: list[Step]) -> None:
    text = rewritten(program, wanted)
    now = outcome(program, text)
    if "SEEN" in text:
        return  # a list outside the module is not watched: see spellings/not_yet.py
    if not now.error and not any(map(has_nan, now.results)):
        made = live(program, text)
        assert not made.off, f"{made.off}\n{made.report}\n{text}"


@pytest.mark.parametrize("program", [*fused_examples(), *kept_examples()], ids=str)
def test_the_codemod_keeps_the_results_of_a_mutated_example(program: Program, record_property: Count) -> None:
    @each_of(3, MUTATED, REWRITTEN)
    def check(mutations: list[Step], others: list[Step]) -> None:
        record_property("programs", 1)
        check_text(program, [*mutations, *others])

    check()


def test_the_codemod_keeps_the_results_of_mutated_spellings(record_property: Count) -> None:
    @each_of(100, st.sampled_from([*found_spellings(), *lookalikes()]), MUTATED, REWRITTEN)
    def check(program: Program, mutations: list[Step], others: list[Step]) -> None:
        record_property("programs", 1)
        check_text(program, [*mutations, *others])

    check()


def test_the_fx_pass_keeps_the_results_of_mutated_programs(record_property: Count) -> None:
    @each_of(8, st.sampled_from([*fused_examples(), *found_spellings(), *lookalikes()]), MUTATED)
    def check(program: Program, mutations: list[Step]) -> None:
        record_property("programs", 1)
        check_live(program, mutations)

    check()


@pytest.mark.parametrize("program", [p for p in fused_examples() if p.code == "AF101"], ids=str)
def test_a_value_that_is_used_afterwards_is_not_removed(program: Program) -> None:
    text = program.text.replace("return F.softmax", "weights = F.softmax").replace(
        " @ v\n", "\n    return weights @ v\n"
    )
    for kept in ("return weights @ v, weights", "SEEN.append(weights)\n    return weights @ v"):
        after, _ = through_text(text.replace("return weights @ v", kept))
        assert "scaled_dot_product_attention(" not in after


def test_every_mutation_applies_somewhere() -> None:
    programs = [*fused_examples(), *found_spellings()[::40]]
    idle = {m.__name__ for m in changing.ALL if not any(any(True for _ in m(Draft(p, p.text))) for p in programs)}
    assert not idle
