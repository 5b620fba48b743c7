"""Every adversarial program, from the tables."""

from __future__ import annotations

from collections.abc import Iterator

from tests.adversary import reads
from tests.adversary.program import Program, programs_of, sections

AREAS = (
    "plain", "effects", "arguments", "replaced", "ambient", "identity", "inplace", "uncopyable", "wrappers", "masks",
    "losses", "between", "later", "holders", "layers", "uses", "patches", "experts", "heads", "variants",
    "residuals", "weak", "lookups", "children", "reached", "sizes", "decimals", "names", "bases",
    "given", "forms",
)  # fmt: skip


def every_program() -> Iterator[Program]:
    """Yields all programs, including those for the night."""
    for area in AREAS:
        for section in sections(f"{area}.txt"):
            yield from programs_of(section, area)
    yield from reads.programs()
