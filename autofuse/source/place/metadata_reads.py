"""Replaces reads of the shape, dtype or device of a tensor that an edit removes: the operands have the same."""

from __future__ import annotations

import ast

from autofuse.ir.graph import ITEM, SLICE, Value
from autofuse.ir.steps import spend
from autofuse.match.legality import is_metadata
from autofuse.match.site import Site
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.source.capture.captured import ValuePosition
from autofuse.source.capture.imports import Imports
from autofuse.source.place.edits import NewText, TextSpan, is_within, span_of
from autofuse.source.place.function import EditedFunction
from autofuse.source.place.shape_reads import accepts_tuple, is_tuple
from autofuse.source.targets.speller import Speller, Unwritable


def replace_metadata_reads(
    function: EditedFunction, site: Site, speller: Speller, imports: Imports
) -> list[tuple[TextSpan, NewText]]:
    """The replacements of the reads that a site makes impossible. Raises Unwritable if one cannot be written."""
    replacements = []
    for read in sorted({*site.removed.metadata, *shape_reads(speller)}, key=lambda v: v.serial):
        for place in function.captured.positions.get(read, []):
            if is_within(place.node, speller.root.node):
                continue
            value, node = _with_index(function, read, place)
            speller_there = function.make_speller(site, place, speller.root, imports, {})
            speller_there.used, speller_there.removed_statements = speller.used, speller.removed_statements
            text = speller_there.text(function.view.of(value))
            if is_tuple(text) and not accepts_tuple(node, place.statement):
                text = f"{imports.text('torch.Size', place)}({text})"
            if is_tuple(text) and text.startswith("(") and getattr(place.statement, "value", None) is node:
                text = text[1:-1]  # `i, j = q.shape[-2], k.shape[-2]`
            replacements.append((span_of(node), NewText(text)))
    return replacements


def shape_reads(speller: Speller) -> set[Value]:
    """The reads of the shape or dtype of removed values on which the call still depends."""
    reads, todo, seen = set[Value](), list(speller.used), set[Value]()
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in speller.removed_values:
            raise Unwritable(because(matches.OPERAND_FROM_REMOVED, what="the scores", which="the scores"))
        reads_removed = is_metadata(value) and any(i in speller.removed_values for i in value.inputs)
        reads |= {value} if reads_removed else set()
        spend()
        todo += [] if reads_removed else [i for i in value.inputs if i.serial >= speller.first_removed]
    return reads


def _with_index(function: EditedFunction, read: Value, place: ValuePosition) -> tuple[Value, ast.expr]:
    """The indexing expression around a read, such as `scores.shape[-1]`, or else the read itself."""
    for user in function.captured.graph.users[read]:
        is_item = user.op == ITEM and (user.inputs[1].op != SLICE or _takes_last_two(user.inputs[1]))
        for p in function.captured.positions.get(user, []) if is_item else ():
            if isinstance(p.node, ast.Subscript) and p.node.value is place.node:
                return user, p.node
    return read, place.node


def _takes_last_two(index: Value) -> bool:
    """Whether an index is `[-2:]`."""
    start, end, step = index.inputs
    return start.data == -2 and end.data is step.data is None
