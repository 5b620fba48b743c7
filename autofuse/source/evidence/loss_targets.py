"""Checks that the targets of a written-out loss fit torch's cross_entropy.

| | `log_probs.gather(-1, target[:, None])` | `cross_entropy` |
| --- | --- | --- |
| dtype of the targets | any integer | int64 |
| number of targets | may be less than the number of rows | one for each row |
| a negative target | raises an error | -100 is ignored silently |
| dtype under autocast | that of the logits, on a CPU | float32 |
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.ir.graph import is_const
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.site_values import describe_value, program_values

_LOSSES = frozenset({"cross_entropy", "linear_cross_entropy"})


def targets_are_classes(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports targets that may not be one int64 class for each row, or may be -100."""
    lookup = claim.site.captures.get("lookup")
    if claim.site.rule.replacement.operation in _LOSSES and lookup is not None and not is_const(lookup, None):
        yield Missing("assumes that there is one int64 target for each row, and that none is -100")
        yield Missing("assumes that the loss may be float32 under autocast")


def loss_has_dtype_of_logits(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports a loss of a wider dtype than its logits.

    `F.one_hot(target).float() * log_probs` is float32 for bfloat16 logits; cross_entropy returns bfloat16.
    """
    logits = claim.site.captures.get("logits")
    if claim.site.rule.replacement.operation not in _LOSSES or logits is None:
        return
    facts = claim.view.facts
    logits_dtypes = {symbol for v in program_values(claim, logits) for symbol in facts.dtype(v)}
    wider = {s for r in claim.site.results for s in facts.dtype(r.value) if isinstance(s, str)} - logits_dtypes
    if logits_dtypes and wider:
        name = describe_value(claim, logits, "the logits")
        yield Missing(
            f"assumes that {name} has a dtype no narrower than {' and '.join(sorted(wider))}, the dtype of the loss"
        )
