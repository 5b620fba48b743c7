"""Which mutants a run makes: evenly over the areas, their files and the kinds of change, the same for the same seed."""

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
    text: str  # of the file as it is
    change: Change

    @property
    def changed(self) -> str:
        """The file's text as the mutant has it."""
        return self.change.made(self.text)

    def difference(self) -> str:
        """The changed lines, as a diff has them."""
        lines = self.text.splitlines(), self.changed.splitlines()
        return "\n".join([*difflib.unified_diff(lines[0], lines[1], lineterm="", n=1)][2:])

    def __str__(self) -> str:
        return f"{self.file}:{self.change.line}: {self.change.operator}"


def chosen(count: int, seed: int, only: tuple[str, ...] = ()) -> list[Mutant]:
    """`count` mutants of the areas in turn."""
    areas = [name for name in AREAS if not only or name in only]
    drawn = {name: _drawn(name, Random(f"{seed} {name}")) for name in areas}
    found = list[Mutant]()
    while len(found) < count and drawn:
        for name in [*drawn]:
            mutant = next(drawn[name], None)
            if mutant is None:
                del drawn[name]
            elif len(found) < count:
                found.append(mutant)
    return sorted(found, key=lambda m: (areas.index(m.area), m.file, m.change.start))


def _drawn(area: str, random: Random) -> Iterator[Mutant]:
    """The area's mutants: its files in turn, of each a kind of change, of the kind one."""
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
            left[file] = [c for c in left[file] if c.line != change.line]  # one for each line
            mutant = Mutant(area, file, (ROOT / file).read_text(), change)
            if is_program(mutant.changed):
                yield mutant
