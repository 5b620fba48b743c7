"""Checks reads of `x.dtype` that the edit moves from an intermediate value to an operand.

Under autocast the two may have different dtypes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.graph import ATTRIBUTE, Value
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.place.edits import span_of


def dtypes_agree_with_operands(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports each `x.dtype` of an intermediate value that the edit replaces by the dtype of an operand."""
    for read in sorted(claim.site.removed.metadata, key=lambda v: v.serial):
        if read.op != ATTRIBUTE or read.data != "dtype" or _is_cast(read.inputs[0]):
            continue
        if text := _rewritten_text(claim, read):
            yield Missing(f"assumes that autocast is off, under which `{text}` may be another dtype")


def _rewritten_text(claim: Claim, read: Value) -> str:
    """Returns the source text of a read that the edit rewrites; "" if the edit keeps or removes it."""
    changed = {span for span, _ in claim.edit.replacements}
    for place in claim.captured.positions.get(read, ()):
        if span_of(place.node) in changed:
            return ast.unparse(place.node)
    return ""


def _is_cast(v: Value) -> bool:
    """Whether `v` is a cast, so that its dtype does not depend on autocast."""
    return v.op in ("float", "double", "half", "bfloat16", "to")
