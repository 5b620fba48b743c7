"""Every question that an edit has to answer before it is called safe, and what the answers amount to.

It stands apart from claim.py, which each question imports.
"""

from __future__ import annotations

from autofuse.ir.steps import spend
from autofuse.rule import Fails
from autofuse.source.evidence.added_positions import positions_keep_their_dtype
from autofuse.source.evidence.allowed_kernels import kernels_are_not_restricted
from autofuse.source.evidence.attention_operands import operands_fit
from autofuse.source.evidence.calls_once import calls_are_made_once
from autofuse.source.evidence.claim import Claim, Question
from autofuse.source.evidence.computed_names import names_are_not_computed
from autofuse.source.evidence.dtype_reads import dtypes_agree_with_operands
from autofuse.source.evidence.floating_input import input_is_floating
from autofuse.source.evidence.given_operands import calls_give_what_fits
from autofuse.source.evidence.handed_on import handed_on
from autofuse.source.evidence.in_between import nothing_writes_in_between
from autofuse.source.evidence.is_torch import is_torch
from autofuse.source.evidence.left_behind import nothing_is_left_behind
from autofuse.source.evidence.looked_into import nothing_looks_inside
from autofuse.source.evidence.loss_targets import loss_has_dtype_of_logits, targets_are_classes
from autofuse.source.evidence.lost_digits import digits_are_kept
from autofuse.source.evidence.mapped_calls import is_not_mapped
from autofuse.source.evidence.mask_heads import mask_has_no_more_heads
from autofuse.source.evidence.memory_layout import layout_is_not_read
from autofuse.source.evidence.second_derivatives import differentiates_once
from autofuse.source.evidence.shown_result import result_is_not_shown
from autofuse.source.evidence.shown_text import shows_no_text
from autofuse.source.evidence.star_imports import no_star_hides_a_name
from autofuse.source.evidence.watchers import operations_are_not_told_apart
from autofuse.source.evidence.which_code import which_code

# One entry for each question of this package, in the order in which a message names what is missing.
QUESTIONS: tuple[Question, ...] = (
    is_torch,
    handed_on,
    no_star_hides_a_name,
    names_are_not_computed,
    input_is_floating,
    operands_fit,
    mask_has_no_more_heads,
    calls_give_what_fits,
    is_not_mapped,
    nothing_is_left_behind,
    targets_are_classes,
    loss_has_dtype_of_logits,
    digits_are_kept,
    differentiates_once,
    positions_keep_their_dtype,
    nothing_writes_in_between,
    calls_are_made_once,
    shows_no_text,
    result_is_not_shown,
    dtypes_agree_with_operands,
    layout_is_not_read,
    operations_are_not_told_apart,
    nothing_looks_inside,
    kernels_are_not_restricted,
    which_code,  # reads the function again, so it comes last
)


def examined(claim: Claim) -> Fails | tuple[str, ...]:
    """What the edit assumes, a clause for each missing piece of evidence; Fails where the text shows it wrong."""
    missing: list[str] = []
    spend(1 + len(claim.captured.graph.values) // 2)  # each question looks through the function
    for question in QUESTIONS:
        for answer in question(claim):
            if isinstance(answer, Fails):
                return answer
            missing.append(answer.why)
    return tuple(dict.fromkeys(missing))
