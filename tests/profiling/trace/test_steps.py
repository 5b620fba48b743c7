"""The steps of a trace. Times of events are in microseconds, results in nanoseconds."""

from __future__ import annotations

import pytest

from autofuse.profiling.trace.steps import steps_of
from tests.profiling.trace.building import entry, kernel, launch, mark, op, step, trace


def windows(*entries: dict[str, object]) -> list[tuple[float, float]]:
    return [(start / 1000, end / 1000) for start, end in steps_of(trace(*entries)).windows]


def test_steps_follow_the_profilers_marks() -> None:
    steps = steps_of(trace(step(3, 10, 20), op("aten::mm", 12, 5), step(4, 30, 40), op("aten::mm", 32, 5)))
    assert steps.windows == ((10_000, 30_000), (30_000, 70_000))
    assert (steps.count, steps.nanoseconds, steps.seconds) == (2, 60_000, pytest.approx(30e-6))
    assert steps.basis == "2 steps (ProfilerStep#3 to #4)"


def test_a_step_lasts_until_the_gpu_has_done_what_was_launched_in_it() -> None:
    assert windows(step(1, 0, 10), launch(5, 8), kernel(9, 21, correlation=5)) == [(0, 30)]


def test_a_step_never_lasts_into_the_next_one() -> None:
    first = (step(1, 0, 10), launch(5, 8), kernel(9, 21, correlation=5))
    assert windows(*first, step(2, 12, 8), launch(6, 13), kernel(30, 5, correlation=6)) == [(0, 12), (12, 35)]


def test_work_without_a_launch_belongs_to_the_step_that_it_begins_in() -> None:
    assert windows(step(1, 0, 10), kernel(9, 21), kernel(50, 5)) == [(0, 30)]


def test_work_launched_outside_of_steps_moves_no_end() -> None:
    assert windows(step(1, 10, 10), op("aten::mm", 11, 1), launch(5, 2), kernel(19, 30, correlation=5)) == [(10, 20)]


def test_a_last_step_without_work_does_not_count() -> None:
    steps = steps_of(trace(step(1, 0, 100), op("aten::mm", 1, 2), step(2, 100, 1)))
    assert steps.windows == ((0, 100_000),)
    assert "1 left out, because nothing ran" in steps.basis


def test_a_last_step_that_the_profiler_cut_short_does_not_count() -> None:
    entries = (step(1, 0, 100), op("aten::mm", 1, 2), step(2, 100, 100), op("aten::mm", 101, 2))
    assert windows(*entries, step(3, 200, 9), op("aten::item", 201, 2)) == [(0, 100), (100, 200)]
    assert len(windows(*entries, step(3, 200, 11), op("aten::item", 201, 2))) == 3


def test_marks_of_the_gpu_do_not_count_twice() -> None:
    twin = entry("ProfilerStep#1", "gpu_user_annotation", 5, 20, 7, 0)
    assert windows(step(1, 0, 10), op("aten::mm", 1, 2), twin) == [(0, 10)]


def test_without_the_hosts_marks_the_gpus_marks_are_used() -> None:
    twin = entry("ProfilerStep#1", "gpu_user_annotation", 5, 20, 7, 0)
    assert windows(twin, kernel(6, 10)) == [(5, 25)]


def test_marks_of_old_versions_are_operators() -> None:
    assert windows(op("ProfilerStep#1", 0, 10), op("aten::mm", 1, 2)) == [(0, 10)]


def test_without_marks_the_whole_trace_is_one_step() -> None:
    profiler = entry("PyTorch Profiler (0)", "Trace", 0, 999, "PyTorch Profiler", "Spans")
    steps = steps_of(trace(op("aten::mm", 10, 5), kernel(12, 28), profiler))
    assert (steps.windows, steps.count) == (((10_000, 40_000),), 1)
    assert "marks none" in steps.basis


def test_without_marks_steps_of_the_optimizer_are_counted() -> None:
    steps = steps_of(trace(op("aten::mm", 0, 5), *(mark("Optimizer.step#AdamW.step", at, 10) for at in (20, 50, 80))))
    assert (steps.windows, steps.count) == (((0, 90_000),), 3)
    assert steps.seconds == pytest.approx(30e-6)


def test_an_empty_trace_takes_no_time() -> None:
    assert steps_of(trace()).nanoseconds == 0
