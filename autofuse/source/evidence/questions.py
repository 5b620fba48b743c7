"""The questions, and what their answers amount to. It stands apart from claim.py, which each question imports."""

from __future__ import annotations

from autofuse.rule import Fails
from autofuse.source.evidence.attention_operands import operands_fit
from autofuse.source.evidence.claim import Claim, Question
from autofuse.source.evidence.floating_input import input_is_floating
from autofuse.source.evidence.handed_on import handed_on
from autofuse.source.evidence.which_code import which_code

# One entry for each question of this package, in the order in which a message names what is missing.
QUESTIONS: tuple[Question, ...] = (handed_on, input_is_floating, operands_fit, which_code)


def examined(claim: Claim) -> Fails | tuple[str, ...]:
    """What the edit assumes, a clause for each missing piece of evidence; Fails where the text shows it wrong."""
    missing: list[str] = []
    for question in QUESTIONS:
        for answer in question(claim):
            if isinstance(answer, Fails):
                return answer
            missing.append(answer.why)
    return tuple(dict.fromkeys(missing))
