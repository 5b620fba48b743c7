"""Tests of timing: the order of runs, warm-up and garbage collection. No test asserts how long anything takes."""

from __future__ import annotations

import gc
import sys
import time

import pytest
import torch

from autofuse.measure.timing import Timings, seconds_of, time_interleaved, time_run, without_garbage_collection

CPU = torch.device("cpu")


def order_of(seed: int, pairs: int = 20, warmup: int = 0) -> str:
    runs: list[str] = []
    time_interleaved(
        lambda: runs.append("b"), lambda: runs.append("a"), pairs=pairs, warmup=warmup, seed=seed, device=CPU
    )
    return "".join(runs)


def test_both_run_once_in_every_pair() -> None:
    order = order_of(seed=0)
    assert {frozenset(order[i : i + 2]) for i in range(0, 40, 2)} == {frozenset("ab")}


def test_the_order_is_random_and_depends_on_the_seed() -> None:
    order = order_of(seed=0)
    assert {order[i : i + 2] for i in range(0, 40, 2)} == {"ab", "ba"}
    assert order == order_of(seed=0) != order_of(seed=1)


def test_both_run_untimed_before_the_first_pair() -> None:
    assert order_of(seed=0, pairs=1, warmup=3)[:6] == "bababa"


def test_only_pairs_are_timed_and_each_pair_is_announced() -> None:
    announced: list[int] = []
    times = time_interleaved(int, int, pairs=5, warmup=2, seed=0, device=CPU, done=lambda: announced.append(1))
    assert (len(times.before), len(times.after), len(announced)) == (5, 5, 5)
    assert all(seconds > 0 for seconds in (*times.before, *times.after))


def test_one_action_compared_with_itself_is_timed_on_both_sides() -> None:
    times = time_interleaved(int, int, pairs=3, warmup=0, seed=0, device=CPU)
    assert (len(times.before), len(times.after)) == (3, 3)


@pytest.mark.parametrize("pairs, warmup", [(0, 0), (-1, 3), (5, -1)])
def test_invalid_counts_raise_an_error(pairs: int, warmup: int) -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        time_interleaved(int, int, pairs=pairs, warmup=warmup, seed=0, device=CPU)


def test_the_garbage_collector_is_off_during_timing_and_on_afterwards() -> None:
    observed: list[bool] = []
    time_interleaved(lambda: observed.append(gc.isenabled()), int, pairs=2, warmup=1, seed=0, device=CPU)
    assert observed == [False] * 3
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_garbage_collector_is_on_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        time_interleaved(lambda: 1 // 0, int, pairs=1, warmup=0, seed=0, device=CPU)
    assert gc.isenabled()


def test_the_number_of_threads_does_not_change() -> None:
    threads = torch.get_num_threads()
    observed: list[int] = []
    time_interleaved(lambda: observed.append(torch.get_num_threads()), int, pairs=1, warmup=0, seed=0, device=CPU)
    assert observed == [threads]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report whether a thread gave up its core")
def test_a_run_that_only_computes_keeps_its_core() -> None:
    assert any(time_run(lambda: sum(range(50_000)), CPU).kept_core for _ in range(5))


def test_a_run_that_sleeps_does_not_keep_its_core() -> None:
    sleeping_run = time_run(lambda: time.sleep(0.002), CPU)
    assert not sleeping_run.kept_core
    assert sleeping_run.core < sleeping_run.seconds


def test_waiting_is_the_part_of_the_time_without_a_core() -> None:
    assert Timings((2.0, 2.0), (1.0, 3.0), (1.0, 1.0), (1.0, 1.0)).waiting == 0.5
    assert Timings((2.0,), (1.0,)).waiting is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_time_on_a_gpu_ends_when_the_gpu_is_idle() -> None:
    device = torch.device("cuda")
    x = torch.randn(4096, 4096, device=device)
    seconds_of(lambda: x @ x, device)
    assert torch.cuda.current_stream(device).query()
