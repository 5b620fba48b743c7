"""No edit of an adversarial program changes what the program does.

known.txt lists the cells that are known to be wrong. The list only shrinks: the test of a listed cell that is right
fails, so that the cell must be removed from the list.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.adversary_text.judge import offered_edits, verdicts
from tests.adversary_text.program import KNOWN, Program
from tests.adversary_text.tables import every_program

LISTED = frozenset(KNOWN.read_text().splitlines())
PROGRAMS = list(every_program())
FLOOR = 30  # the least number of programs of plain.txt with a safe edit
_FAST = ("plain/a forward, attention", "plain/a forward, rms norm")


def _marks(program: Program) -> list[pytest.MarkDecorator]:
    return [pytest.mark.night] * program.night + [pytest.mark.fast] * (program.name in _FAST)


@pytest.mark.parametrize("program", [pytest.param(p, id=p.name, marks=_marks(p)) for p in PROGRAMS])
def test_what_a_program_does_stays(program: Program, record_property: Callable[[str, object], None]) -> None:
    new, repaired = [], []
    for verdict in verdicts(program):
        cell = f"{program.name} [{verdict.level}]"
        known = cell in LISTED
        record_property("attack on files", "known to be wrong" if known else f"{verdict.level} {verdict.outcome}")
        new += [f"{cell}: {w}" for w in verdict.wrong if not known]
        repaired += [cell] * (known and not verdict.wrong)
    assert not new, "\n".join([*new, f"show it with: python -m tests.adversary_text --show '{program.name}'"])
    assert not repaired, f"these cells are right now, remove them from known.txt: {repaired}"


def test_enough_plain_programs_have_a_safe_edit() -> None:
    plain = [p for p in PROGRAMS if p.area == "plain"]
    edited = [p.name for p in plain if any(told.startswith("safe") for told in offered_edits(p))]
    assert len(edited) >= FLOOR, sorted({p.name for p in plain} - set(edited))


@pytest.mark.fast
def test_there_are_at_least_500_programs_with_unique_names() -> None:
    assert len({p.name for p in PROGRAMS}) == len(PROGRAMS) >= 500


@pytest.mark.fast
def test_known_txt_lists_existing_programs() -> None:
    assert {line.rpartition(" [")[0] for line in LISTED} <= {p.name for p in PROGRAMS}
