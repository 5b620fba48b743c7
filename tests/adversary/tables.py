"""Every program of the attack, from its tables."""

from __future__ import annotations

from collections.abc import Iterator

from tests.adversary import reads
from tests.adversary.program import Program, program_of, sections

AREAS = ("plain",)


def every_program() -> Iterator[Program]:
    """All programs, those for the night too."""
    for area in AREAS:
        yield from (program_of(section, area) for section in sections(f"{area}.txt"))
    yield from reads.programs()
