"""Tests of the number of pairs and the choice of the clock, with synthetic times."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch

from autofuse.measure import pair_count as deciding
from autofuse.measure.pair_count import PAIR_COUNTS, JudgedTimings, judge_timings, time_and_judge, warm_up
from autofuse.measure.timing import Timings

CPU = torch.device("cpu")


def judge_with_fake_clock(
    monkeypatch: pytest.MonkeyPatch, ratio: float, spread: float, pairs: int | None = None
) -> JudgedTimings:
    """Runs time_and_judge with a fake clock. `before` takes `ratio` times as long as `after`, with random noise."""
    draws, now = random.Random(0), [0.0]
    monkeypatch.setattr("autofuse.measure.timing.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("autofuse.measure.timing._count_voluntary_switches", lambda: None)  # no core clock

    def takes(seconds: float) -> Callable[[], None]:
        def action() -> None:
            now[0] += seconds * draws.lognormvariate(0, spread)

        return action

    return time_and_judge(takes(0.01 * ratio), takes(0.01), pairs=pairs, seed=0, device=CPU)


def test_a_clear_difference_needs_only_the_minimum_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = judge_with_fake_clock(monkeypatch, ratio=1.5, spread=0.02)
    assert (judged.judgement.verdict, len(judged.timings.before)) == ("confirmed", PAIR_COUNTS[0])


def test_a_clear_equality_needs_only_the_minimum_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = judge_with_fake_clock(monkeypatch, ratio=1.0, spread=0.01)
    assert (judged.judgement.verdict, len(judged.timings.before)) == ("no-change", PAIR_COUNTS[0])


def test_ten_percent_under_much_noise_need_more_pairs_and_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = judge_with_fake_clock(monkeypatch, ratio=1.1, spread=0.1)
    assert judged.judgement.verdict == "confirmed"
    assert len(judged.timings.before) in PAIR_COUNTS[1:]


def test_constant_noise_ends_with_the_last_check(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = judge_with_fake_clock(monkeypatch, ratio=1.0, spread=1.5)
    assert (judged.judgement.verdict, len(judged.timings.before)) == ("inconclusive", PAIR_COUNTS[-1])


def test_the_time_limit_ends_it_but_not_before_the_first_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "TIME_LIMIT", 0.7)
    judged = judge_with_fake_clock(monkeypatch, ratio=1.0, spread=1.5)
    assert PAIR_COUNTS[0] <= len(judged.timings.before) < PAIR_COUNTS[1]


def test_the_requested_number_of_pairs_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(judge_with_fake_clock(monkeypatch, ratio=1.0, spread=1.5, pairs=12).timings.before) == 12


def test_steps_that_waited_for_cores_are_compared_by_core_time() -> None:
    core = tuple(1.0 + i / 1000 for i in range(30))
    before, after = tuple(1.1 * c for c in core), core
    wall = tuple(2 * b for b in reversed(before)), tuple(2 * a for a in after)
    judged = judge_timings(Timings(*wall, before, after), seed=0)
    assert judged.clock == "core"
    assert judged.effect.ratio == pytest.approx(1.1)
    assert judged.judgement.verdict == "confirmed"


def test_steps_that_hardly_waited_are_compared_by_wall_clock_time() -> None:
    wall = (1.0,) * 30
    judged = judge_timings(Timings(wall, wall, (0.96,) * 30, (0.98,) * 30), seed=0)
    assert (judged.clock, judged.effect.ratio) == ("wall", 1.0)


def test_with_free_cores_the_number_of_threads_stays() -> None:
    threads = torch.get_num_threads()
    with warm_up(int, int, warmup=1, device=CPU):
        assert torch.get_num_threads() == threads


def test_with_busy_cores_the_block_runs_with_one_thread_and_the_number_is_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = torch.get_num_threads()
    queued = iter((0.0, 1e6))
    monkeypatch.setattr(deciding, "seconds_in_queue", lambda: next(queued))
    torch.set_num_threads(2)
    try:
        with warm_up(lambda: sum(range(99)), lambda: sum(range(99)), warmup=1, device=CPU) as pairs:
            assert torch.get_num_threads() == 1
            assert pairs.timings().before_core, "the pairs that showed that steps stay on one core are kept"
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_a_step_with_its_own_threads_keeps_the_number_also_with_busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_in_a_thread() -> None:
        thread = threading.Thread(target=lambda: sum(range(200_000)))
        thread.start()
        thread.join()

    threads = torch.get_num_threads()
    queued = iter((0.0, 1e6))
    monkeypatch.setattr(deciding, "seconds_in_queue", lambda: next(queued))
    torch.set_num_threads(2)
    try:
        with warm_up(run_in_a_thread, run_in_a_thread, warmup=1, device=CPU) as pairs:
            assert torch.get_num_threads() == 2
            assert pairs.runs == ([], []), "runs with another number of threads do not count"
    finally:
        torch.set_num_threads(threads)
