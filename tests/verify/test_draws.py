"""autofuse.verify.draws: the chance of a false alarm is what it says, and drawing stops when the verdict stands."""

from __future__ import annotations

import itertools
import math
import random

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
