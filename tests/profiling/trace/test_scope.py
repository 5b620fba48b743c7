"""The part of a trace that is analysed."""

from __future__ import annotations

from typing import Any

import pytest

from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.scope import scope_of
from autofuse.profiling.trace.steps import Steps
from tests.profiling.trace.building import H100, kernel, launch, op, step, trace


def test_only_the_parts_of_an_event_that_lie_in_steps_count() -> None:
    scope = scope_of(trace(), Steps(((10, 20), (30, 40)), 2, "given"))
    event = trace(kernel(0.015, 0.020)).events[0]  # 15 to 35 nanoseconds
    assert (scope.within(event), scope.nanoseconds(event), scope.begins(event)) == ([(15, 20), (30, 35)], 10, True)


def test_the_rest_of_the_steps_is_what_no_set_has() -> None:
    scope = scope_of(trace(), Steps(((0, 100),), 1, "given"))
    assert scope.rest([(10, 20)], [(15, 30), (90, 200)]) == [(0, 10), (30, 90)]


def test_seconds_are_of_one_step_and_shares_of_all() -> None:
    scope = scope_of(trace(), Steps(((0, 100), (100, 400)), 2, "given"))
    assert (scope.seconds(80), scope.share(80)) == (80 / 2 * 1e-9, 0.2)


def test_a_trace_that_takes_no_time_has_no_shares() -> None:
    assert scope_of(trace()).share(0) == 0.0


def test_work_is_linked_to_its_launch_and_listed_once() -> None:
    twice = kernel(5, 10, correlation=7)
    scope = scope_of(
        trace(step(1, 0, 100), op("aten::mm", 1, 3), launch(7, 2, name="cuLaunchKernelEx"), twice, dict(twice))
    )
    assert len(scope.work) == 1
    found = scope.launch_of(scope.work[0])
    assert found is not None and found.name == "cuLaunchKernelEx"


def test_work_without_a_correlation_has_no_launch() -> None:
    scope = scope_of(trace(launch(0, 2), kernel(5, 10, correlation=0), kernel(50, 10)))
    assert [scope.launch_of(work) for work in scope.work] == [None, None]


def test_gpus_without_a_description_are_assumed_equal_to_the_others() -> None:
    assert scope_of(trace(kernel(0, 1, device=5))).devices[5].sms == 132
    assert 5 not in scope_of(trace(kernel(0, 1, device=5), devices=[H100, {**H100, "id": 1, "numSms": 78}])).devices


@pytest.mark.parametrize(
    "entries",
    [
        [op("aten::mm", 10, 20), launch(1, 12)],
        [op("aten::mm", 10, 20), op("npu::npu_fusion_attention", 40, 5)],
    ],
)
def test_without_the_accelerators_work_only_the_host_is_shown(entries: list[Any]) -> None:
    found = trace(step(1, 0, 100), *entries, devices=[])
    assert scope_of(found).host_only
    profile = profile_of_traces([found])
    assert profile.diagnosis is None and profile.level("busy").value is None
    assert "host only" in profile.level("busy").reason and any("host only" in note for note in profile.notes)


def test_a_cpu_is_not_an_accelerator_and_a_working_accelerator_is_found() -> None:
    assert not scope_of(trace(step(1, 0, 100), op("aten::mm", 10, 20), devices=[])).host_only
    assert not scope_of(trace(step(1, 0, 100), launch(1, 12), kernel(20, 5))).host_only
