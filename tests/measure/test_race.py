"""Tests of races: how often each action runs, which actions are dropped, and the control."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest
import torch

from autofuse.measure.race import MIN_ROUNDS, Race, _race_by_best_clock, race, typical, typical_interval
from autofuse.measure.timing import TimedRun

CPU = torch.device("cpu")


def test_every_action_runs_in_every_round_and_the_first_twice() -> None:
    counts = {"a": 0, "b": 0}

    def count_calls(name: str):  # type: ignore[no-untyped-def]
        def action() -> None:
            counts[name] += 1
            time.sleep(0.001)

        return action

    result = race({name: count_calls(name) for name in counts}, seconds=0.0, seed=0, device=CPU)
    assert len(result.samples["a"]) == len(result.samples["b"]) == len(result.control) == MIN_ROUNDS
    assert counts == {"a": 2 * MIN_ROUNDS, "b": MIN_ROUNDS}
    assert all(s > 0.0009 for s in (*result.samples["a"], *result.control))


def test_a_clearly_slower_action_is_dropped_but_never_the_first() -> None:
    result = race({"slow": lambda: time.sleep(0.02), "slower": lambda: time.sleep(0.05), "quick": lambda: None},
                 seconds=0.0, seed=0, device=CPU)  # fmt: skip
    assert len(result.samples["slower"]) == 3
    assert len(result.samples["slow"]) == len(result.samples["quick"]) == MIN_ROUNDS


def test_the_time_bounds_the_rounds() -> None:
    start = time.perf_counter()
    result = race({"a": lambda: time.sleep(0.002)}, seconds=0.05, seed=0, device=CPU)
    assert time.perf_counter() - start < 5
    assert MIN_ROUNDS <= len(result.samples["a"]) <= 100


def test_the_garbage_collector_is_restored() -> None:
    assert gc.isenabled()
    race({"a": lambda: None}, seconds=0.0, seed=0, device=CPU)
    assert gc.isenabled()


def test_a_race_without_actions_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to time"):
        race({}, seconds=0.1, seed=0, device=CPU)


def test_disturbed_runs_do_not_change_the_typical_time() -> None:
    quiet, disturbed = [1.0, 1.1, 1.2, 1.3] * 5, [1.0, 1.1, 5.0, 9.0] * 5
    assert typical(quiet) == typical(disturbed) == 1.0
    interval = typical_interval(disturbed)
    assert 1.0 in interval and interval.high < 5
    for function in (typical, typical_interval):
        with pytest.raises(ValueError, match="typical time of an empty list"):
            function([])


def test_noise_is_the_ratio_of_identical_runs() -> None:
    steady = Race({"a": [1.0, 1.01] * 10}, [1.01, 1.0] * 10)
    assert 1.0 in steady.noise.interval and steady.noise.interval.high < 1.05
    assert Race({"a": [1.0, 3.0, 2.0, 9.0] * 5}, [9.0, 1.0, 4.0, 2.0] * 5).noise.interval.high > 1.2


def test_two_races_can_be_joined() -> None:
    both = Race({"a": [1.0], "b": [5.0]}, [1.0]).followed_by(Race({"a": [2.0]}, [2.0]))
    assert both.samples == {"a": (1.0, 2.0), "b": (5.0,)}
    assert both.control == (1.0, 2.0)


def time_action(seconds: float, core: float, kept_core: bool = True) -> TimedRun:
    return TimedRun(seconds, core, kept_core)


# Runs as (wall-clock seconds, core seconds, whether the thread stayed on one core), and the clock that is used.
CLOCKS = {
    "a core of its own": ([(1.0, 0.99, True)] * 8, "wall"),
    "a core that others want": ([(1.0, 0.4, True), (2.0, 0.4, True)] * 4, "core"),
    "a core that others want, and steps that wait": ([(1.0, 0.4, False), (2.0, 0.4, False)] * 4, "wall"),
    "a core that others want, and one step that waits": ([(2.0, 0.4, True)] * 9 + [(2.0, 0.4, False)], "core"),
}


@pytest.mark.parametrize("case", CLOCKS)
def test_runs_that_wait_for_a_core_are_compared_by_core_time(case: str) -> None:
    runs, clock = CLOCKS[case]
    result = _race_by_best_clock({"a": tuple(time_action(*r) for r in runs)}, tuple(time_action(*r) for r in runs))
    assert result.samples["a"] == result.control == tuple(r[clock == "core"] for r in runs)


def test_joined_races_use_one_clock() -> None:
    quiet, busy = (time_action(1.0, 1.0),) * 8, (time_action(3.0, 1.0),) * 8
    result = _race_by_best_clock({"a": quiet}, quiet).followed_by(_race_by_best_clock({"a": busy}, busy))
    assert result.samples["a"] == result.control == (1.0,) * 16, "half of the time was spent waiting"


def test_busy_processes_do_not_change_the_result_of_a_race() -> None:
    """Races two steps, one with twice the work, while as many busy processes run as there are cores."""
    x = torch.randn(1, 200_000)
    steps = {"once": lambda: torch.sin(x), "twice": lambda: torch.sin(torch.sin(x))}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        result = race(steps, seconds=0.2, seed=0, device=CPU)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    single, double = (typical(result.samples[name]) for name in steps)
    assert result.runs[1] and single < double
