"""Does anybody read the dtype of what goes? Under autocast it is not that of the operands."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.graph import ATTRIBUTE, Value
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.place.edits import span_of


def dtypes_agree_with_operands(claim: Claim) -> Iterator[Missing | Fails]:
    """What a dtype that is read off an operand instead assumes."""
    for read in claim.site.doomed.metadata:
        if read.op != ATTRIBUTE or read.data != "dtype" or _cast(read.inputs[0]):
            continue
        if text := _rewritten(claim, read):
            yield Missing(f"assumes that autocast is off, under which `{text}` may be another dtype")


def _rewritten(claim: Claim, read: Value) -> str:
    """The text of a read that the edit changes; "" where it stays or goes."""
    changed = {span for span, _ in claim.edit.replacements}
    for place in claim.captured.places.get(read, ()):
        if span_of(place.node) in changed:
            return ast.unparse(place.node)
    return ""


def _cast(v: Value) -> bool:
    """Whether a value has its dtype by its own spelling."""
    return v.op in ("float", "double", "half", "bfloat16", "to")
