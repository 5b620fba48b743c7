"""autofuse.verify.bounds: the two comparisons, and the entries that are not compared."""

from __future__ import annotations

import math

import torch

from autofuse.verify.bounds import measure_gap, rounding_spread

UNIT = 2.0**-24
N = 1000


def noise(size: float) -> torch.Tensor:
    return size * torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(int(1e9 * size) or 1))


EXACT = torch.linspace(1.0, 2.0, N, dtype=torch.float64)


def test_an_error_like_the_originals_is_within_the_bound_and_ten_times_that_is_not() -> None:
    original = EXACT + noise(1e-6)
    assert measure_gap(EXACT + noise(1.1e-6), original, EXACT, UNIT).within
    assert not measure_gap(EXACT + noise(1e-5), original, EXACT, UNIT).within


def test_a_single_wrong_entry_among_many_is_found() -> None:
    fused = EXACT.clone()
    fused[7] += 1e-4
    assert not measure_gap(fused, EXACT + noise(1e-6), EXACT, UNIT).within


def test_an_exact_original_leaves_room_for_rounding_the_result() -> None:
    assert measure_gap(EXACT.float().double(), EXACT, EXACT, UNIT).within
    assert not measure_gap(EXACT * (1 + 8 * UNIT), EXACT, EXACT, UNIT).within


def test_randomly_rounded_runs_widen_the_bound_of_an_exact_original() -> None:
    fused, runs = EXACT + noise(1e-6), [EXACT + noise(1e-6 + i * 1e-8) for i in range(4)]
    assert not measure_gap(fused, EXACT, EXACT, UNIT).within
    assert measure_gap(fused, EXACT, EXACT, UNIT, [rounding_spread(r, EXACT, EXACT) for r in runs]).within


def test_sums_of_many_terms_have_a_wider_bound() -> None:
    fused = EXACT * (1 + 8 * UNIT)
    assert measure_gap(fused, EXACT, EXACT, UNIT, terms=100).within


def test_errors_are_relative_to_the_largest_entry_or_to_cancelled_terms() -> None:
    assert math.isclose(measure_gap(EXACT + 1e-3, EXACT, EXACT, UNIT).error, 5e-4, rel_tol=1e-2)
    zero, original = torch.zeros(N), noise(1e-6)  # terms of about 1e-6 / UNIT cancelled
    assert measure_gap(noise(1.1e-6), original, zero, UNIT).error < 10 * UNIT


def test_entries_that_are_nan_in_the_original_are_not_compared() -> None:
    original, fused = EXACT.clone(), EXACT.clone()
    original[0], fused[0] = math.nan, 5.0
    assert measure_gap(fused, original, original, UNIT).within
    fused[1] = math.nan
    assert not measure_gap(fused, original, original, UNIT).within


def test_empty_and_complex_tensors_are_compared() -> None:
    empty = torch.zeros(0)
    assert measure_gap(empty, empty, empty, UNIT).within
    whole = torch.complex(EXACT, EXACT)
    assert measure_gap(whole, whole, whole, UNIT).within
    assert not measure_gap(whole.conj(), whole, whole, UNIT).within


def test_other_entries_count_if_the_original_has_a_nan() -> None:
    original, exact, fused = EXACT + noise(1e-6), EXACT.clone(), EXACT.clone()
    original[0], exact[0], fused[0] = math.nan, math.nan, 7.0
    assert measure_gap(fused, original, exact, UNIT).within
    fused[5] += 1e-4
    assert not measure_gap(fused, original, exact, UNIT).within


def test_an_overflow_of_the_original_does_not_widen_the_bound_of_other_entries() -> None:
    original, fused = EXACT + noise(1e-6), EXACT.clone()
    original[0] = math.inf
    assert measure_gap(fused, original, EXACT, UNIT).within
    fused[5] += 1e-4
    assert not measure_gap(fused, original, EXACT, UNIT).within


def test_an_overflow_that_the_original_does_not_have_exceeds_the_bound() -> None:
    fused = EXACT.clone()
    fused[0] = math.inf
    assert not measure_gap(fused, EXACT + noise(1e-6), EXACT, UNIT).within
