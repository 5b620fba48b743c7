"""Programs that are drawn at random: no safe edit changes what they do, and no rewrite goes wrong.

The same programs in every run by day; others, and many more, by `python -m tests.adversary_text.fuzz SECONDS`.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.adversary_text.fuzz import OPTIONS, Drawn, drawn, judged, known, wrong

BY_DAY, BY_NIGHT = 40, 1500
_DRAWN = settings(deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def _draw(count: int) -> Counter[str]:
    """How many of so many programs were edited, left and not judged; raises for one that is wrong."""
    counts: Counter[str] = Counter()

    @settings(_DRAWN, max_examples=count)
    @given(drawn(known()))
    def one(found: Drawn) -> None:
        result = judged(found)
        assert not wrong(result or []), f"{found.program.name}\n{found.program.text}\n{wrong(result or [])}"
        counts[result[0].outcome if result else "broken"] += 1

    one()
    return counts


def test_drawn_programs_do_what_they_did() -> None:
    counts = _draw(BY_DAY)
    assert counts["edited"] >= BY_DAY // 10, counts


@pytest.mark.night
def test_many_drawn_programs_do_what_they_did() -> None:
    counts = _draw(BY_NIGHT)
    assert counts["edited"] >= BY_NIGHT // 10, counts


@pytest.mark.fast
def test_what_is_left_out_is_an_option() -> None:
    assert known() <= {f"{kind}: {name}" for kind, options in OPTIONS.items() for name in options}
