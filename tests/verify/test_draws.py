"""autofuse.verify.draws: the chance of a false alarm is what it says, and drawing stops when the verdict stands."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F

from autofuse.verify.draws import DRAWS, Draw, difference, difference_at_once, draw


def test_two_modules_alike_are_told_apart_with_a_chance_below_one_in_a_million() -> None:
    statistics, directions = 2, 2
    assert statistics * directions / math.comb(2 * DRAWS, DRAWS) < 1e-6


def test_drawing_stops_once_the_numbers_interleave() -> None:
    generator, taken = random.Random(0), 0

    def draws() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield Draw(generator.random(), generator.random())

    assert difference(draws(), draws()) == ""
    assert taken < 2 * DRAWS


def test_another_rate_and_another_scaling_are_told_apart_in_words() -> None:
    x = torch.randn(64, 64)

    def draws(p: float, factor: float = 1.0) -> list[Draw]:
        return [draw({"x": factor * F.dropout(x, p)}, {"x": x}) for _ in range(DRAWS)]

    torch.manual_seed(0)
    assert difference(draws(0.1), draws(0.1)) == ""
    assert "another rate" in difference(draws(0.1), draws(0.3))
    assert "another rate" in difference(draws(0.1), draws(0.0))
    assert difference(draws(0.3), draws(0.3, 0.7))
    kept = [Draw(1.0 + i / 100, 0.1 * (i % 3)) for i in range(DRAWS)]
    less = [Draw(0.7 + i / 100, 0.1 * (i % 3)) for i in range(DRAWS)]
    assert "scaled differently" in difference(kept, less)


def test_a_draw_is_measured_beside_the_run_without_dropout() -> None:
    x = torch.randn(256, 256)
    kept, spread = draw({"x": F.dropout(x, 0.2)}, {"x": x})
    assert abs(kept - 1) < 0.05 and abs(spread - 0.2 / 0.8) < 0.05
    assert draw({"x": x}, {"x": x}) == (1.0, 0.0)
    assert draw({"x": torch.zeros(3)}, {"x": torch.zeros(3)}) == (1.0, 0.0)
    not_finite = torch.tensor([math.nan, 1.0])
    assert draw({"x": not_finite}, {"x": not_finite}) == (1.0, 0.0)


def test_at_most_so_many_runs_are_drawn() -> None:
    ones, twos = (itertools.repeat(Draw(1.0, s)) for s in (1.0, 2.0))
    assert difference(ones, twos)


def test_one_run_tells_another_rate_scaling_and_no_dropout_at_all() -> None:
    torch.manual_seed(0)
    x = torch.randn(4000, 8)
    usual = F.dropout(x, 0.2)
    assert difference_at_once(F.dropout(x, 0.2), usual, x, 2.0**-24) == ""
    assert difference_at_once(F.dropout(x, 52 / 256), usual, x, 2.0**-24) == ""  # as a kernel rounds it
    for wrong in (F.dropout(x, 0.35), 0.8 * F.dropout(x, 0.2), x):
        assert "of itself where torch's does by 0.5" in difference_at_once(wrong, usual, x, 2.0**-24)


def test_one_run_beside_nothing_but_zeros_is_measured_as_it_is() -> None:
    nothing = torch.zeros(4000, 8)
    assert difference_at_once(nothing, nothing, nothing, 2.0**-24) == ""
    assert difference_at_once(nothing + 0.1, nothing, nothing, 2.0**-24)


def test_several_tensors_count_as_their_average() -> None:
    ones = torch.ones(4)
    assert draw({"x": ones, "y": 3 * ones}, {"x": ones, "y": ones}) == (2.0, 2.0)
    assert draw({"x": ones, "y": 3 * ones, "new": ones}, {"x": ones, "y": ones}) == (2.0, 2.0)
    assert draw({"x": 3 * ones, "nothing": 0 * ones}, {"x": ones, "nothing": 0 * ones}) == (3.0, 4.0)


@pytest.mark.parametrize("more", [0.01, -0.01])
def test_numbers_within_two_units_of_each_other_are_not_apart(more: float) -> None:
    one, other = ([Draw(kept, 0.1)] * DRAWS for kept in (1.0, 1.0 + more))
    assert difference(one, other, 0.006) == "" and "scaled differently" in difference(one, other, 0.004)
    one, other = ([Draw(1.0, spread)] * DRAWS for spread in (0.1, 0.1 + more))
    assert difference(one, other, 0.006) == "" and "another rate" in difference(one, other, 0.004)


@pytest.mark.parametrize(
    ("found", "alike"),
    [
        # Of 10,000 rows chance is 5 / 100. The usual change is 0.5: 0.1 + 0.05 of it and 0.001 may be missing or added,
        # and of what is kept, 1, there may be 0.02 + 0.05 / 2 + 0.001 more or less.
        ((1.0, 0.57), True), ((1.0, 0.58), False), ((1.0, 0.43), True), ((1.0, 0.42), False),
        ((1.045, 0.5), True), ((1.047, 0.5), False), ((0.955, 0.5), True), ((0.953, 0.5), False),
    ],
)  # fmt: skip
def test_one_run_leaves_as_much_room_as_is_on_paper(found: tuple[float, float], alike: bool) -> None:
    assert (difference_at_once(_of(*found), _of(1.0, 0.5), torch.ones(10_000, 4), 2.0**-24) == "") is alike


def test_coarse_numbers_leave_sixteen_units_and_a_row_more_room() -> None:
    still = torch.ones(10_000, 4)
    assert difference_at_once(_of(1.0, 0.62), _of(1.0, 0.5), still, 2.0**-8) == ""  # 0.075 + 0.0625 of room
    assert difference_at_once(_of(1.0, 0.64), _of(1.0, 0.5), still, 2.0**-8)
    row, usual = torch.ones(4), torch.tensor([1.5, 0.5, 1.5, 0.5])
    assert difference_at_once(2 * row, usual, row, 2.0**-24) == ""  # of a single row chance is five
    assert difference_at_once(torch.tensor(5.0), torch.tensor(1.0), torch.tensor(1.0), 2.0**-24)


def _of(kept: float, change: float) -> torch.Tensor:
    """Beside ones, a result that is `kept` on average and `change` away: from 1, not from its own average."""
    apart = math.sqrt(change**2 - (kept - 1) ** 2)
    return torch.tensor([kept - apart, kept + apart]).repeat(20_000).view(10_000, 4)
