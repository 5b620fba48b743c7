"""Does a mask have more heads than query and key?

`x.unsqueeze(1)` has one head; a bias for each head has more. In the original code the scores broadcast to the mask. The
fused call broadcasts only the mask to the scores, and raises an error. This file follows the head dimension, the third
from the end, through the captured values. It reads no text.
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.canonical import CAST, LEAF, PERMUTE
from autofuse.canonical.view import order_of
from autofuse.ir.dtypes import PARTS
from autofuse.ir.graph import CHOICE, CONST, ITEM, SLICE, TUPLE, Value
from autofuse.ir.vocabulary import SAME_SIZES
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.site_values import describe_value, program_values

_HEADS = 3  # the position of the head dimension, counted from the end
_MAX_DEPTH = 40
_USUAL_RANK = 3  # batch, positions, channels
_ENTRYWISE = frozenset(
    "add sub rsub mul div eq ne lt le gt ge and or invert logical_and logical_or logical_not where masked_fill kept "
    "maximum minimum neg bool tril triu".split()
)


def check_mask_heads(claim: Claim) -> Iterator[Missing | Fails]:
    """Yield an assumption if query and key have one head each and the mask may have more."""
    captures = claim.site.captures
    if claim.site.rule.replacement.operation != "attention" or "mask" not in captures:
        return
    heads = _HeadSizes(claim)
    if heads.is_one(captures["query"]) and heads.is_one(captures["key"]) and not heads.is_one(captures["mask"]):
        what = describe_value(claim, captures["mask"], "the mask")
        yield Missing(f"assumes that {what} has no more heads than the query")


class _HeadSizes:
    """Decides whether a value has a single head."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def is_one(self, v: Value) -> bool:
        """Whether a value has one head. If its rank is unknown, it is taken to have the usual rank."""
        return self._is_one_at(v, _HEADS, _MAX_DEPTH)

    def _is_one_at(self, v: Value, at: int, depth: int) -> bool:
        """Whether dimension `at`, counted from the end, has size 1 or does not exist."""
        rank = self._claim.view.rank(v)
        if rank is not None and rank < at or depth == 0:
            return rank is not None and rank < at
        if v.op == LEAF:
            return isinstance(v.data, Value) and self._is_one_at(v.data, at, depth - 1)
        if v.op == CONST:
            return True
        if v.op == CHOICE:
            return all(self._is_one_at(i, at, depth - 1) for i in v.inputs[1:])
        if v.op in _ENTRYWISE:
            return all(self._is_one_at(i, at, depth - 1) for i in v.inputs if i.op != TUPLE)
        if v.op == PERMUTE:
            order = order_of(v)
            return self._is_one_at(v.inputs[0], -order[-at] if at <= len(order) else at, depth - 1)
        if v.op == CAST or v.op in SAME_SIZES or v.op == "linear" and at > 1:
            return self._is_one_at(v.inputs[0], at, depth - 1)
        if v.op in ("view", "expand"):
            return self._is_one_in_view(v, at)
        if v.op == "rearrange":
            words = str(v.inputs[1].data).partition("->")[2].split()
            return "(" not in "".join(words) and len(words) >= at and words[-at] in ("1", "()")
        if v.op in ("transpose", "mT"):
            return self._is_one_in_transpose(v, at, depth)
        if v.op == "unsqueeze":
            return self._is_one_in_unsqueeze(v, at, depth)
        if v.op == ITEM and v.inputs[0].op in PARTS:
            return self._is_one_in_part(v.inputs[0], at, depth)
        if v.op == ITEM:
            return v.inputs[1].op == TUPLE and self._is_one_in_index(v, at, depth)
        own = [o for o in program_values(self._claim, v) if o is not v]
        return bool(own) and self._is_one_at(own[0], at, depth - 1)

    @staticmethod
    def _is_one_in_view(v: Value, at: int) -> bool:
        sizes = v.inputs[1].inputs
        if len(sizes) == 1 and sizes[0].op == TUPLE:
            sizes = sizes[0].inputs
        return len(sizes) >= at and sizes[-at].op == CONST and sizes[-at].data == 1

    def _is_one_in_transpose(self, v: Value, at: int, depth: int) -> bool:
        dims = [-2, -1] if v.op == "mT" else [d.data for d in v.inputs[1:3] if isinstance(d.data, int)]
        rank = self._claim.view.rank(v)
        if len(dims) != 2 or rank is None and any(d >= 0 for d in dims):
            return False
        ends = [rank - d if d >= 0 and rank is not None else -d for d in dims]
        return self._is_one_at(v.inputs[0], ends[1 - ends.index(at)] if at in ends else at, depth - 1)

    def _is_one_in_unsqueeze(self, v: Value, at: int, depth: int) -> bool:
        dim, rank = v.inputs[1].data, self._claim.view.rank(v)
        if type(dim) is not int:
            return False
        if rank is None:  # `x.unsqueeze(1)`, where x is (batch, positions, channels), or a stack of such tensors
            rank = _USUAL_RANK + 1 + (v.inputs[0].op == "stack")
        dim_from_end = -dim if dim < 0 else rank - dim
        return at == dim_from_end or self._is_one_at(v.inputs[0], at if at < dim_from_end else at - 1, depth - 1)

    def _is_one_in_part(self, parts: Value, at: int, depth: int) -> bool:
        """Whether dimension `at` of each part has size 1: of `x.unsqueeze(1).chunk(3, -1)`, of `qkv.unbind(0)`."""
        whole, dim, is_removed = parts.inputs[0], parts.inputs[-1].data, parts.op == "unbind"
        rank = self._claim.view.rank(whole)
        if type(dim) is not int or dim >= 0 and rank is None and not (is_removed and dim == 0):
            return False
        divided = -dim if dim < 0 else (rank - dim if rank is not None else None)  # counted from the end
        if divided is None or is_removed and at < divided:
            return self._is_one_at(whole, at, depth - 1)
        return at != divided and self._is_one_at(whole, at + is_removed, depth - 1)

    def _is_one_in_index(self, v: Value, at: int, depth: int) -> bool:
        """Whether dimension `at` of an indexed value has size 1: `x[:, None]`, `mask[:, None, None, :]`."""
        parts, input_rank = list(v.inputs[1].inputs), self._claim.view.rank(v.inputs[0])
        split = next((i for i, p in enumerate(parts) if p.op == CONST and p.data is ...), None)
        after = parts if split is None else parts[split + 1 :]
        indexed = sum(not (p.op == CONST and p.data is None) for p in parts)
        rest = 0  # the number of trailing dimensions that the index does not name
        if split is None:
            if input_rank is None:
                added = [i for i, p in enumerate(parts) if p.op == CONST and p.data is None]
                if added == [1] and len(parts) == 2:
                    return True  # `x[:, None]`, where x is (batch, positions, channels)
                if len(parts) < 4:
                    return False
            else:
                rest = input_rank - indexed
        if at <= rest:
            return self._is_one_at(v.inputs[0], at, depth - 1)
        end, within = rest, rest
        for p in reversed(after):
            is_new, is_slice = p.op == CONST and p.data is None, p.op == SLICE
            within += not is_new
            end += is_new or is_slice
            if end == at and (is_new or is_slice):
                return is_new or self._is_one_at(v.inputs[0], within, depth - 1)
            if not is_new and not is_slice and not (p.op == CONST and type(p.data) is int):
                return False
        return split is not None and self._is_one_at(v.inputs[0], within + at - end, depth - 1)
