"""The times of a step are one line of text."""

from __future__ import annotations

from dataclasses import replace

from autofuse.results.comparison import Interval
from autofuse.results.sites import Report
from autofuse.results.step_times import StepTime, step_mode

TIMED = StepTime("training", 0.17, 0.11, 1.54, Interval(1.48, 1.6), "confirmed", 8)
UNTIMED = StepTime("inference", not_timed="a step takes 0.2 ms")


def test_the_line_has_the_ratio_its_interval_and_both_times() -> None:
    assert str(TIMED) == "training step 1.54x (1.48 to 1.60): 110 ms, the original 170 ms"


def test_an_untimed_step_has_a_reason() -> None:
    assert str(UNTIMED) == "inference not timed: a step takes 0.2 ms"


def test_a_report_begins_with_the_steps() -> None:
    assert Report(steps=(TIMED, UNTIMED)).headline == f"{TIMED}; {UNTIMED}"
    assert Report().headline == "autofuse"


def test_the_dictionary_has_every_field() -> None:
    assert TIMED.to_dict() == {
        "mode": "training", "before_seconds": 0.17, "after_seconds": 0.11, "ratio": 1.54, "interval": [1.48, 1.6],
        "verdict": "confirmed", "pairs": 8, "clock": "wall", "not_timed": "", "remembered": False, "layers": "",
        "busy": None,
    }  # fmt: skip
    assert UNTIMED.to_dict()["interval"] is None


def test_each_mode_has_a_name() -> None:
    assert (step_mode(True), step_mode(False)) == ("training", "inference")


def test_a_time_of_an_earlier_process_is_marked_as_such() -> None:
    assert str(replace(TIMED, remembered=True)).endswith("(timed by an earlier process)")


def test_the_line_says_that_the_gpu_waits_for_python() -> None:
    waiting = str(replace(TIMED, busy=0.7))
    assert waiting.startswith(str(TIMED)) and "the GPU waits for Python in 30% of it" in waiting
    assert 'compile="auto"' in waiting
    assert str(replace(TIMED, busy=0.95)) == str(TIMED)
