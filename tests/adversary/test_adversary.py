"""Every adversarial program computes the same with and without autofuse.optimize, in every later use.

known.txt lists the cells that are known to be wrong. The list only shrinks: the test of a listed cell that is right
fails, so that the cell must be removed from the list.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from tests.adversary.judge import verdicts
from tests.adversary.program import KNOWN, WAYS, Program
from tests.adversary.tables import every_program

LISTED = frozenset(KNOWN.read_text().splitlines())
PROGRAMS = list(every_program())
_FAST = ("plain/attention", "plain/RMS norm")


def _marks(program: Program) -> list[pytest.MarkDecorator]:
    return [pytest.mark.night] * program.night + [pytest.mark.fast] * (program.name in _FAST)


def _ways(program: Program, request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Both ways by night, or if one is known to be wrong. By day one way, which a hash of the name chooses."""
    listed = any(f"{program.name} [{way}]" in LISTED for way in WAYS)
    both = request.config.option.night or listed
    return WAYS if both else (WAYS[zlib.crc32(program.name.encode()) % 2],)


@pytest.mark.parametrize("program", [pytest.param(p, id=p.name, marks=_marks(p)) for p in PROGRAMS])
def test_a_program_is_right_or_refused(
    program: Program, record_property: Callable[[str, object], None], request: pytest.FixtureRequest
) -> None:
    new, repaired = [], []
    for verdict in verdicts(program, _ways(program, request)):
        cell = f"{program.name} [{verdict.way}]"
        known = cell in LISTED
        record_property("attack", "known to be wrong" if known else verdict.outcome)
        new += [f"{cell}: {w}" for w in verdict.wrong if not known]
        repaired += [cell] * (known and not verdict.wrong)
    assert not new, "\n".join([*new, f"show it with: python -m tests.adversary --show '{program.name}'"])
    assert not repaired, f"these cells are right now, remove them from known.txt: {repaired}"


@pytest.mark.fast
def test_the_default_run_has_at_least_400_programs() -> None:
    assert sum(not p.night for p in PROGRAMS) >= 400


@pytest.mark.fast
def test_names_of_programs_are_unique_and_known_txt_lists_existing_programs() -> None:
    names = {p.name for p in PROGRAMS}
    assert len(names) == len(PROGRAMS)
    assert {line.rpartition(" [")[0] for line in LISTED} - names <= {"the long program"}
