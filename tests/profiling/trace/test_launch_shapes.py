"""Blocks per SM and occupancy of launches, compared with CUDA's rules by hand."""

from __future__ import annotations

from typing import Any

import pytest

from autofuse.profiling.trace.launch_shapes import Device, Shape, devices_of, shape_of
from tests.profiling.trace.building import H100, kernel, trace

DEVICE = devices_of(trace())[0]


def shape(blocks: int | None = 132, threads: int = 1024, device: Device = DEVICE, **args: Any) -> Shape:
    return shape_of(trace(kernel(0, 1, blocks, threads, **args)).events[0], device)


def test_one_block_on_132_sms() -> None:
    found = shape(1, 1024)
    assert found.efficiency == pytest.approx(1 / 132)
    assert found.occupancy == pytest.approx(1 / 132 * 1024 / 2048)  # at least one block fits, whatever it needs
    assert not found.bounded


def test_more_blocks_than_sms_use_all_of_them() -> None:
    assert shape(1000).efficiency == 1.0


@pytest.mark.parametrize(
    "threads, registers, shared, resident",
    [
        (1024, 16, 0, 2),  # 2048 threads / 1024
        (256, 64, 0, 4),  # 65536 / 4 partitions / (64 x 32) = 8 warps a partition, 32 an SM, 8 a block
        (128, 255, 0, 2),  # 255 x 32 rounded up to 8192: 2 warps a partition, 8 an SM, 4 a block
        (32, 16, 0, 32),  # no more than 32 blocks an SM
        (128, 32, 65536, 3),  # 233472 / (65536 + 1024)
        (128, 32, 40000, 5),  # 40000 + 1024 rounded up to 41088: 233472 / 41088 = 5.7
    ],
)
def test_occupancy_is_that_of_the_blocks_that_fit(threads: int, registers: int, shared: int, resident: int) -> None:
    found = shape(10_000, threads, registers_per_thread=registers, shared_memory=shared)
    assert found.occupancy == pytest.approx(resident * threads / 2048)


def test_occupancy_of_a_grid_that_does_not_fill_the_sms_is_that_of_its_blocks() -> None:
    assert shape(198, 256, registers_per_thread=32, shared_memory=0).occupancy == pytest.approx(1.5 * 256 / 2048)


@pytest.mark.parametrize(
    "capability, most",
    [((7, 0), 32), ((7, 5), 16), ((8, 0), 32), ((8, 6), 16), ((8, 9), 24), ((9, 0), 32), ((12, 0), 24)],
)
def test_the_most_resident_blocks_depend_on_the_generation(capability: tuple[int, int], most: int) -> None:
    device = Device("NVIDIA", 100, 2048, 32, 65536, 200_000, 49152, capability)
    assert shape(10_000, 32, device, registers_per_thread=16, shared_memory=0).occupancy == most * 32 / 2048


def test_kinetos_own_number_takes_precedence() -> None:
    found = shape(10_000, 1024, registers_per_thread=16, shared_memory=0, **{"est._achieved_occupancy_%": 25})
    assert found.occupancy == 0.25


def test_a_percentage_is_computed_unrounded_if_it_agrees_with_kinetos() -> None:
    found = shape(66, 256, registers_per_thread=16, shared_memory=0, **{"est._achieved_occupancy_%": 6})
    assert found.occupancy == 0.5 * 256 / 2048


def test_kinetos_0_for_kernels_with_much_shared_memory_is_ignored() -> None:
    args = {"registers_per_thread": 255, "shared_memory": 65536, "est._achieved_occupancy_%": 0}
    assert shape(10_000, 128, **args).occupancy == pytest.approx(2 * 128 / 2048)
    assert shape(10_000, 128, Device(), **args).occupancy is None


def test_an_estimate_that_is_not_a_percentage_is_none() -> None:
    assert shape(10_000, 1024, Device(), **{"est._achieved_occupancy_%": -100}).occupancy is None


def test_without_registers_the_occupancy_is_an_upper_bound() -> None:
    found = shape(10_000, 1024)
    assert (found.occupancy, found.bounded) == (1.0, True)


@pytest.mark.parametrize(
    "grid, block", [("[264, 1, 1]", "1024,1,1"), ("(264, 1, 1)", "1024"), (264, [1024]), (["264", "1"], [1024, 1])]
)
def test_shapes_may_be_written_in_many_ways(grid: Any, block: Any) -> None:
    found = shape(None, grid=grid, block=block)
    assert (found.blocks, found.occupancy) == (2.0, 1.0)


def test_without_a_grid_kinetos_quotient_is_taken() -> None:
    assert shape(None, blocks_per_SM="0.25") == Shape(0.25)


def test_a_quotient_that_overflowed_is_none() -> None:
    assert shape(None, blocks_per_SM=-4.5).blocks is None
    assert shape(2**31, blocks_per_SM=-16268815).efficiency == 1.0


def test_nothing_is_known_of_an_unknown_shape() -> None:
    assert shape(None) == Shape()
    assert shape(0) == Shape()


@pytest.mark.parametrize("odd", [-1, -5000, 0, 2**70, "x"])
def test_odd_limits_leave_a_fraction(odd: Any) -> None:
    for args in ({"registers_per_thread": odd, "shared_memory": 0}, {"registers_per_thread": 32, "shared_memory": odd}):
        assert 0 < (shape(10_000, 256, **args).occupancy or 0) <= 1


def test_a_device_may_have_another_word_for_its_sms() -> None:
    amd = {
        "id": 2,
        "name": "AMD Instinct MI250X",
        "multiProcessorCount": 104,
        "warpSize": 64,
        "maxThreadsPerMultiProcessor": 2048,
    }
    found = devices_of(trace(devices=[H100, amd]))
    assert (found[0].sms, found[2].sms, found[2].nvidia) == (132, 104, False)
    assert shape_of(trace(kernel(0, 1, 26, 256)).events[0], found[2]).efficiency == 0.25
