"""The timeline of one step."""

from __future__ import annotations

from autofuse.profiling.trace.scope import scope_of
from autofuse.profiling.trace.timeline import spans_of
from tests.profiling.trace.building import Entry, kernel, launch, op, step, trace

GEMM = "ampere_sgemm_128x64_nn"


def spans(*entries: Entry) -> list[tuple[str, str, str, float, float]]:
    found = spans_of(scope_of(trace(*entries)))
    return [(s.lane, s.kind, s.name, round(s.start * 1e6, 6), round(s.seconds * 1e6, 6)) for s in found]


def test_phases_and_streams_have_their_lanes() -> None:
    found = spans(step(1, 100, 1000), launch(1, 110), kernel(200, 300, name=GEMM, correlation=1))
    assert found == [("phases", "forward", "forward", 100, 300), ("GPU stream 7", "matmul", GEMM, 100, 300)]


def test_neighbours_of_a_kind_are_one_bar_named_by_the_longest() -> None:
    found = spans(
        step(1, 0, 1000),
        op("aten::mm", 100, 50),
        op("aten::bmm", 151, 100),
        op("aten::softmax", 400, 50),
        op("aten::_softmax", 410, 30),
    )
    assert found[-2:] == [
        ("thread 1", "matmul", "aten::bmm", 100, 151),
        ("thread 1", "softmax", "aten::_softmax", 410, 30),
    ]


def test_the_step_of_middle_length_is_shown() -> None:
    steps = (step(1, 0, 100), step(2, 100, 900), step(3, 1000, 500))
    found = spans(*steps, *(op("aten::mm", at + 10, 80) for at in (0, 100, 1000)))
    assert [bar[3:] for bar in found] == [(10, 80), (10, 80)]


def test_a_trace_of_no_time_has_no_bars() -> None:
    assert spans_of(scope_of(trace())) == ()


def test_work_from_before_the_step_is_shown_from_the_steps_start() -> None:
    assert spans(step(1, 50, 100), kernel(0, 100)) == [("GPU stream 7", "other", "kernel", 0, 50)]


def test_work_that_outlasts_the_step_is_shown_completely() -> None:
    found = spans(step(1, 50, 100), op("aten::mm", 10, 60), op("aten::mm", 100, 100))
    assert [bar[3:] for bar in found if bar[0] == "thread 1"] == [(0, 20), (50, 50)]
