"""Checks that the edit removes the code that computes the scores.

The statement stays if code outside of the match reads its result, also if it reads only the dtype:
`fill = lowest(scores)`. The fused call then computes the product a second time, and saves nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.place.edits import is_inside, span_of

_MAX_SHOWN = 40  # characters of the code that a message repeats
_PRODUCTS = frozenset({"matmul", "einsum", "einops_einsum", "baddbmm", "bmm"})


def scores_are_not_computed_twice(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports a product of query and key that other code still needs after the edit."""
    if claim.site.rule.replacement.operation != "attention":
        return
    removed = (*claim.edit.removals, *(span for span, _ in claim.edit.replacements))
    for v in claim.site.removed.values:
        computed = [
            p.node for p in claim.captured.positions.get(v, ()) if not isinstance(p.node, (ast.Name, ast.Attribute))
        ]
        if v.op in _PRODUCTS and computed and not any(is_inside(span_of(n), g) for n in computed for g in removed):
            text = _shorten(ast.unparse(computed[0]))
            yield Missing(f"leaves `{text}` in place for other code that reads it, so the scores are computed twice")
            return


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
