"""Many actions in interleaved rounds: how often each runs, who is let go, what the control is."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from autofuse.measure.race import FEWEST, Race, race, typical, typical_interval

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
