"""The list of all questions about an edit, and the function that asks them.

The list is not in claim.py, because each question imports that file.
"""

from __future__ import annotations

from autofuse.ir.steps import spend
from autofuse.rule import Fails
from autofuse.source.capture.node_index import node_index
from autofuse.source.evidence.added_positions import positions_keep_their_dtype
from autofuse.source.evidence.allowed_kernels import kernels_are_not_restricted
from autofuse.source.evidence.attention_operands import attention_operands_fit
from autofuse.source.evidence.call_operands import calls_pass_valid_operands
from autofuse.source.evidence.changed_numbers import reads_are_not_changed
from autofuse.source.evidence.claim import Claim, Question
from autofuse.source.evidence.code_that_runs import check_code_that_runs
from autofuse.source.evidence.dropped_rows import rows_keep_a_key
from autofuse.source.evidence.dtype_reads import dtypes_agree_with_operands
from autofuse.source.evidence.dynamic_names import names_are_not_bound_dynamically
from autofuse.source.evidence.even_width import width_is_even
from autofuse.source.evidence.floating_input import input_is_floating
from autofuse.source.evidence.introspection import function_is_not_inspected
from autofuse.source.evidence.loss_targets import loss_has_dtype_of_logits, targets_are_classes
from autofuse.source.evidence.lost_dimensions import operands_keep_dimensions
from autofuse.source.evidence.mask_heads import check_mask_heads
from autofuse.source.evidence.memory_layout import check_memory_layout
from autofuse.source.evidence.norm_weights import weight_has_dtype_of_sum
from autofuse.source.evidence.passed_dimensions import calls_keep_dimensions
from autofuse.source.evidence.passed_functions import function_is_only_called
from autofuse.source.evidence.printed_result import check_printed_result
from autofuse.source.evidence.printed_text import check_printed_text
from autofuse.source.evidence.remaining_scores import scores_are_not_computed_twice
from autofuse.source.evidence.repeated_calls import calls_are_not_repeated
from autofuse.source.evidence.second_derivatives import check_derivatives
from autofuse.source.evidence.star_imports import check_star_imports
from autofuse.source.evidence.torch_tensors import operands_are_torch_tensors
from autofuse.source.evidence.unread_files import all_files_were_read
from autofuse.source.evidence.variance_cancellation import variance_has_no_cancellation
from autofuse.source.evidence.vmap_calls import check_vmap
from autofuse.source.evidence.watchers import check_operation_watchers
from autofuse.source.evidence.writes_between import nothing_writes_to_operands
from autofuse.source.evidence.written_results import result_is_not_written

_NODES_PER_STEP = 50  # nodes of the file that the questions visit in the time of a step
_STEPS = 250  # the questions about a short function take as long as so many steps

# One entry for each question of this package. A message names missing evidence in this order.
QUESTIONS: tuple[Question, ...] = (
    operands_are_torch_tensors,
    function_is_only_called,
    check_star_imports,
    names_are_not_bound_dynamically,
    input_is_floating,
    width_is_even,
    weight_has_dtype_of_sum,
    attention_operands_fit,
    operands_keep_dimensions,
    calls_keep_dimensions,
    check_mask_heads,
    calls_pass_valid_operands,
    check_vmap,
    scores_are_not_computed_twice,
    targets_are_classes,
    loss_has_dtype_of_logits,
    variance_has_no_cancellation,
    check_derivatives,
    positions_keep_their_dtype,
    rows_keep_a_key,
    nothing_writes_to_operands,
    result_is_not_written,
    reads_are_not_changed,
    calls_are_not_repeated,
    check_printed_text,
    check_printed_result,
    dtypes_agree_with_operands,
    check_memory_layout,
    check_operation_watchers,
    function_is_not_inspected,
    kernels_are_not_restricted,
    check_code_that_runs,  # late, because it captures the function again, which takes longest
    all_files_were_read,  # last, because it asks whether the others have read all files
)


def examine_claim(claim: Claim) -> Fails | tuple[str, ...]:
    """Ask every question about an edit.

    Returns:
        One clause for each missing piece of evidence, or Fails if the text shows that the edit is wrong.
    """
    assumptions: list[str] = []
    nodes = len(node_index(claim.defined.scope.tree).nodes)
    # Each question looks through the function, and some look through the file.
    spend(_STEPS + len(claim.captured.graph.values) // 2 + nodes // _NODES_PER_STEP)
    for question in QUESTIONS:
        for answer in question(claim):
            if isinstance(answer, Fails):
                return answer
            assumptions.append(answer.why)
    return tuple(dict.fromkeys(assumptions))
