"""The heat map shows the rank that others wait for, although all steps are equally long."""

from __future__ import annotations

from dataclasses import replace

from autofuse.display.heat_map import heat_map
from autofuse.results.profile_parts import RankSteps
from tests.display.samples import rank_steps


def test_only_the_late_rank_is_dark() -> None:
    found = heat_map(rank_steps())
    assert found is not None
    shades = {(rank, step): found.shade(found.seconds[rank][step]) for rank in range(4) for step in range(6)}
    assert {place for place, shade in shades.items() if shade} == {(2, 3)} and shades[2, 3] == 5


def test_a_shade_is_a_twentieth_above_the_median() -> None:
    ranks = [RankSteps(i, (), (1.0, 1.0, 1.0 + 0.06 * i), ()) for i in range(4)]
    found = heat_map(ranks)
    assert found is not None and found.middle == 1.0
    assert [found.shade(value) for value in (0.5, 1.0, 1.01, 1.06, 1.12, 3.0)] == [0, 0, 1, 2, 3, 5]


def test_every_cell_has_its_number_and_its_headings() -> None:
    found = heat_map(rank_steps())
    assert found is not None
    text = found.markup()
    assert text.count("<td") == 24 and text.count('<th scope="row">') == 4 and "step 6" in text and "125 ms" in text


def test_a_terminal_has_a_character_for_each_cell() -> None:
    found = heat_map(rank_steps())
    assert found is not None
    assert [line.split()[2] for line in found.text().plain.splitlines()[1:]] == ["······", "······", "···█··", "······"]


def test_one_rank_or_unequal_steps_have_no_heat_map() -> None:
    ranks = rank_steps()
    assert heat_map(ranks[:1]) is None
    assert heat_map((ranks[0], replace(ranks[1], seconds=(0.1,)))) is None
    assert heat_map([replace(rank, seconds=()) for rank in ranks]) is None
