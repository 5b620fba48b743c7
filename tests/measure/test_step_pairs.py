"""Tests of timing whole steps until it is clear which is faster."""

from __future__ import annotations

import time

import torch

from autofuse.measure import step_pairs
from autofuse.measure.statistics import EARLY_PAIRS, FEWEST_PAIRS
from autofuse.measure.step_pairs import estimate_seconds, is_slower, longest_step, time_steps

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


def test_long_steps_that_are_far_apart_are_judged_after_few_pairs() -> None:
    judged = time_steps(_sleeps(0.15), _sleeps(0.05), CPU)
    assert (judged.judgement.verdict, len(judged.timings.before)) == ("confirmed", EARLY_PAIRS)
    judged = time_steps(_sleeps(0.05), _sleeps(0.15), CPU)
    assert (judged.judgement.verdict, len(judged.timings.before)) == ("regressed", EARLY_PAIRS)
    assert is_slower(judged)


def test_long_steps_that_are_equal_need_the_usual_number_of_pairs() -> None:
    judged = time_steps(_sleeps(0.06), _sleeps(0.06), CPU)
    assert len(judged.timings.before) >= FEWEST_PAIRS


def test_a_warm_step_runs_only_in_pairs() -> None:
    runs: list[str] = []

    def note(name: str) -> step_pairs.Action:
        return lambda: (runs.append(name), time.sleep(0.001))

    judged = time_steps(note("before"), note("after"), CPU, is_before_warm=True)
    assert runs[0] == "after" and runs.count("after") == runs.count("before") + 1
    assert runs.count("before") >= len(judged.timings.before)


def test_the_estimate_of_a_long_step_is_one_run() -> None:
    runs: list[int] = []
    assert estimate_seconds(lambda: (runs.append(1), time.sleep(0.06)), CPU) >= 0.06
    assert len(runs) == 1
    assert estimate_seconds(lambda: runs.append(1), CPU) < 0.06
    assert len(runs) == 5
