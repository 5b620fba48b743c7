"""Does cross_entropy take the targets that a loss spelled out takes?

`log_probs.gather(-1, target[:, None])` takes any integers, fewer targets than rows, and raises an error for a negative
one. torch's cross_entropy takes int64 alone, one target for each row, and ignores -100 without a word.
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.ir.graph import is_const
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.reached import named, programs_own

_LOSSES = frozenset({"cross_entropy", "log_likelihood", "linear_cross_entropy"})


def targets_are_classes(claim: Claim) -> Iterator[Missing | Fails]:
    """There is one int64 target for each row, and none is what cross_entropy ignores."""
    lookup = claim.site.captures.get("lookup")
    if claim.site.rule.replacement.operation in _LOSSES and lookup is not None and not is_const(lookup, None):
        yield Missing("assumes that there is one int64 target for each row, and that none is -100")


def loss_has_dtype_of_logits(claim: Claim) -> Iterator[Missing | Fails]:
    """Nothing widens the loss on the way: `F.one_hot(target).float() * log_probs` is in float32 for bfloat16 logits."""
    logits = claim.site.captures.get("logits")
    if claim.site.rule.replacement.operation not in _LOSSES or logits is None:
        return
    facts = claim.view.facts
    own = {symbol for v in programs_own(claim, logits) for symbol in facts.dtype(v)}
    wider = {s for r in claim.site.results for s in facts.dtype(r.value) if isinstance(s, str)} - own
    if own and wider:
        what = named(claim, logits, "the logits")
        yield Missing(
            f"assumes that {what} has a dtype no narrower than {' and '.join(sorted(wider))}, as the loss has"
        )
