"""autofuse.verify.draws: the probability of a false alarm is as stated, and sampling stops once the verdict is
certain.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F

from autofuse.verify.draws import DRAWS, DropoutSample, dropout_difference, measure_dropout, single_run_difference


def test_a_false_alarm_has_a_probability_below_one_in_a_million() -> None:
    statistics, directions = 2, 2
    assert statistics * directions / math.comb(2 * DRAWS, DRAWS) < 1e-6


def test_sampling_stops_once_the_numbers_interleave() -> None:
    generator, taken = random.Random(0), 0

    def draws() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield DropoutSample(generator.random(), generator.random())

    assert dropout_difference(draws(), draws()) == ""
    assert taken < 2 * DRAWS


def test_the_message_distinguishes_another_rate_from_another_scaling() -> None:
    x = torch.randn(64, 64)

    def draws(p: float, factor: float = 1.0) -> list[DropoutSample]:
        return [measure_dropout({"x": factor * F.dropout(x, p)}, {"x": x}) for _ in range(DRAWS)]

    torch.manual_seed(0)
    assert dropout_difference(draws(0.1), draws(0.1)) == ""
    assert "another rate" in dropout_difference(draws(0.1), draws(0.3))
    assert "another rate" in dropout_difference(draws(0.1), draws(0.0))
    assert dropout_difference(draws(0.3), draws(0.3, 0.7))
    kept = [DropoutSample(1.0 + i / 100, 0.1 * (i % 3)) for i in range(DRAWS)]
    less = [DropoutSample(0.7 + i / 100, 0.1 * (i % 3)) for i in range(DRAWS)]
    assert "scaled differently" in dropout_difference(kept, less)


def test_a_sample_compares_with_the_run_without_dropout() -> None:
    x = torch.randn(256, 256)
    kept, spread = measure_dropout({"x": F.dropout(x, 0.2)}, {"x": x})
    assert abs(kept - 1) < 0.05 and abs(spread - 0.2 / 0.8) < 0.05
    assert measure_dropout({"x": x}, {"x": x}) == (1.0, 0.0)
    assert measure_dropout({"x": torch.zeros(3)}, {"x": torch.zeros(3)}) == (1.0, 0.0)
    not_finite = torch.tensor([math.nan, 1.0])
    assert measure_dropout({"x": not_finite}, {"x": not_finite}) == (1.0, 0.0)


def test_the_number_of_samples_is_limited() -> None:
    ones, twos = (itertools.repeat(DropoutSample(1.0, s)) for s in (1.0, 2.0))
    assert dropout_difference(ones, twos)


def test_one_run_shows_another_rate_another_scaling_and_missing_dropout() -> None:
    torch.manual_seed(0)
    x = torch.randn(4000, 8)
    usual = F.dropout(x, 0.2)
    assert single_run_difference(F.dropout(x, 0.2), usual, x, 2.0**-24) == ""
    assert single_run_difference(F.dropout(x, 52 / 256), usual, x, 2.0**-24) == ""  # as a kernel rounds it
    for wrong in (F.dropout(x, 0.35), 0.8 * F.dropout(x, 0.2), x):
        assert "of its size (torch: 0.5" in single_run_difference(wrong, usual, x, 2.0**-24)


def test_a_run_without_dropout_of_zeros_gives_absolute_numbers() -> None:
    nothing = torch.zeros(4000, 8)
    assert single_run_difference(nothing, nothing, nothing, 2.0**-24) == ""
    assert single_run_difference(nothing + 0.1, nothing, nothing, 2.0**-24)


def test_several_tensors_count_as_their_average() -> None:
    ones = torch.ones(4)
    assert measure_dropout({"x": ones, "y": 3 * ones}, {"x": ones, "y": ones}) == (2.0, 2.0)
    assert measure_dropout({"x": ones, "y": 3 * ones, "new": ones}, {"x": ones, "y": ones}) == (2.0, 2.0)
    assert measure_dropout({"x": 3 * ones, "nothing": 0 * ones}, {"x": ones, "nothing": 0 * ones}) == (3.0, 4.0)


@pytest.mark.parametrize("more", [0.01, -0.01])
def test_numbers_that_differ_by_two_units_count_as_equal(more: float) -> None:
    one, other = ([DropoutSample(kept, 0.1)] * DRAWS for kept in (1.0, 1.0 + more))
    assert dropout_difference(one, other, 0.006) == "" and "scaled differently" in dropout_difference(one, other, 0.004)
    one, other = ([DropoutSample(1.0, spread)] * DRAWS for spread in (0.1, 0.1 + more))
    assert dropout_difference(one, other, 0.006) == "" and "another rate" in dropout_difference(one, other, 0.004)


@pytest.mark.parametrize(
    ("kept_and_change", "expected"),
    [
        # For 10,000 rows, chance allows 5 / 100. The usual change is 0.5; it may differ by (0.1 + 0.05) * 0.5 + 0.001.
        # The usual kept share is 1; it may differ by 0.02 + 0.05 / 2 + 0.001.
        ((1.0, 0.57), True), ((1.0, 0.58), False), ((1.0, 0.43), True), ((1.0, 0.42), False),
        ((1.045, 0.5), True), ((1.047, 0.5), False), ((0.955, 0.5), True), ((0.953, 0.5), False),
    ],
)  # fmt: skip
def test_the_limits_of_one_run_are_as_computed(kept_and_change: tuple[float, float], expected: bool) -> None:
    assert (
        single_run_difference(_result_with(*kept_and_change), _result_with(1.0, 0.5), torch.ones(10_000, 4), 2.0**-24)
        == ""
    ) is expected


def test_coarse_dtypes_and_single_rows_have_wider_limits() -> None:
    still = torch.ones(10_000, 4)
    assert (
        single_run_difference(_result_with(1.0, 0.62), _result_with(1.0, 0.5), still, 2.0**-8) == ""
    )  # 0.075 + 0.0625 of room
    assert single_run_difference(_result_with(1.0, 0.64), _result_with(1.0, 0.5), still, 2.0**-8)
    row, usual = torch.ones(4), torch.tensor([1.5, 0.5, 1.5, 0.5])
    assert single_run_difference(2 * row, usual, row, 2.0**-24) == ""  # of a single row chance is five
    assert single_run_difference(torch.tensor(5.0), torch.tensor(1.0), torch.tensor(1.0), 2.0**-24)


def _result_with(kept: float, change: float) -> torch.Tensor:
    """A result that, compared with ones, keeps `kept` on average and changes by `change`."""
    apart = math.sqrt(change**2 - (kept - 1) ** 2)
    return torch.tensor([kept - apart, kept + apart]).repeat(20_000).view(10_000, 4)
