"""Every adversarial program for the codemod, from the tables."""

from __future__ import annotations

from collections.abc import Iterator

from tests.adversary_text.program import PROGRAMS, Program, programs_of


def every_program() -> Iterator[Program]:
    """Yields all programs, including those for the night."""
    for file in sorted(PROGRAMS.glob("*.txt")):
        yield from programs_of(file.stem)
