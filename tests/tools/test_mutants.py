"""Mutants are valid programs with one change, and the same seed gives the same mutants."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.mutants.areas import AREAS, ROOT
from tools.mutants.choosing import choose_mutants
from tools.mutants.operators import changes

TEXT = '''
def rank(x, limit: int = 3):
    """Words are no behaviour: 1 < 2."""
    if x is None:
        return False
    if x < limit and not x == 2:
        store(x)
    x += 1
    return clamp(x, -limit * 2)
'''
EXPECTED = {
    "negate a condition": {"if (not (x is None)):", "if (not (x < limit and (not x == 2))):"},
    "swap a comparison": {"if (x is not None):", "if (x <= limit) and not x == 2:", "if x < limit and not (x != 2):"},
    "swap and with or": {"if (x < limit or not x == 2):"},
    "drop a condition": {"if ((x < limit)):", "if ((not x == 2)):"},
    "remove a not": {"if x < limit and bool(x == 2):"},
    "drop a guard": {"pass"},
    "drop a statement": {"pass"},
    "return what came": {"return x"},
    "return nothing found": {"return True"},
    "miss a number by one": {"if x < limit and not x == 3:", "x += 2", "return clamp(x, -limit * 3)"},
    "swap an arithmetic operator": {"return clamp(x, (-limit / 2))"},
    "lose a sign": {"return clamp(x, (limit) * 2)"},
}


@pytest.mark.parametrize(("operator", "lines"), EXPECTED.items(), ids=EXPECTED)
def test_an_operator_creates_exactly_these_lines(operator: str, lines: set[str]) -> None:
    before = TEXT.splitlines()
    made = [c.apply(TEXT).splitlines() for c in changes(TEXT) if c.operator == operator]
    new = {line.strip() for after in made for line in after if line not in before}
    assert new == {" ".join(line.split()) for line in lines}


def test_texts_annotations_and_defaults_are_not_changed() -> None:
    for change in changes(TEXT):
        assert change.apply(TEXT).splitlines()[:3] == TEXT.splitlines()[:3]


def test_the_same_seed_makes_the_same_mutants_evenly_over_the_areas_and_another_makes_others() -> None:
    one, again, other = (choose_mutants(14, seed) for seed in (1, 1, 2))
    assert one == again and {str(m) for m in one} != {str(m) for m in other}
    assert sorted(m.area for m in one) == sorted([*AREAS, *AREAS])
    for mutant in one:
        ast.parse(mutant.changed)
        assert mutant.changed != mutant.text == (ROOT / mutant.file).read_text()
        assert any(line.startswith("-") for line in mutant.difference().splitlines())


@pytest.mark.parametrize("area", AREAS)
def test_every_file_of_an_area_is_there_and_has_tests(area: str) -> None:
    for file in AREAS[area].files():
        assert Path(ROOT / file).is_file(), file
        assert AREAS[area].tests_of(file)
    assert [t for t in AREAS[area].tests if not (ROOT / "tests" / t).exists()] == []
