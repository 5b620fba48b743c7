"""The steps that count, in traces written by hand. test_layers.py tests the pieces of a step."""

from __future__ import annotations

from autofuse.profiling.trace.owned_time import shorter_half
from autofuse.profiling.trace.steps import Steps


def test_the_shorter_half_of_the_steps_is_kept_in_order() -> None:
    kept = shorter_half(Steps(((0, 50), (50, 60), (60, 90), (90, 110), (110, 130)), 5, "5 steps"))
    assert kept.windows == ((50, 60), (90, 110), (110, 130))
    assert (kept.count, kept.basis) == (3, "the 3 shortest of 5 steps")


def test_one_step_stays() -> None:
    one = Steps(((0, 50),), 1, "1 step")
    assert shorter_half(one) is one
    assert shorter_half(Steps(((0, 50), (50, 60)), 2, "2 steps")).basis == "the shortest of 2 steps"


def test_steps_that_are_not_marked_one_by_one_stay_as_they_are() -> None:
    whole = Steps(((0, 50),), 4, "the whole trace, 4 steps")
    assert shorter_half(whole) is whole
