"""How many pairs are timed and by which clock they are compared, on times that are made up."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch

from autofuse.measure import pair_count as deciding
from autofuse.measure.pair_count import LOOKS, Decided, decided, judged, warmed
from autofuse.measure.timing import Timings

CPU = torch.device("cpu")


def decided_on(monkeypatch: pytest.MonkeyPatch, ratio: float, spread: float, pairs: int | None = None) -> Decided:
    """The decision on a clock that is made up: `before` takes `ratio` times what `after` takes, give or take."""
    draws, now = random.Random(0), [0.0]
    monkeypatch.setattr("autofuse.measure.timing.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("autofuse.measure.timing._gave_up", lambda: None)  # of that clock the core's knows nothing

    def takes(seconds: float) -> Callable[[], None]:
        def action() -> None:
            now[0] += seconds * draws.lognormvariate(0, spread)

        return action

    return decided(takes(0.01 * ratio), takes(0.01), pairs=pairs, seed=0, device=CPU)


def test_a_clear_difference_takes_the_fewest_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = decided_on(monkeypatch, ratio=1.5, spread=0.02)
    assert (found.judgement.verdict, len(found.timings.before)) == ("confirmed", LOOKS[0])


def test_a_clear_equality_does_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = decided_on(monkeypatch, ratio=1.0, spread=0.01)
    assert (found.judgement.verdict, len(found.timings.before)) == ("no-change", LOOKS[0])


def test_a_tenth_under_much_noise_takes_more_pairs_and_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = decided_on(monkeypatch, ratio=1.1, spread=0.1)
    assert found.judgement.verdict == "confirmed"
    assert len(found.timings.before) in LOOKS[1:]


def test_noise_without_end_ends_with_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    found = decided_on(monkeypatch, ratio=1.0, spread=1.5)
    assert (found.judgement.verdict, len(found.timings.before)) == ("inconclusive", LOOKS[-1])


def test_patience_ends_it_too_but_not_before_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "PATIENCE", 0.7)
    found = decided_on(monkeypatch, ratio=1.0, spread=1.5)
    assert LOOKS[0] <= len(found.timings.before) < LOOKS[1]


def test_as_many_pairs_as_are_asked_for_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(decided_on(monkeypatch, ratio=1.0, spread=1.5, pairs=12).timings.before) == 12


def test_steps_that_waited_for_cores_are_compared_by_the_time_they_had_one() -> None:
    core = tuple(1.0 + i / 1000 for i in range(30))
    before, after = tuple(1.1 * c for c in core), core
    wall = tuple(2 * b for b in reversed(before)), tuple(2 * a for a in after)
    found = judged(Timings(*wall, before, after), seed=0)
    assert found.clock == "core"
    assert found.effect.ratio == pytest.approx(1.1)
    assert found.judgement.verdict == "confirmed"


def test_steps_that_hardly_waited_are_compared_by_the_clock_on_the_wall() -> None:
    wall = (1.0,) * 30
    found = judged(Timings(wall, wall, (0.96,) * 30, (0.98,) * 30), seed=0)
    assert (found.clock, found.effect.ratio) == ("wall", 1.0)


def test_with_cores_to_spare_the_number_of_threads_stays() -> None:
    threads = torch.get_num_threads()
    with warmed(int, int, warmup=1, device=CPU):
        assert torch.get_num_threads() == threads


def test_in_a_crowd_the_block_runs_with_one_thread_and_the_number_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    queued = iter((0.0, 1e6))
    monkeypatch.setattr(deciding, "_queued", lambda: next(queued))
    torch.set_num_threads(2)
    try:
        with warmed(lambda: sum(range(99)), lambda: sum(range(99)), warmup=1, device=CPU):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_a_step_with_threads_of_its_own_keeps_the_number_even_in_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: sum(range(200_000)))
        thread.start()
        thread.join()

    threads = torch.get_num_threads()
    queued = iter((0.0, 1e6))
    monkeypatch.setattr(deciding, "_queued", lambda: next(queued))
    torch.set_num_threads(2)
    try:
        with warmed(elsewhere, elsewhere, warmup=1, device=CPU):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
