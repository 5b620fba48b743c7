"""The levels of utilisation from a trace, compared with sums by hand."""

from __future__ import annotations

from typing import Any

import pytest

from autofuse.profiling.trace.levels import levels_of
from autofuse.profiling.trace.scope import scope_of
from autofuse.results.ladder import KINDS, ladder
from tests.profiling.trace.building import SECOND, entry, kernel, launch, op, step, trace

GEMM = "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_32x3_nn"


def values(*entries: dict[str, Any], **options: Any) -> list[float | None]:
    """Busy time, SM efficiency, occupancy and tensor share."""
    return [level.value for level in list(levels_of(scope_of(trace(*entries, **options))).values())[:4]]


def test_one_block_for_ten_seconds_is_all_busy_and_uses_one_sm_of_132() -> None:
    assert values(kernel(0, 10 * SECOND, 1, 1024)) == [1.0, pytest.approx(1 / 132), pytest.approx(1 / 264), 0.0]


def test_the_same_holds_in_a_step_that_only_launched_the_block() -> None:
    found = values(step(1, 0, 100), launch(9, 0, 5), kernel(0, 10 * SECOND, 1, 1024, correlation=9))
    assert found[:2] == [1.0, pytest.approx(1 / 132)]


def test_every_kernel_counts_by_what_it_occupies_and_how_long() -> None:
    """Of 100: 20 with half of the SMs, 30 with all of them twice over, 50 idle; the 20 on tensor cores.

    Efficiency (20 x 0.5 + 30) / 100. Occupancy: 66 blocks of 512 are 0.5 x 512 / 2048 = 0.125; 264 of 512 are
    2 x 512 / 2048 = 0.5; (20 x 0.125 + 30 x 0.5) / 50.
    """
    limits = {"registers_per_thread": 32, "shared_memory": 0}
    found = values(step(1, 0, 100), kernel(10, 20, 66, 512, name=GEMM, **limits), kernel(40, 30, 264, 512, **limits))
    assert found == pytest.approx([0.5, 0.4, 0.35, 0.2])


def test_only_events_within_steps_count() -> None:
    """Steps from 100 to 200 and from 300 to 400. 10 + 40 of the kernels' time is within them."""
    entries = (step(1, 100, 100), step(2, 300, 100), op("aten::mm", 101, 1), op("aten::mm", 301, 1))
    assert values(*entries, kernel(0, 110), kernel(220, 30), kernel(330, 40))[0] == pytest.approx(0.25)


def test_overlapping_kernels_are_busy_once_and_fill_the_sms_together() -> None:
    """0 to 20: 0.25; 20 to 40: 0.25 + 0.5; 40 to 60: 0.5; 60 to 80, of 1 and 0.5: no more than 1; rest idle."""
    found = values(
        step(1, 0, 100),
        kernel(0, 40, 33),
        kernel(20, 40, 66, stream=8),
        kernel(60, 20, 999),
        kernel(60, 20, 66, stream=8),
    )
    assert found[0] == 0.8
    assert found[1] == pytest.approx((20 * 0.25 + 20 * 0.75 + 20 * 0.5 + 20) / 100)


def test_several_gpus_count_as_their_mean() -> None:
    second = {"id": 1, "numSms": 100}
    found = values(
        step(1, 0, 100), kernel(0, 50, 132), kernel(0, 100, 50, device=1), devices=[{"id": 0, "numSms": 132}, second]
    )
    assert found[:2] == [0.75, 0.5]


def test_a_kernel_that_the_file_lists_twice_counts_once() -> None:
    twice = kernel(0, 50, 66)
    assert values(step(1, 0, 100), twice, dict(twice))[:2] == [0.5, 0.25]


def test_copies_are_no_kernels() -> None:
    assert values(step(1, 0, 100), kernel(0, 10), kernel(20, 70, None, category="gpu_memcpy"))[0] == 0.1


def test_without_launch_shapes_there_is_no_efficiency() -> None:
    levels = levels_of(scope_of(trace(step(1, 0, 100), kernel(0, 10), kernel(20, 30, None))))
    assert levels["busy"].value == 0.4
    assert levels["sm_efficiency"].value is None
    assert "for only 25% of the kernels' time" in levels["sm_efficiency"].reason


def test_a_gpu_without_a_description_is_assumed_equal_to_the_others() -> None:
    assert values(step(1, 0, 100), kernel(0, 50, 66, device=3))[:2] == [0.5, 0.25]
    others = [{"id": 0, "numSms": 132}, {"id": 1, "numSms": 100}]
    assert values(step(1, 0, 100), kernel(0, 50, 66, device=3), devices=others)[:2] == [0.5, None]


def test_a_few_kernels_without_a_shape_do_not_count_and_a_note_says_so() -> None:
    levels = levels_of(scope_of(trace(step(1, 0, 100), kernel(0, 98), kernel(98, 2, None))))
    assert levels["sm_efficiency"].value == 0.98
    assert levels["sm_efficiency"].basis.endswith("98.0% of the kernels' time, the rest counted as 0")


def test_without_device_properties_kinetos_own_numbers_serve() -> None:
    told = {"blocks_per_SM": 0.5, "est._achieved_occupancy_%": 40}
    assert values(step(1, 0, 100), kernel(0, 50, None, **told), devices=[])[:3] == [0.5, 0.25, 0.4]


def test_on_a_cpu_operators_of_any_thread_are_busy() -> None:
    """10 to 40 with called operators, and 30 to 50 on another thread. Annotations do not count: 40 of 100."""
    levels = levels_of(scope_of(trace(
        step(1, 0, 100), op("aten::linear", 10, 30), op("aten::addmm", 15, 20), op("aten::mul", 30, 20, thread=2),
        entry("Optimizer.step#SGD.step", "user_annotation", 0, 100), devices=[],
    )))  # fmt: skip
    assert levels["busy"].value == 0.4
    assert "no GPU kernel is in the trace" in levels["tensor_share"].reason


@pytest.mark.parametrize(
    "name",
    [
        "mod::wte",
        "mod::",
        "Torch-Compiled Region: 0/0",
        "my range",
        "DistributedDataParallel.forward",
        "ProfilerStep#1",
    ],
)
def test_ranges_among_operators_are_not_busy(name: str) -> None:
    assert values(step(1, 0, 100), op("aten::mm", 0, 10), op(name, 20, 50), devices=[])[0] == 0.1


@pytest.mark.parametrize(
    "name",
    [
        "## Call CompiledFxGraph f3a ##",
        "autograd::engine::evaluate_function: MmBackward0",
        "MulBackward0",
        "mine::norm",
    ],
)
def test_graphs_nodes_and_operators_of_any_namespace_are_busy(name: str) -> None:
    assert values(step(1, 0, 100), op("aten::mm", 0, 10), op(name, 20, 50), devices=[])[0] == 0.6


def test_steps_without_a_kernel_have_no_occupancy() -> None:
    levels = levels_of(scope_of(trace(step(1, 0, 100), op("aten::mm", 1, 1), kernel(500, 10))))
    assert (levels["busy"].value, levels["sm_efficiency"].value, levels["occupancy"].value) == (0, 0, None)


def test_levels_that_a_trace_lacks_say_how_to_get_them() -> None:
    levels = levels_of(scope_of(trace(kernel(0, 1))))
    assert set(levels) == set(KINDS)
    assert all(level.reason and level.basis == "" for level in levels.values() if level.value is None)
    assert "nv-hostengine" in levels["sm_active"].kind.get and "Nsight Compute" in levels["issue_slots"].kind.get


def test_losses_are_counted_down_the_ladder() -> None:
    levels = {r.name: r for r in ladder(levels_of(scope_of(trace(step(1, 0, 100), kernel(0, 50, 33, name=GEMM)))), "")}
    assert (levels["busy"].loss, levels["sm_efficiency"].loss, levels["tensor_share"].loss) == (0.5, 0.375, 0.0)


def test_a_kernel_that_begins_while_another_runs_is_added_and_leaves_with_it() -> None:
    """0 to 30: 0.5; 10 to 20 next to it 0.25; 40 to 50 alone 0.25: 15 + 2.5 + 2.5 of 100."""
    found = values(step(1, 0, 100), kernel(0, 30, 66), kernel(10, 10, 33, stream=8), kernel(40, 10, 33))
    assert found[1] == pytest.approx(0.2)


@pytest.mark.parametrize(("without", "told"), [(5, True), (6, False)])
def test_shapes_must_be_known_for_nineteen_twentieths_of_the_time(without: int, told: bool) -> None:
    levels = levels_of(scope_of(trace(step(1, 0, 100), kernel(0, 100 - without), kernel(100 - without, without, None))))
    assert (levels["sm_efficiency"].value is not None) is told


def test_an_occupancy_without_registers_or_shared_memory_is_an_upper_bound() -> None:
    def basis(**limits: int) -> str:
        return levels_of(scope_of(trace(step(1, 0, 100), kernel(0, 50, 264, 512, **limits))))["occupancy"].basis

    assert "at most, because registers" in basis()
    assert "at most" not in basis(registers_per_thread=32, shared_memory=0)


def test_a_mean_of_several_gpus_says_so_and_one_gpu_does_not() -> None:
    one, two = (
        levels_of(scope_of(trace(step(1, 0, 100), kernel(0, 50), *(kernel(0, 50, device=d) for d in range(1, gpus)))))
        for gpus in (1, 2)
    )
    assert "GPUs" not in one["busy"].basis and two["busy"].basis.startswith("mean of 2 GPUs, ")
