"""The bytes and the speed of collectives, compared with numbers computed by hand."""

from __future__ import annotations

import pytest

from autofuse.profiling.trace.collective_rates import collective_rates
from autofuse.profiling.trace.scope import Scope, scope_of
from tests.profiling.trace.building import kernel, step, trace


def rank(number: int, *collectives: tuple[str, float], **told: object) -> Scope:
    kernels = [
        kernel(100 * at, took, 24, 512, name=f"ncclDevKernel_{kind}_RING_LL()", stream=9, **told)
        for at, (kind, took) in enumerate(collectives)
    ]
    return scope_of(trace(step(1, 0, 1000), *kernels, rank=number, world=2))


TOLD = {"In_msg_nelems": 1_000_000, "dtype": "BFloat16", "Group_size": 8, "Process_Group_Name": "0"}


@pytest.mark.parametrize(
    ("kind", "name", "size", "part"),
    [
        ("AllReduce_Sum_bf16", "allreduce", 2e6, 2 * 7 / 8),
        ("AllGather", "allgather", 16e6, 7 / 8),
        ("ReduceScatter_Sum_bf16", "reducescatter", 2e6, 7 / 8),
        ("Broadcast", "broadcast", 2e6, 1),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(kind: str, name: str, size: float, part: float) -> None:
    (found,) = collective_rates({0: rank(0, (kind, 50), (kind, 50), **TOLD)}, 0)
    assert (found.name, found.ranks, found.count, found.bytes) == (name, 8, 2, 2 * size)
    assert found.algorithm_bandwidth == pytest.approx(size / 50e-6)
    assert found.bus_bandwidth == pytest.approx(part * size / 50e-6)


def test_waiting_ranks_do_not_count() -> None:
    scopes = {0: rank(0, ("AllReduce", 90), **TOLD), 1: rank(1, ("AllReduce", 40), **TOLD)}
    (found,) = collective_rates(scopes, 0)
    assert found.seconds == pytest.approx(40e-6)


def test_without_sizes_there_are_times_alone() -> None:
    (found,) = collective_rates({0: rank(0, ("AllReduce", 50))}, 0)
    assert (found.bytes, found.bus_bandwidth, found.count) == (None, None, 1)


def test_a_trace_of_one_gpu_has_no_collectives() -> None:
    assert collective_rates({0: rank(0)}, 0) == ()
