"""autofuse.verify.bounds: the two comparisons, and what is not compared."""

from __future__ import annotations

import math

import torch

from autofuse.verify.bounds import gap, spread_of

UNIT = 2.0**-24
N = 1000


def noise(size: float) -> torch.Tensor:
    return size * torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(int(1e9 * size) or 1))


EXACT = torch.linspace(1.0, 2.0, N, dtype=torch.float64)


def test_an_error_like_the_originals_is_within_and_one_of_ten_times_that_is_not() -> None:
    original = EXACT + noise(1e-6)
    assert gap(EXACT + noise(1.1e-6), original, EXACT, UNIT).within
    assert not gap(EXACT + noise(1e-5), original, EXACT, UNIT).within


def test_a_single_entry_that_is_far_off_is_seen_among_many() -> None:
    fused = EXACT.clone()
    fused[7] += 1e-4
    assert not gap(fused, EXACT + noise(1e-6), EXACT, UNIT).within


def test_an_exact_original_leaves_room_for_writing_the_result_down() -> None:
    assert gap(EXACT.float().double(), EXACT, EXACT, UNIT).within
    assert not gap(EXACT * (1 + 8 * UNIT), EXACT, EXACT, UNIT).within


def test_randomly_rounded_runs_show_what_an_exact_original_does_not() -> None:
    fused, runs = EXACT + noise(1e-6), [EXACT + noise(1e-6 + i * 1e-8) for i in range(4)]
    assert not gap(fused, EXACT, EXACT, UNIT).within
    assert gap(fused, EXACT, EXACT, UNIT, [spread_of(r, EXACT, EXACT) for r in runs]).within


def test_sums_of_many_terms_have_more_room() -> None:
    fused = EXACT * (1 + 8 * UNIT)
    assert gap(fused, EXACT, EXACT, UNIT, terms=100).within


def test_errors_are_relative_to_the_largest_entry_or_to_what_cancelled() -> None:
    assert math.isclose(gap(EXACT + 1e-3, EXACT, EXACT, UNIT).error, 5e-4, rel_tol=1e-2)
    zero, original = torch.zeros(N), noise(1e-6)  # terms of about 1e-6 / UNIT cancelled
    assert gap(noise(1.1e-6), original, zero, UNIT).error < 10 * UNIT


def test_entries_that_are_nan_in_the_original_are_not_compared() -> None:
    original, fused = EXACT.clone(), EXACT.clone()
    original[0], fused[0] = math.nan, 5.0
    assert gap(fused, original, original, UNIT).within
    fused[1] = math.nan
    assert not gap(fused, original, original, UNIT).within


def test_tensors_without_entries_and_of_complex_numbers_are_compared() -> None:
    empty = torch.zeros(0)
    assert gap(empty, empty, empty, UNIT).within
    whole = torch.complex(EXACT, EXACT)
    assert gap(whole, whole, whole, UNIT).within
    assert not gap(whole.conj(), whole, whole, UNIT).within


def test_where_the_original_is_nan_the_other_entries_still_count() -> None:
    original, exact, fused = EXACT + noise(1e-6), EXACT.clone(), EXACT.clone()
    original[0], exact[0], fused[0] = math.nan, math.nan, 7.0
    assert gap(fused, original, exact, UNIT).within
    fused[5] += 1e-4
    assert not gap(fused, original, exact, UNIT).within


def test_an_overflow_of_the_original_gives_the_other_entries_no_room() -> None:
    original, fused = EXACT + noise(1e-6), EXACT.clone()
    original[0] = math.inf
    assert gap(fused, original, EXACT, UNIT).within
    fused[5] += 1e-4
    assert not gap(fused, original, EXACT, UNIT).within


def test_what_overflows_where_the_original_does_not_is_never_within() -> None:
    fused = EXACT.clone()
    fused[0] = math.inf
    assert not gap(fused, EXACT + noise(1e-6), EXACT, UNIT).within
