"""How often each kind of kernel or operator runs in a step."""

from __future__ import annotations

import pytest

from autofuse.ir.operator_categories import ORDER
from autofuse.profiling.trace.categories import LONGEST, categories_of, short_name
from autofuse.profiling.trace.scope import scope_of, with_own_time
from autofuse.results.comparison import Category
from tests.profiling.trace.building import Entry, kernel, launch, mark, op, step, trace

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"


def categories(*entries: Entry) -> dict[str, Category]:
    return dict(categories_of(scope_of(trace(*entries))))


def test_kernels_are_categorized_by_their_names() -> None:
    found = categories(
        step(1, 0, 100), kernel(0, 10, name="ampere_sgemm_128x64_nn"), kernel(10, 5, name="ampere_sgemm_128x64_nn"),
        kernel(20, 5, name=ADD), kernel(30, 5, None, name="Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy"),
    )  # fmt: skip
    assert {name: category.count for name, category in found.items()} == {"matmul": 2, "copy": 1, "elementwise": 1}
    assert found["matmul"].seconds == pytest.approx(15e-6)
    assert list(found) == sorted(found, key=ORDER.index)


def test_kernels_that_an_optimizer_launches_belong_to_it() -> None:
    found = categories(
        step(1, 0, 100), mark("Optimizer.step#AdamW.step", 0, 20), launch(1, 2), kernel(5, 5, name=ADD, correlation=1),
        launch(2, 40), kernel(42, 5, name=ADD, correlation=2),
    )  # fmt: skip
    assert {name: category.count for name, category in found.items()} == {"optimizer": 1, "elementwise": 1}


def test_operators_count_by_their_own_time_and_once() -> None:
    """linear is a composite. addmm takes 10, of which copying takes 4."""
    found = categories(step(1, 0, 100), op("aten::linear", 0, 20), op("aten::addmm", 5, 10), op("aten::copy_", 6, 4))
    assert {name: (category.count, category.seconds) for name, category in found.items()} == {
        "matmul": (1, pytest.approx(6e-6)),
        "copy": (1, pytest.approx(4e-6)),
    }


def test_ranges_are_no_operators() -> None:
    found = categories(step(1, 0, 100), op("mod::wte", 0, 20), mark("mine::attention", 0, 30), op("aten::mm", 5, 10))
    assert list(found) == ["matmul"]


def test_counts_are_of_one_step() -> None:
    steps = [step(number, 100 * number, 100) for number in (1, 2, 3)]
    found = categories(*steps, *(op("aten::mm", 100 * number + at, 2) for number in (1, 2, 3) for at in (0, 10)))
    assert found["matmul"].operators == {"aten::mm": 2}
    assert found["matmul"].seconds == pytest.approx(4e-6)


def test_a_collective_counts_as_the_range_that_its_backend_runs_it_in() -> None:
    found = categories(step(1, 0, 100), op("c10d::allreduce_", 0, 50), mark("gloo:all_reduce", 5, 20, thread=9))
    assert found["communication"].operators == {"gloo:all_reduce": 1}


def test_own_time_excludes_nested_events() -> None:
    events = trace(op("a", 0, 100), op("b", 10, 30), op("c", 20, 5), op("d", 50, 10), op("e", 5, 50, thread=2)).events
    assert {event.name: own // 1000 for event, own in with_own_time(events)} == {
        "a": 60,
        "b": 25,
        "c": 5,
        "d": 10,
        "e": 50,
    }


@pytest.mark.parametrize(
    "name, found",
    [
        ("void at::native::(anonymous namespace)::softmax_warp_forward<float>(float*)", "softmax_warp_forward<float>"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("void f<g(int)::{lambda()#2}>(int)", "f<g(int)::{lambda()#2}>"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
    ],
)
def test_names_lose_uninformative_parts(name: str, found: str) -> None:
    assert short_name(name) == found


def test_long_names_are_cut() -> None:
    assert len(short_name("x" * 500)) == LONGEST
