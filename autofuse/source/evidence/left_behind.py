"""Is the product of query and key still computed after the edit?

A statement stays where something reads it that is no part of the pattern, if only its dtype: `fill = lowest(scores)`.
The fused call then saves nothing, and computes the product a second time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.place.edits import is_inside, span_of

_LONGEST = 40  # characters of the code that a message repeats
_PRODUCTS = frozenset({"matmul", "einsum", "einops_einsum", "baddbmm", "bmm"})


def nothing_is_left_behind(claim: Claim) -> Iterator[Missing | Fails]:
    """The edit removes the code that computes the scores; Missing where other code still needs it."""
    if claim.site.rule.replacement.operation != "attention":
        return
    gone = (*claim.edit.removals, *(span for span, _ in claim.edit.replacements))
    for v in claim.site.doomed.values:
        computed = [
            p.node for p in claim.captured.places.get(v, ()) if not isinstance(p.node, (ast.Name, ast.Attribute))
        ]
        if v.op in _PRODUCTS and computed and not any(is_inside(span_of(n), g) for n in computed for g in gone):
            text = _short(ast.unparse(computed[0]))
            yield Missing(f"leaves `{text}` to what else reads it, so the scores are computed twice")
            return


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
