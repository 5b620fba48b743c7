"""How long a thread waits for a core."""

from __future__ import annotations

import os
import time

import pytest

from autofuse.measure.core_queue import CoreQueue, seconds_in_queue


def test_a_thread_that_sleeps_waits_for_no_core() -> None:
    queue = CoreQueue()
    with queue.measure_block():
        time.sleep(0.05)
    assert queue.passed >= 0.05 and queue.share < 0.5  # it waits for a core only after it wakes


def test_two_processes_on_one_core_wait_for_each_other() -> None:
    if not seconds_in_queue():
        pytest.skip("the system does not tell")
    core, was = min(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    child = os.fork()
    if not child:
        end = time.perf_counter() + 0.6
        while time.perf_counter() < end:
            pass
        os._exit(0)
    try:
        queue, end = CoreQueue(), time.perf_counter() + 0.4
        with queue.measure_block():
            while time.perf_counter() < end:
                pass
        assert queue.share > 0.15  # a fair scheduler gives it half
    finally:
        os.waitpid(child, 0)
        os.sched_setaffinity(0, was)


def test_a_queue_in_which_nothing_passed_has_a_share_of_none() -> None:
    assert CoreQueue().share == 0.0
