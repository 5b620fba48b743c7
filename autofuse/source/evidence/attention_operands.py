"""Do the operands of an attention have the dimensions and the dtypes that torch's attention takes?

Written out, attention takes vectors for a query or a value, masks with more dimensions than the scores, and operands
whose dtypes differ where a cast stands between. scaled_dot_product_attention takes none of these.
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.canonical import View
from autofuse.ir.dtypes import Dtype
from autofuse.ir.graph import CHOICE, Value, is_const
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.least_ranks import LeastRanks
from autofuse.source.evidence.reached import named

_BATCHED = 4  # batch, heads, queries, keys: what is added to scores has no further dimension
_MATRIX = 2


def operands_fit(claim: Claim) -> Iterator[Missing | Fails]:
    """Each operand has two dimensions or more, the mask no more than the scores, and the values have one dtype."""
    if claim.site.rule.replacement.operation != "attention":
        return
    given, least = claim.site.captures, LeastRanks(claim.captured, claim.view, claim.site.root)
    few = [n for n in ("query", "key", "value") if least.of(given[n]) < _MATRIX]
    if few:
        names = " and ".join(dict.fromkeys(named(claim, given[n], f"the {n}") for n in few))
        yield Missing(f"assumes that {names} {'have' if ' and ' in names else 'has'} two dimensions or more")
    scores = max(least.of(given["query"]), least.of(given["key"]))
    if "mask" in given and scores < _BATCHED and not _fits(claim.view, given["mask"], max(scores, _MATRIX)):
        name = named(claim, given["mask"], "the mask")
        yield Missing(f"assumes that {name} has no more dimensions than the scores")
    if not _one_dtype(claim):
        yield Missing("assumes that the query, the key and the value have one dtype")


def _fits(view: View, mask: Value, dimensions: int) -> bool:
    if mask.op == CHOICE:
        return all(is_const(side, None) or _fits(view, side, dimensions) for side in mask.inputs[1:])
    rank = view.rank(mask)
    return rank is not None and rank <= dimensions


def _one_dtype(claim: Claim) -> bool:
    """Whether the weights that are multiplied with the values are in the dtype of the scores, or of the query.

    A product of matrices takes operands of one dtype. So query and key have one, and where the weights still have it,
    or have it again, so has the value.
    """
    products = [v for v in _removed(claim) if v.op == "matmul"]
    if len(products) < 2:
        return True
    last, facts = products[-1], claim.view.facts
    scores = products[0]
    own: list[Dtype] = [facts.dtype(v) for v in (scores, *scores.inputs)]
    weights = facts.dtype(last.inputs[0])
    return weights in own or "float32" not in weights and any(d <= weights for d in own)


def _removed(claim: Claim) -> list[Value]:
    values = {*claim.site.doomed.values, *(r.value for r in claim.site.results)}
    return sorted(values, key=lambda v: v.serial)
