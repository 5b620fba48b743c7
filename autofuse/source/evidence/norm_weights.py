"""Checks that the weight of a norm after a residual add has the dtype of the sum.

On a CPU, torch's layer norm takes a float32 weight with a bfloat16 input, and returns bfloat16. `ops.dropout_add_norm`
returns the dtype to which both promote.
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.site_values import describe_value, program_values


def weight_has_dtype_of_sum(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports a weight that may have another dtype than the sum of the residual add."""
    captures, facts = claim.site.captures, claim.view.facts
    if claim.site.rule.replacement.operation != "dropout_add_norm" or "weight" not in captures:
        return
    weights = {facts.dtype(v) for v in program_values(claim, captures["weight"])}
    sums = {facts.dtype(v) for name in ("x", "residual") for v in program_values(claim, captures[name])}
    if weights != sums:
        weight = describe_value(claim, captures["weight"], "the weight of the norm")
        yield Missing(f"assumes that {weight} has the dtype of the sum")
