"""Does the code rely on how a result lies in memory? A norm by hand keeps the layout of what it is given.

An attention whose layout is read is made contiguous where it is written (place/layout_reads.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.place.layout_reads import layout_reads

_MAKE_CONTIGUOUS = ("layer_norm", "rms_norm", "dropout_add_norm")


def layout_is_not_read(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails where the layout that arithmetic keeps is read: the fused call gives a contiguous result."""
    if not claim.edit.becomes.endswith(_MAKE_CONTIGUOUS):
        return
    for result in claim.site.results:
        for read, turned in layout_reads(claim.captured, result.value):
            if turned or read.op != "view":
                yield Fails(because(writing.OTHER_LAYOUT), result.value, use=read)
