"""No edit of a program of the attack on files changes what the program does.

What is known to be wrong stands in known.txt until it is mended. The list only shrinks: a cell that is listed and right
fails, so that it is taken out.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.adversary_text.judge import offered, verdicts
from tests.adversary_text.program import KNOWN, Program
from tests.adversary_text.tables import every_program

LISTED = frozenset(KNOWN.read_text().splitlines())
PROGRAMS = list(every_program())
FLOOR = 30  # programs of plain.txt, at least, of which something is edited without asking
_FAST = ("plain/a forward, attention", "plain/a forward, rms norm")


def _marks(program: Program) -> list[pytest.MarkDecorator]:
    return [pytest.mark.night] * program.night + [pytest.mark.fast] * (program.name in _FAST)


@pytest.mark.parametrize("program", [pytest.param(p, id=p.name, marks=_marks(p)) for p in PROGRAMS])
def test_what_a_program_does_stays(program: Program, record_property: Callable[[str, object], None]) -> None:
    new, mended = [], []
    for verdict in verdicts(program):
        cell = f"{program.name} [{verdict.level}]"
        known = cell in LISTED
        record_property("attack on files", "known to be wrong" if known else f"{verdict.level} {verdict.outcome}")
        new += [f"{cell}: {w}" for w in verdict.wrong if not known]
        mended += [cell] * (known and not verdict.wrong)
    assert not new, "\n".join([*new, f"look at it by: python -m tests.adversary_text --show '{program.name}'"])
    assert not mended, f"take out of known.txt, it is right now: {mended}"


def test_enough_is_edited_without_asking() -> None:
    plain = [p for p in PROGRAMS if p.area == "plain"]
    edited = [p.name for p in plain if any(told.startswith("safe") for told in offered(p))]
    assert len(edited) >= FLOOR, sorted({p.name for p in plain} - set(edited))


@pytest.mark.fast
def test_there_are_at_least_500_programs_and_no_two_have_one_name() -> None:
    assert len({p.name for p in PROGRAMS}) == len(PROGRAMS) >= 500


@pytest.mark.fast
def test_what_is_known_to_be_wrong_is_a_program() -> None:
    assert {line.rpartition(" [")[0] for line in LISTED} <= {p.name for p in PROGRAMS}
