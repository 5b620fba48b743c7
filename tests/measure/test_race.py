"""Many actions in interleaved rounds: how often each runs, who is let go, what the control is."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from autofuse.measure.race import FEWEST, median_interval, race

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


def test_the_interval_of_a_median_holds_it() -> None:
    interval = median_interval([1.0, 2.0, 3.0, 4.0, 100.0] * 4)
    assert 3.0 in interval
    assert interval.high < 100
    with pytest.raises(ValueError, match="no times"):
        median_interval([])
