"""Chooses mutants evenly over the areas, their files and the kinds of change. The same seed gives the same mutants."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tools.mutants.areas import AREAS, ROOT
from tools.mutants.operators import Change, changes, is_program


@dataclass(frozen=True)
class Mutant:
    """One wrong change of one file."""

    area: str
    file: str
    text: str  # of the original file
    change: Change

    @property
    def changed(self) -> str:
        """The text of the file with the change."""
        return self.change.apply(self.text)

    def difference(self) -> str:
        """The changed lines, as a diff."""
        lines = self.text.splitlines(), self.changed.splitlines()
        return "\n".join([*difflib.unified_diff(lines[0], lines[1], lineterm="", n=1)][2:])

    def __str__(self) -> str:
        return f"{self.file}:{self.change.line}: {self.change.operator}"


def choose_mutants(count: int, seed: int, only: tuple[str, ...] = ()) -> list[Mutant]:
    """Choose `count` mutants, from each area in turn."""
    areas = [name for name in AREAS if not only or name in only]
    mutants = {name: _mutants_of(name, Random(f"{seed} {name}")) for name in areas}
    found = list[Mutant]()
    while len(found) < count and mutants:
        for name in [*mutants]:
            mutant = next(mutants[name], None)
            if mutant is None:
                del mutants[name]
            elif len(found) < count:
                found.append(mutant)
    return sorted(found, key=lambda m: (areas.index(m.area), m.file, m.change.start))


def _mutants_of(area: str, random: Random) -> Iterator[Mutant]:
    """Yield mutants of an area at random: for each file in turn, a kind of change, then a change of this kind."""
    left = {file: changes((ROOT / file).read_text()) for file in AREAS[area].files()}
    while left:
        files = [*left]
        random.shuffle(files)
        for file in files:
            kinds = sorted({c.operator for c in left[file]})
            if not kinds:
                del left[file]
                continue
            kind = random.choice(kinds)
            change = random.choice([c for c in left[file] if c.operator == kind])
            left[file] = [c for c in left[file] if c.line != change.line]  # at most one change for each line
            mutant = Mutant(area, file, (ROOT / file).read_text(), change)
            if is_program(mutant.changed):
                yield mutant
