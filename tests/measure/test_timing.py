"""Timing: the order of runs and what surrounds them. No test here asserts on how long anything took."""

from __future__ import annotations

import gc
import sys
import time

import pytest
import torch

from autofuse.measure.timing import Timings, interleaved, run, seconds_of, without_garbage_collection

CPU = torch.device("cpu")


def order_of(seed: int, pairs: int = 20, warmup: int = 0) -> str:
    runs: list[str] = []
    interleaved(lambda: runs.append("b"), lambda: runs.append("a"), pairs=pairs, warmup=warmup, seed=seed, device=CPU)
    return "".join(runs)


def test_both_run_once_in_every_pair() -> None:
    order = order_of(seed=0)
    assert {frozenset(order[i : i + 2]) for i in range(0, 40, 2)} == {frozenset("ab")}


def test_chance_decides_which_goes_first_and_the_seed_decides_chance() -> None:
    order = order_of(seed=0)
    assert {order[i : i + 2] for i in range(0, 40, 2)} == {"ab", "ba"}
    assert order == order_of(seed=0) != order_of(seed=1)


def test_both_are_warmed_up_before_the_first_pair() -> None:
    assert order_of(seed=0, pairs=1, warmup=3)[:6] == "bababa"


def test_only_pairs_are_timed_and_each_pair_is_announced() -> None:
    announced: list[int] = []
    times = interleaved(int, int, pairs=5, warmup=2, seed=0, device=CPU, done=lambda: announced.append(1))
    assert (len(times.before), len(times.after), len(announced)) == (5, 5, 5)
    assert all(seconds > 0 for seconds in (*times.before, *times.after))


def test_one_action_compared_with_itself_is_timed_on_both_sides() -> None:
    times = interleaved(int, int, pairs=3, warmup=0, seed=0, device=CPU)
    assert (len(times.before), len(times.after)) == (3, 3)


@pytest.mark.parametrize("pairs, warmup", [(0, 0), (-1, 3), (5, -1)])
def test_counts_that_make_no_sense_are_refused(pairs: int, warmup: int) -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        interleaved(int, int, pairs=pairs, warmup=warmup, seed=0, device=CPU)


def test_the_collector_rests_while_timing_and_works_again_afterwards() -> None:
    seen: list[bool] = []
    interleaved(lambda: seen.append(gc.isenabled()), int, pairs=2, warmup=1, seed=0, device=CPU)
    assert seen == [False] * 3
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_works_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        interleaved(lambda: 1 // 0, int, pairs=1, warmup=0, seed=0, device=CPU)
    assert gc.isenabled()


def test_the_number_of_threads_stays_the_callers() -> None:
    threads = torch.get_num_threads()
    seen: list[int] = []
    interleaved(lambda: seen.append(torch.get_num_threads()), int, pairs=1, warmup=0, seed=0, device=CPU)
    assert seen == [threads]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell whether a thread gave up its core")
def test_a_run_that_only_computes_is_alone_on_its_core() -> None:
    assert any(run(lambda: sum(range(50_000)), CPU).alone for _ in range(5))


def test_a_run_that_sleeps_is_not_for_it_waits_for_more_than_a_core() -> None:
    slept = run(lambda: time.sleep(0.002), CPU)
    assert not slept.alone
    assert slept.core < slept.seconds


def test_waiting_is_the_part_of_the_time_without_a_core() -> None:
    assert Timings((2.0, 2.0), (1.0, 3.0), (1.0, 1.0), (1.0, 1.0)).waiting == 0.5
    assert Timings((2.0,), (1.0,)).waiting is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_time_on_a_gpu_ends_when_the_gpu_is_idle() -> None:
    device = torch.device("cuda")
    x = torch.randn(4096, 4096, device=device)
    seconds_of(lambda: x @ x, device)
    assert torch.cuda.current_stream(device).query()
