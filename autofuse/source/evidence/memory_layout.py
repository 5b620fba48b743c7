"""Does the code rely on how a result lies in memory? A norm by hand keeps the layout of what it is given.

An attention whose layout is read is made contiguous where it is written (place/layout_reads.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.ir.graph import Value
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.reached import named
from autofuse.source.place.layout_callers import LayoutIndex
from autofuse.source.place.layout_reads import handed_to, layout_reads, returned_as_is

_MAKE_CONTIGUOUS = ("layer_norm", "rms_norm", "dropout_add_norm")


def layout_is_not_read(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails where the layout that arithmetic keeps is read: the fused call gives a contiguous result."""
    if not claim.edit.becomes.endswith(_MAKE_CONTIGUOUS):
        return
    for result in claim.site.results:
        for read, turned in layout_reads(claim.captured, result.value):
            if turned or read.op != "view":
                yield Fails(because(writing.OTHER_LAYOUT), result.value, use=read)
                return
    others = claim.files.asking_layouts(claim.defined.scope) if claim.files is not None else ()
    indexes = [s.index(LayoutIndex) for s in (claim.defined.scope, *others)]
    asked = [index for index in indexes if index.asked_anywhere(told=True)]
    for result in claim.site.results:
        if any(_is_asked_outside(claim, result.value, index) for index in asked):
            what = named(claim, claim.site.captures["x"], "the input")
            yield Missing(f"assumes that {what} is contiguous, or that its memory layout is not relied on")


def _is_asked_outside(claim: Claim, result: Value, index: LayoutIndex) -> bool:
    """Whether what calls the function, or what it calls, tells one layout from another."""
    captured, d = claim.captured, claim.defined
    if returned_as_is(captured, result) and index.callers_ask(captured.function, d.owner, told=True):
        return True
    return any(index.asks_of_arguments(name, told=True) for name in handed_to(captured, result))
