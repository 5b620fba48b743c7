"""Every program of the attack on files, from its tables."""

from __future__ import annotations

from collections.abc import Iterator

from tests.adversary_text.program import PROGRAMS, Program, programs_of


def every_program() -> Iterator[Program]:
    """All programs, those for the night too."""
    for file in sorted(PROGRAMS.glob("*.txt")):
        yield from programs_of(file.stem)
