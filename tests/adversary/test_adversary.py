"""Every program of the attack computes with autofuse.optimize what it computes without, in every later use.

What is known to be wrong stands in known.txt until it is mended. The list only shrinks: a cell that is listed and right
fails, so that it is taken out.
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
    """Both by night, and where one is known to be wrong; by day one, chosen by a hash of the name."""
    listed = any(f"{program.name} [{way}]" in LISTED for way in WAYS)
    both = request.config.option.night or listed
    return WAYS if both else (WAYS[zlib.crc32(program.name.encode()) % 2],)


@pytest.mark.parametrize("program", [pytest.param(p, id=p.name, marks=_marks(p)) for p in PROGRAMS])
def test_a_program_is_right_or_refused(
    program: Program, record_property: Callable[[str, object], None], request: pytest.FixtureRequest
) -> None:
    new, mended = [], []
    for verdict in verdicts(program, _ways(program, request)):
        cell = f"{program.name} [{verdict.way}]"
        known = cell in LISTED
        record_property("attack", "known to be wrong" if known else verdict.outcome)
        new += [f"{cell}: {w}" for w in verdict.wrong if not known]
        mended += [cell] * (known and not verdict.wrong)
    assert not new, "\n".join([*new, f"look at it by: python -m tests.adversary --show '{program.name}'"])
    assert not mended, f"take out of known.txt, it is right now: {mended}"


@pytest.mark.fast
def test_the_default_run_takes_at_least_400_programs() -> None:
    assert sum(not p.night for p in PROGRAMS) >= 400


@pytest.mark.fast
def test_no_two_programs_have_one_name_and_what_is_known_to_be_wrong_is_a_program() -> None:
    names = {p.name for p in PROGRAMS}
    assert len(names) == len(PROGRAMS)
    assert {line.rpartition(" [")[0] for line in LISTED} - names <= {"the long program"}
