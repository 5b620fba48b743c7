"""Many actions in interleaved rounds: how often each runs, who is let go, what the control is."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest
import torch

from autofuse.measure.race import FEWEST, Race, _by_clock, race, typical, typical_interval
from autofuse.measure.timing import TimedRun

CPU = torch.device("cpu")


def test_every_action_runs_in_every_round_and_the_first_twice() -> None:
    counts = {"a": 0, "b": 0}

    def counted(name: str):  # type: ignore[no-untyped-def]
        def action() -> None:
            counts[name] += 1
            time.sleep(0.001)

        return action

    found = race({name: counted(name) for name in counts}, seconds=0.0, seed=0, device=CPU)
    assert len(found.samples["a"]) == len(found.samples["b"]) == len(found.control) == FEWEST
    assert counts == {"a": 2 * FEWEST, "b": FEWEST}
    assert all(s > 0.0009 for s in (*found.samples["a"], *found.control))


def test_a_plainly_slower_action_is_let_go_and_the_first_never() -> None:
    found = race({"slow": lambda: time.sleep(0.02), "slower": lambda: time.sleep(0.05), "quick": lambda: None},
                 seconds=0.0, seed=0, device=CPU)  # fmt: skip
    assert len(found.samples["slower"]) == 3
    assert len(found.samples["slow"]) == len(found.samples["quick"]) == FEWEST


def test_the_time_bounds_the_rounds() -> None:
    start = time.perf_counter()
    found = race({"a": lambda: time.sleep(0.002)}, seconds=0.05, seed=0, device=CPU)
    assert time.perf_counter() - start < 5
    assert FEWEST <= len(found.samples["a"]) <= 100


def test_the_garbage_collector_is_as_it_was() -> None:
    assert gc.isenabled()
    race({"a": lambda: None}, seconds=0.0, seed=0, device=CPU)
    assert gc.isenabled()


def test_nothing_to_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to time"):
        race({}, seconds=0.1, seed=0, device=CPU)


def test_disturbed_runs_do_not_change_what_is_typical() -> None:
    quiet, disturbed = [1.0, 1.1, 1.2, 1.3] * 5, [1.0, 1.1, 5.0, 9.0] * 5
    assert typical(quiet) == typical(disturbed) == 1.0
    interval = typical_interval(disturbed)
    assert 1.0 in interval and interval.high < 5
    for function in (typical, typical_interval):
        with pytest.raises(ValueError, match="no times"):
            function([])


def test_noise_is_the_ratio_of_identical_runs() -> None:
    steady = Race({"a": [1.0, 1.01] * 10}, [1.01, 1.0] * 10)
    assert 1.0 in steady.noise.interval and steady.noise.interval.high < 1.05
    assert Race({"a": [1.0, 3.0, 2.0, 9.0] * 5}, [9.0, 1.0, 4.0, 2.0] * 5).noise.interval.high > 1.2


def test_two_races_become_one() -> None:
    both = Race({"a": [1.0], "b": [5.0]}, [1.0]).followed_by(Race({"a": [2.0]}, [2.0]))
    assert both.samples == {"a": (1.0, 2.0), "b": (5.0,)}
    assert both.control == (1.0, 2.0)


def timed(seconds: float, core: float, alone: bool = True) -> TimedRun:
    return TimedRun(seconds, core, alone)


# Runs as (wall, core, whether the thread kept to one core), and the clock that counts.
CLOCKS = {
    "a core of its own": ([(1.0, 0.99, True)] * 8, "wall"),
    "a core that others want": ([(1.0, 0.4, True), (2.0, 0.4, True)] * 4, "core"),
    "a core that others want, and steps that wait": ([(1.0, 0.4, False), (2.0, 0.4, False)] * 4, "wall"),
    "a core that others want, and one step that waits": ([(2.0, 0.4, True)] * 9 + [(2.0, 0.4, False)], "core"),
}


@pytest.mark.parametrize("case", CLOCKS)
def test_runs_that_wait_for_a_core_are_compared_by_their_time_on_it(case: str) -> None:
    runs, clock = CLOCKS[case]
    found = _by_clock({"a": tuple(timed(*r) for r in runs)}, tuple(timed(*r) for r in runs))
    assert found.samples["a"] == found.control == tuple(r[clock == "core"] for r in runs)


def test_two_races_are_one_by_one_clock() -> None:
    quiet, busy = (timed(1.0, 1.0),) * 8, (timed(3.0, 1.0),) * 8
    found = _by_clock({"a": quiet}, quiet).followed_by(_by_clock({"a": busy}, busy))
    assert found.samples["a"] == found.control == (1.0,) * 16, "half of the time was spent waiting"


def test_a_race_beside_a_busy_process_finds_what_it_finds_alone() -> None:
    """Two steps of which one does twice the work, beside as many busy processes as there are cores."""
    x = torch.randn(1, 200_000)
    steps = {"once": lambda: torch.sin(x), "twice": lambda: torch.sin(torch.sin(x))}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        found = race(steps, seconds=0.2, seed=0, device=CPU)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    one, two = (typical(found.samples[name]) for name in steps)
    assert found.runs[1] and one < two
