"""Every question that an edit has to answer before it is called safe."""

from __future__ import annotations

from autofuse.rule import Fails
from autofuse.source.evidence.calls_once import calls_are_made_once
from autofuse.source.evidence.claim import Claim, Question
from autofuse.source.evidence.dtype_reads import dtypes_agree_with_operands
from autofuse.source.evidence.in_between import nothing_writes_in_between
from autofuse.source.evidence.is_torch import is_torch
from autofuse.source.evidence.memory_layout import layout_is_not_read
from autofuse.source.evidence.shown_result import result_is_not_shown
from autofuse.source.evidence.shown_text import shows_no_text
from autofuse.source.evidence.star_imports import no_star_hides_a_name

# One entry for each file of this package that asks one, in the order in which a message names what is missing.
QUESTIONS: tuple[Question, ...] = (
    is_torch,
    no_star_hides_a_name,
    nothing_writes_in_between,
    calls_are_made_once,
    shows_no_text,
    result_is_not_shown,
    dtypes_agree_with_operands,
    layout_is_not_read,
)


def examined(claim: Claim) -> Fails | tuple[str, ...]:
    """What the edit assumes, a clause for each missing piece of evidence; Fails where the text shows it wrong."""
    missing: list[str] = []
    for question in QUESTIONS:
        for answer in question(claim):
            if isinstance(answer, Fails):
                return answer
            missing.append(answer.why)
    return tuple(dict.fromkeys(missing))
