"""Does a mask have more heads than query and key? `x.unsqueeze(1)` has one, and a bias of each head makes more of it.

Written out, the scores broadcast to the mask. The fused call broadcasts the mask to the scores, and raises an error.
Follows one dimension, the third from the end, through what the function does. Knows values; reads no text.
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.canonical import CAST, LEAF, PERMUTE
from autofuse.canonical.view import order_of
from autofuse.ir.graph import CHOICE, CONST, ITEM, SLICE, TUPLE, Value
from autofuse.ir.vocabulary import SAME_SIZES
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.reached import named, programs_own

_HEADS = 3  # from the end
_DEEPEST = 40
_ENTRYWISE = frozenset(
    "add sub rsub mul div eq ne lt le gt ge and or invert logical_and logical_or logical_not where masked_fill kept "
    "maximum minimum neg bool tril triu".split()
)


def mask_has_no_more_heads(claim: Claim) -> Iterator[Missing | Fails]:
    """Where query and key have one head by what the function does, so has the mask."""
    given = claim.site.captures
    if claim.site.rule.replacement.operation != "attention" or "mask" not in given:
        return
    sizes = _Sizes(claim)
    if sizes.is_one(given["query"]) and sizes.is_one(given["key"]) and not sizes.is_one(given["mask"]):
        what = named(claim, given["mask"], "the mask")
        yield Missing(f"assumes that {what} has no more heads than the query")


class _Sizes:
    """Whether a dimension of a value has one entry."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def is_one(self, v: Value) -> bool:
        """Whether a value has one head, for all that is known, or where it has the usual number of dimensions."""
        return self._of(v, _HEADS, _DEEPEST)

    def _of(self, v: Value, at: int, depth: int) -> bool:
        """Whether dimension `at`, from the end, is of one entry, or is not there."""
        rank = self._claim.view.rank(v)
        if rank is not None and rank < at or depth == 0:
            return rank is not None and rank < at
        if v.op == LEAF:
            return isinstance(v.data, Value) and self._of(v.data, at, depth - 1)
        if v.op == CONST:
            return True
        if v.op == CHOICE:
            return all(self._of(i, at, depth - 1) for i in v.inputs[1:])
        if v.op in _ENTRYWISE:
            return all(self._of(i, at, depth - 1) for i in v.inputs if i.op != TUPLE)
        if v.op == PERMUTE:
            order = order_of(v)
            return self._of(v.inputs[0], -order[-at] if at <= len(order) else at, depth - 1)
        if v.op == CAST or v.op in SAME_SIZES:
            return self._of(v.inputs[0], at, depth - 1)
        if v.op in ("view", "expand"):
            return self._named(v, at)
        if v.op == "rearrange":
            words = str(v.inputs[1].data).partition("->")[2].split()
            return "(" not in "".join(words) and len(words) >= at and words[-at] in ("1", "()")
        if v.op in ("transpose", "mT"):
            return self._swapped(v, at, depth)
        if v.op == "unsqueeze":
            return self._unsqueezed(v, at, depth)
        if v.op == ITEM:
            return v.inputs[1].op == TUPLE and self._indexed(v, at, depth)
        own = [o for o in programs_own(self._claim, v) if o is not v]
        return bool(own) and self._of(own[0], at, depth - 1)

    @staticmethod
    def _named(v: Value, at: int) -> bool:
        sizes = v.inputs[1].inputs
        if len(sizes) == 1 and sizes[0].op == TUPLE:
            sizes = sizes[0].inputs
        return len(sizes) >= at and sizes[-at].op == CONST and sizes[-at].data == 1

    def _swapped(self, v: Value, at: int, depth: int) -> bool:
        dims = [-2, -1] if v.op == "mT" else [d.data for d in v.inputs[1:3] if isinstance(d.data, int)]
        rank = self._claim.view.rank(v)
        if len(dims) != 2 or rank is None and any(d >= 0 for d in dims):
            return False
        ends = [rank - d if d >= 0 and rank is not None else -d for d in dims]
        return self._of(v.inputs[0], ends[1 - ends.index(at)] if at in ends else at, depth - 1)

    def _unsqueezed(self, v: Value, at: int, depth: int) -> bool:
        where, rank = v.inputs[1].data, self._claim.view.rank(v)
        if type(where) is not int:
            return False
        if where >= 0 and rank is None:
            return where == 1  # `x.unsqueeze(1)` of batch, positions, channels
        end = -where if where < 0 else (rank or 0) - where
        return at == end or self._of(v.inputs[0], at if at < end else at - 1, depth - 1)

    def _indexed(self, v: Value, at: int, depth: int) -> bool:
        """`x[:, None]`, `mask[:, None, None, :]`, `x[..., None, :, :]`."""
        parts, inner = list(v.inputs[1].inputs), self._claim.view.rank(v.inputs[0])
        split = next((i for i, p in enumerate(parts) if p.op == CONST and p.data is ...), None)
        after = parts if split is None else parts[split + 1 :]
        taken = sum(not (p.op == CONST and p.data is None) for p in parts)
        rest = 0  # the dimensions that the index does not name, which come last
        if split is None:
            if inner is None:
                added = [i for i, p in enumerate(parts) if p.op == CONST and p.data is None]
                if added == [1] and len(parts) == 2:
                    return True  # `x[:, None]` of batch, positions, channels
                if len(parts) < 4:
                    return False
            else:
                rest = inner - taken
        if at <= rest:
            return self._of(v.inputs[0], at, depth - 1)
        end, within = rest, rest
        for p in reversed(after):
            is_new, is_slice = p.op == CONST and p.data is None, p.op == SLICE
            within += not is_new
            end += is_new or is_slice
            if end == at and (is_new or is_slice):
                return is_new or self._of(v.inputs[0], within, depth - 1)
            if not is_new and not is_slice and not (p.op == CONST and type(p.data) is int):
                return False
        return split is not None and self._of(v.inputs[0], within + at - end, depth - 1)
