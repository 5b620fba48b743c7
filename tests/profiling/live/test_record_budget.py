"""How many steps are recorded."""

from __future__ import annotations

import pytest

from autofuse.profiling.live.record_budget import FEWEST, MOST, steps_to_record


@pytest.mark.parametrize(
    ("seconds", "count"), [([0.001], MOST), ([0.2, 0.2, 0.21], 10), ([30.0], FEWEST), ([], FEWEST), ([0.0], MOST)]
)
def test_two_seconds_of_steps_are_recorded_three_to_twenty(seconds: list[float], count: int) -> None:
    assert steps_to_record(None, seconds) == count


def test_a_requested_number_of_steps_is_recorded() -> None:
    assert steps_to_record(1, [0.001]) == 1
