"""Does the code rely on the memory layout of a result?

A hand-written norm keeps the layout of its input. The fused call returns a contiguous result. For attention,
place/layout_reads.py handles this: it makes the result contiguous, as that of a matrix product is. The result of an
einsum may not be contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.ir.graph import Value
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.site_values import describe_value
from autofuse.source.place.layout_callers import LayoutIndex
from autofuse.source.place.layout_reads import is_returned_as_is, layout_reads, receiving_functions

_ANY_ORDER = ("einsum", "einops_einsum")  # their result may have its dimensions in another order than its memory
_RETURN_CONTIGUOUS = ("layer_norm", "rms_norm", "dropout_add_norm")


def check_memory_layout(claim: Claim) -> Iterator[Missing | Fails]:
    """Fail if the function reads the layout of the result; yield an assumption if other code may read it."""
    for result in claim.site.results:
        if result.value.op in _ANY_ORDER and (read := _first_exact_read(claim, result.value)) is not None:
            yield Fails(because(writing.OTHER_LAYOUT), result.value, use=read)
            return
    if not claim.edit.becomes.endswith(_RETURN_CONTIGUOUS):
        return
    for result in claim.site.results:
        for read, is_transposed in layout_reads(claim.captured, result.value):
            if is_transposed or read.op != "view":
                yield Fails(because(writing.OTHER_LAYOUT), result.value, use=read)
                return
    other_scopes = claim.files.files_reading_layouts(claim.defined.scope) if claim.files is not None else ()
    indexes = [s.index(LayoutIndex) for s in (claim.defined.scope, *other_scopes)]
    reading = [index for index in indexes if index.has_reads(silent_only=True)]
    for result in claim.site.results:
        if any(_is_read_outside(claim, result.value, index) for index in reading):
            input_text = describe_value(claim, claim.site.captures["x"], "the input")
            yield Missing(f"assumes that {input_text} is contiguous, or that its memory layout is not relied on")


def _first_exact_read(claim: Claim, result: Value) -> Value | None:
    """The first line that reads strides or addresses of `result`, which a copy to contiguous memory changes."""
    reads = (read for read, _ in layout_reads(claim.captured, result))
    return next((r for r in reads if r.op not in ("view", "view_as")), None)


def _is_read_outside(claim: Claim, result: Value, index: LayoutIndex) -> bool:
    """Whether a caller of the function, or a function that it calls, depends on the layout of `result`."""
    captured, defined = claim.captured, claim.defined
    if is_returned_as_is(captured, result) and index.callers_read(captured.function, defined.owner, silent_only=True):
        return True
    return any(index.function_reads_arguments(name, silent_only=True) for name in receiving_functions(captured, result))
