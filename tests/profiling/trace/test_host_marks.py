"""The host's ranges, which show what its threads do."""

from __future__ import annotations

from autofuse.profiling.trace.host_marks import Marks
from tests.profiling.trace.building import Entry, launch, mark, op, step, trace

NODE = "autograd::engine::evaluate_function: MmBackward0"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def phase(of: Entry, *marks: Entry) -> str:
    return Marks(trace(*marks).events).phase_at(trace(of).events[0])


def test_a_call_has_the_phase_of_the_range_it_begins_in() -> None:
    marks = (
        mark(LOADER, 0, 10),
        op(NODE, 20, 10),
        mark("Optimizer.step#Adam.step", 40, 10),
        mark("Optimizer.zero_grad#Adam.zero_grad", 60, 5),
    )
    assert [phase(launch(1, at), *marks) for at in (5, 15, 25, 45, 62)] == [
        "data",
        "forward",
        "backward",
        "optimizer",
        "optimizer",
    ]


def test_other_threads_do_not_count() -> None:
    assert phase(launch(1, 25, thread=1), op(NODE, 20, 10, thread=2)) == "forward"
    assert phase(launch(1, 25, thread=2), op(NODE, 20, 10, thread=2)) == "backward"


def test_a_forward_that_is_computed_again_is_backward() -> None:
    assert phase(launch(1, 25), op(NODE, 20, 10), op("aten::mm", 24, 3)) == "backward"


def test_an_optimizer_that_steps_within_the_backward_counts_as_optimizer() -> None:
    inside = (
        op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 50),
        mark("Optimizer.step#SGD.step", 10, 20),
    )
    assert [phase(launch(1, at), *inside) for at in (5, 15, 40)] == ["backward", "optimizer", "backward"]


def test_work_in_a_closure_does_not_belong_to_the_optimizer() -> None:
    marks = (mark("Optimizer.step#Adam.step", 0, 50), op(NODE, 20, 10, thread=2))
    assert [phase(launch(1, at), *marks) for at in (5, 31)] == ["forward", "optimizer"]


def test_ranges_of_all_threads_together() -> None:
    marks = Marks(trace(op(NODE, 0, 10, thread=2), op(NODE, 5, 10, thread=3)).events)
    assert (marks.of("backward"), marks.of("data")) == ([(0, 15_000)], [])


def test_data_that_a_thread_of_its_own_fetches_is_not_waited_for() -> None:
    fetched = (mark(LOADER, 0, 10), mark(LOADER, 20, 10, thread=9))
    assert Marks(trace(*fetched).events).of("data") == [(0, 10_000), (20_000, 30_000)]
    assert Marks(trace(*fetched, step(1, 0, 100)).events).of("data") == [(0, 10_000)]
