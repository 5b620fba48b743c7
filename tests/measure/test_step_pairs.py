"""Whole steps are timed until it is clear which is faster."""

from __future__ import annotations

import time

import torch

from autofuse.measure import step_pairs
from autofuse.measure.step_pairs import is_slower, longest_step, timed_steps

CPU = torch.device("cpu")


def _sleeps(seconds: float) -> step_pairs.Action:
    return lambda: time.sleep(seconds)


def test_a_step_that_takes_three_times_as_long_is_slower() -> None:
    found = timed_steps(_sleeps(0.002), _sleeps(0.006), CPU)
    assert is_slower(found) and found.effect.ratio < 0.8


def test_a_step_that_takes_a_third_is_not_slower() -> None:
    found = timed_steps(_sleeps(0.006), _sleeps(0.002), CPU)
    assert not is_slower(found) and found.effect.ratio > 1.2


def test_pairs_end_when_patience_does(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(step_pairs, "PATIENCE", 0.0)
    flips = iter(range(10_000))

    def unsteady() -> None:
        time.sleep(0.008 if next(flips) % 3 == 0 else 0.001)

    found = timed_steps(unsteady, unsteady, CPU)
    assert len(found.timings.before) <= step_pairs.LOOKS[-1]


def test_the_longest_step_leaves_time_for_the_fewest_pairs() -> None:
    assert longest_step(36.0) == 2.0
