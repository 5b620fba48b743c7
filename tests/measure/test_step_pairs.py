"""Tests of timing whole steps until it is clear which is faster."""

from __future__ import annotations

import time

import torch

from autofuse.measure import step_pairs
from autofuse.measure.step_pairs import is_slower, longest_step, time_steps

CPU = torch.device("cpu")


def _sleeps(seconds: float) -> step_pairs.Action:
    return lambda: time.sleep(seconds)


def test_a_step_that_takes_three_times_as_long_is_slower() -> None:
    judged = time_steps(_sleeps(0.002), _sleeps(0.006), CPU)
    assert is_slower(judged) and judged.effect.ratio < 0.8


def test_a_step_that_takes_a_third_is_not_slower() -> None:
    judged = time_steps(_sleeps(0.006), _sleeps(0.002), CPU)
    assert not is_slower(judged) and judged.effect.ratio > 1.2


def test_pairs_end_at_the_time_limit(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(step_pairs, "TIME_LIMIT", 0.0)
    flips = iter(range(10_000))

    def unsteady() -> None:
        time.sleep(0.008 if next(flips) % 3 == 0 else 0.001)

    judged = time_steps(unsteady, unsteady, CPU)
    assert len(judged.timings.before) <= step_pairs.PAIR_COUNTS[-1]


def test_the_longest_step_leaves_time_for_the_minimum_of_pairs() -> None:
    assert longest_step(36.0) == 2.0
