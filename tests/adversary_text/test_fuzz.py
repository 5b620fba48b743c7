"""No safe edit of a random program changes what it does, and no rewrite fails.

Every run by day draws the same programs. `python -m tests.adversary_text.fuzz SECONDS` draws many others.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.adversary_text.fuzz import OPTIONS, RandomProgram, errors_of, judge_program, known_options, random_programs

BY_DAY, BY_NIGHT = 40, 1500
_DRAWN = settings(deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def _draw(count: int) -> Counter[str]:
    """Draws `count` programs, and counts how many were edited, left or broken. Raises if a program is wrong."""
    counts: Counter[str] = Counter()

    @settings(_DRAWN, max_examples=count)
    @given(random_programs(known_options()))
    def one(found: RandomProgram) -> None:
        result = judge_program(found)
        assert not errors_of(result or []), f"{found.program.name}\n{found.program.text}\n{errors_of(result or [])}"
        counts[result[0].outcome if result else "broken"] += 1

    one()
    return counts


def test_random_programs_do_the_same_after_safe_edits() -> None:
    counts = _draw(BY_DAY)
    assert counts["edited"] >= BY_DAY // 10, counts


@pytest.mark.night
def test_many_random_programs_do_the_same_after_safe_edits() -> None:
    counts = _draw(BY_NIGHT)
    assert counts["edited"] >= BY_NIGHT // 10, counts


@pytest.mark.fast
def test_fuzz_known_txt_lists_existing_options() -> None:
    assert known_options() <= {f"{kind}: {name}" for kind, options in OPTIONS.items() for name in options}
