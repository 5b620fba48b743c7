"""The roofs of a machine: arithmetic on given roofs, and that measuring leaves no traces."""

from __future__ import annotations

import pytest
import torch

from autofuse.profiling.live.roofs import HERE, Roofs, roofs


@pytest.fixture
def machine() -> Roofs:
    """100 FLOP/s in float32, 200 in bfloat16; 10 bytes a second, 40 for less than 1000 bytes."""
    return Roofs("toy", ((0, 40.0), (1000, 10.0)), 5.0, 0.5, {"float32": 100.0, "bfloat16": 200.0})


def test_an_operator_takes_as_long_as_its_slower_side(machine: Roofs) -> None:
    assert machine.seconds(1000, 2000, "float32") == 200.0
    assert machine.seconds(100_000, 2000, "float32") == 1000.0
    assert machine.seconds(100_000, 2000, "bfloat16") == 500.0


def test_data_that_fits_into_a_cache_moves_at_the_caches_speed(machine: Roofs) -> None:
    assert machine.seconds(0, 400, "float32") == 10.0
    assert machine.seconds(0, 1000, "float32") == 100.0


def test_a_profiles_roof_names_the_memory_and_the_fastest_cache(machine: Roofs) -> None:
    roof = machine.roof("bfloat16")

    assert (roof.flops_per_second, roof.bytes_per_second, roof.cached_bytes_per_second) == (200.0, 10.0, 40.0)
    assert roof.balance == 20.0
    assert roof.measured


def test_an_unknown_dtype_is_an_error_with_a_reason(machine: Roofs) -> None:
    with pytest.raises(KeyError, match="float64"):
        machine.flops(torch.float64)


def test_a_dtype_that_cannot_be_multiplied_has_no_roof_and_says_why(machine: Roofs) -> None:
    def fails(dtype: str) -> float:
        raise RuntimeError("not implemented")

    machine.measure = fails

    roof = machine.roof("float8_e4m3fn")

    assert roof.flops_per_second is None
    assert "not implemented" in roof.flops_source
    assert machine.seconds(10**9, 2000, "float8_e4m3fn") == 200.0


def test_rates_that_the_data_sheet_lacks_are_measured_and_marked() -> None:
    known = Roofs("toy", ((0, 1.0),), 1.0, 1.0, {"float16": 9.0}, lambda dtype: 3.0, "a data sheet", "a data sheet")

    assert known.roof("float16").flops_source == "a data sheet"
    assert known.roof("bfloat16").flops_source == HERE
    assert known.roof("bfloat16").measured
    assert not known.roof("float16").measured


def test_a_missing_dtype_is_measured_once_and_a_better_run_counts() -> None:
    runs = iter([50.0, 80.0, 60.0])
    machine = Roofs("toy", ((0, 1.0),), 1.0, 1.0, measure=lambda dtype: next(runs))

    assert machine.flops("float32") == machine.flops("float32") == 50.0
    machine.measure_again("float32")
    machine.measure_again("float32")
    assert machine.flops("float32") == 80.0


def test_this_machine_is_measured_once_and_nothing_is_left_behind() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()

    found = roofs("cpu")

    assert roofs("cpu") is found
    assert found.flops_source == found.bytes_source == HERE
    assert min(found.bytes, found.special, found.launch, found.flops(torch.float32)) > 0
    rates = [rate for _, rate in found.bandwidths]
    assert rates == sorted(rates, reverse=True)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.night
def test_another_rounding_of_float32_products_is_measured_separately() -> None:
    precision = torch.get_float32_matmul_precision()
    exact = roofs("cpu")
    try:
        torch.set_float32_matmul_precision("medium")
        assert roofs("cpu") is not exact
    finally:
        torch.set_float32_matmul_precision(precision)
    assert roofs("cpu") is exact
