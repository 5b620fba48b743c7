"""The parts of a step's time, compared with sums by hand. Every step here takes 100 microseconds."""

from __future__ import annotations

from typing import Any

import pytest

from autofuse.profiling.trace.scope import scope_of
from autofuse.profiling.trace.time_shares import shares_of
from autofuse.results.profile import Share
from tests.profiling.trace.building import Entry, kernel, launch, mark, op, step, trace

NODE = "autograd::engine::evaluate_function: MmBackward0"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
DISJOINT = ("forward", "backward", "optimizer", "data", "idle")


def shares(*entries: Entry, **options: Any) -> dict[str, Share]:
    return {share.name: share for share in shares_of(scope_of(trace(step(1, 0, 100), *entries, **options)))}


def percents(found: dict[str, Share]) -> dict[str, float | None]:
    return {name: None if s.share is None else round(s.share * 100, 9) for name, s in found.items()}


def on_a_gpu(*more: Entry) -> dict[str, Share]:
    """Loader 0 to 10. Launches at 12, 14 (forward), 42 (a node on thread 2), 62 (optimizer); each takes 1.

    The GPU: 13 to 23, 23 to 33 | 50 to 70 | 70 to 75. So idle and nothing queued 10 to 13 and 33 to 43, and 75 to 100;
    queued and idle 43 to 50.
    """
    return shares(
        mark(LOADER, 0, 10),
        launch(1, 12),
        launch(2, 14),
        kernel(13, 10, correlation=1),
        kernel(23, 10, correlation=2),
        op(NODE, 40, 10, thread=2),
        launch(3, 42, thread=2),
        kernel(50, 20, correlation=3),
        mark("Optimizer.step#AdamW.step", 60, 20),
        launch(4, 62),
        kernel(70, 5, correlation=4),
        *more,
    )


def on_a_cpu() -> dict[str, Share]:
    """Loader 0 to 10; forward 15 to 35; backward 40 to 70; optimizer 75 to 90; operators compute 45 of the 100."""
    return shares(
        mark(LOADER, 0, 10),
        op("aten::stack", 2, 5),
        op("aten::linear", 15, 20),
        op("aten::addmm", 20, 10),
        op(NODE, 40, 30),
        op("MmBackward0", 42, 25),
        op("aten::mm", 45, 20),
        mark("Optimizer.step#SGD.step", 75, 15),
        op("aten::_foreach_add_", 77, 10),
        devices=[],
    )


def test_gpu_work_belongs_to_the_phase_that_launched_it() -> None:
    found = percents(on_a_gpu())
    assert [found[name] for name in DISJOINT] == [20, 20, 5, 10, 45]


def test_without_queued_work_the_gpu_waits_for_the_host() -> None:
    found = on_a_gpu()
    assert percents(found)["host"] == 3 + 10 + 25
    assert "4 launches a step take 0.004 ms" in found["host"].basis


def test_waiting_for_data_while_the_gpu_works_does_not_count() -> None:
    found = percents(shares(mark(LOADER, 0, 30), launch(1, 1), kernel(5, 20, correlation=1)))
    assert (found["data"], found["forward"], found["idle"]) == (10, 20, 70)


def test_copies_are_no_idle_time() -> None:
    found = percents(
        shares(
            launch(1, 0),
            kernel(1, 9, correlation=1),
            kernel(20, 30, None, category="gpu_memcpy", correlation=2),
            launch(2, 1),
        )
    )
    assert (found["forward"], found["idle"]) == (39, 61)


def test_work_without_a_known_launch_has_no_phase() -> None:
    found = shares(kernel(0, 40))
    assert [found[name].share for name in DISJOINT] == [None, None, None, 0.0, 0.6]
    assert "does not show what launched" in found["backward"].reason
    assert found["host"].share is None and "ProfilerActivity.CPU" in found["host"].reason


def test_a_captured_graph_shows_no_phase_except_the_host() -> None:
    found = shares(launch(1, 0, name="cudaGraphLaunch"), *(kernel(at, 10, correlation=1) for at in (10, 20, 30)))
    assert found["forward"].share is None
    assert percents(found)["host"] == 1 + 60  # until the call returns, and behind the last kernel


def test_a_captured_optimizer_counts_as_optimizer() -> None:
    found = shares(
        mark("Optimizer.step#AdamW.step", 0, 5), launch(1, 0, name="cudaGraphLaunch"), kernel(10, 10, correlation=1)
    )
    assert percents(found)["optimizer"] == 10


@pytest.mark.parametrize("device", ["GPU", "CPU"])
def test_an_optimizers_closure_does_not_count_as_optimizer(device: str) -> None:
    """`step(closure)` runs forward and backward within its range from 10 to 90. The last node ends at 60."""
    inside = (mark("Optimizer.step#LBFGS.step", 10, 80), op("aten::mm", 20, 10), op(NODE, 40, 20, thread=2))
    if device == "CPU":
        found = percents(shares(*inside, devices=[]))
        assert (found["forward"], found["backward"], found["optimizer"]) == (10, 20, 30)
    else:
        kernels = (
            launch(1, 21),
            launch(2, 41, thread=2),
            launch(3, 70),
            *(kernel(at, 5, correlation=n) for n, at in ((1, 22), (2, 42), (3, 72))),
        )
        found = percents(shares(*inside, *kernels))
        assert (found["forward"], found["backward"], found["optimizer"]) == (5, 5, 5)


def test_on_a_cpu_phases_are_moments_of_the_host() -> None:
    found = percents(on_a_cpu())
    assert [found[name] for name in DISJOINT] == [20, 30, 15, 10, 25]


def test_on_a_cpu_the_hosts_time_is_the_time_without_operators() -> None:
    """100, minus 10 of waiting for data, minus 10 + 20 + 10 of operators that compute."""
    assert percents(on_a_cpu())["host"] == 50


def test_collectives_that_overlap_with_kernels_are_not_exposed() -> None:
    """A collective from 20 to 60, a product from 10 to 30 and a copy from 30 to 40. Copies do not compute: 30 to 60
    is exposed."""
    found = percents(shares(
        kernel(10, 20), kernel(30, 10, None, category="gpu_memcpy", stream=9),
        kernel(20, 40, 24, 544, stream=8, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"),
    ))  # fmt: skip
    assert (found["communication"], found["exposed communication"]) == (40, 30)


def test_on_a_cpu_the_backends_ranges_are_the_communication() -> None:
    """gloo 20 to 60 on its own thread, a product next to it 30 to 40."""
    found = percents(shares(
        op("c10d::allreduce_", 20, 2), mark("gloo:all_reduce", 20, 40, thread=9), op("aten::mm", 30, 10), devices=[]
    ))  # fmt: skip
    assert (found["communication"], found["exposed communication"]) == (40, 30)


def test_a_job_of_one_rank_does_not_communicate() -> None:
    found = on_a_gpu()
    assert (found["communication"].seconds, found["communication"].basis) == (0.0, "no collective is in the trace")


def test_numbers_are_of_one_step_on_average() -> None:
    entries = (step(2, 100, 300), op("aten::mm", 10, 20), op("aten::mm", 110, 60))
    forward = shares(*entries, devices=[])["forward"]
    assert (forward.seconds, forward.share) == (pytest.approx(40e-6), 0.2)


def test_each_share_has_a_basis() -> None:
    gpu, cpu = on_a_gpu(), on_a_cpu()
    assert gpu["forward"].basis == "GPU work launched in: everything that belongs to no other phase, including the loss"
    assert cpu["forward"].basis == "everything that belongs to no other phase, including the loss"
    assert gpu["data"].basis == "torch's own ranges of DataLoader, while the GPU runs nothing"
    assert cpu["data"].basis == "torch's own ranges of DataLoader"
    assert gpu["idle"].basis == "neither a kernel nor a copy runs, and nothing waits for data"
    assert cpu["idle"].basis == "neither an operator nor a module runs, and nothing waits for data"


def test_a_little_unknown_work_is_mentioned_with_the_phases_and_not_with_the_data() -> None:
    """The GPU works 60 of 100, and the launch of 10 of them is unknown."""
    found = shares(launch(1, 0), kernel(10, 50, correlation=1), kernel(70, 10))
    assert found["backward"].basis.endswith("; for 10.0% of the step the phase is unknown")
    assert "does not tell" not in found["data"].basis
    assert percents(found)["forward"] == 50


@pytest.mark.parametrize(("untold", "told"), [(10, True), (11, False)])
def test_the_host_has_a_share_if_most_work_is_linked(untold: int, told: bool) -> None:
    found = shares(launch(1, 0), kernel(10, 40, correlation=1), kernel(60, untold))
    assert (found["host"].share is not None) is told


def test_launches_before_and_after_the_steps_do_not_count() -> None:
    entries = (launch(1, 12), kernel(20, 10, correlation=1), launch(2, 150), launch(3, 14, name="cudaMemcpyAsync"))
    assert "1 launches a step take 0.001 ms" in shares(*entries)["host"].basis


def test_a_share_has_an_interval_if_each_step_is_marked() -> None:
    steps = [step(n, 100 * n, 100) for n in range(1, 4)]
    equal = trace(*steps, *(op("aten::mm", 100 * n, 50) for n in range(1, 4)), devices=[])
    forward = shares_of(scope_of(equal))[0]
    assert forward.interval == pytest.approx((0.5, 0.5))
    other = trace(*steps, *(op("aten::mm", 100 * n, 40 + 5 * n) for n in range(1, 4)), devices=[])
    found = shares_of(scope_of(other))[0]
    # Residuals of -5, 0 and 5 us: the standard error is sqrt(50 / 6) us, and t with two degrees is 4.303.
    reach = 4.303 * (50 / 6) ** 0.5 / 100
    assert found.interval == pytest.approx((0.5 - reach, 0.5 + reach))
    assert shares_of(scope_of(trace(*steps[:1], op("aten::mm", 100, 50), devices=[])))[0].interval is None


def test_the_python_of_a_modules_call_belongs_to_the_forward() -> None:
    found = trace(step(1, 0, 100), op("mod::", 10, 40), op("aten::mm", 20, 10), devices=[])
    assert {share.name: share.share for share in shares_of(scope_of(found))}["forward"] == pytest.approx(0.4)
