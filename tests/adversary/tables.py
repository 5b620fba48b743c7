"""Every program of the attack, from its tables."""

from __future__ import annotations

from collections.abc import Iterator

from tests.adversary import reads
from tests.adversary.program import Program, programs_of, sections

AREAS = (
    "plain", "effects", "arguments", "replaced", "ambient", "identity", "inplace", "uncopyable", "wrappers", "masks",
    "losses", "between", "later", "holders", "layers", "uses", "patches", "experts", "heads", "variants",
    "residuals", "weak",
)  # fmt: skip


def every_program() -> Iterator[Program]:
    """All programs, those for the night too."""
    for area in AREAS:
        for section in sections(f"{area}.txt"):
            yield from programs_of(section, area)
    yield from reads.programs()
