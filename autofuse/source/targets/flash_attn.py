"""The target `flash-attn`: attention as flash-attn 2 spells it.

Knows what flash_attn_func takes (version 2.8.3): no mask but the causal one, which is aligned at the last query and
key, so that it is torch's only where there are as many of both; heads in the third dimension.
"""

from __future__ import annotations

from autofuse.canonical import PERMUTE
from autofuse.ir.graph import Value
from autofuse.reasons import libraries
from autofuse.reasons.reason import because
from autofuse.source.targets.attention import dropout, drops, three_dimensional
from autofuse.source.targets.call import Arguments, NotInTarget, TargetCall
from autofuse.source.targets.express import Speller, Unwritable
from autofuse.source.targets.masks import is_causal
from autofuse.source.targets.printing import fill
from autofuse.source.targets.scales import scale_of

_NEEDS = (
    "the file then needs flash-attn where it runs, which takes float16 or bfloat16 on CUDA devices of compute "
    "capability 8.0 or newer, and heads of at most 256 entries"
)
_FOUR = "assumes that query, key and value are (batch, heads, length, head_dim)"
_HEADS_THIRD = (0, 2, 1, 3)


def attention(a: Arguments, s: Speller) -> TargetCall:
    causal = is_causal(a, s)
    if "mask" in a and not causal:
        raise NotInTarget(because(libraries.FLASH_ATTN_MASK))
    ranks = {s.view.rank(a[name]) for name in ("query", "key", "value")}
    if not ranks <= {3, 4, None} or {3, 4} <= ranks:
        raise NotInTarget(because(libraries.FLASH_ATTN_DIMENSIONS))
    flat = three_dimensional(a, s)
    query, scale = scale_of(a, _laid_out(a["query"], flat, s), s)
    rest = [text.replace("scale=", "softmax_scale=", 1) for text in scale]
    if drops(a):
        rest.insert(0, f"dropout_p={dropout(a['dropout_p'], a['training'], s)}")
    operands = (query, _laid_out(a["key"], flat, s), _laid_out(a["value"], flat, s))
    function = s.imports.text("flash_attn.flash_attn_func", s.place)
    unsafe = _NEEDS if None not in ranks else f"{_NEEDS}; {_FOUR}"
    causal_too = ("causal=True",) if causal else ()
    return TargetCall(
        function, (*operands, *rest, *causal_too), ".squeeze(2)" if flat else ".transpose(1, 2)", unsafe=unsafe
    )


def _laid_out(v: Value, flat: bool, s: Speller) -> str:
    """An operand with its heads in the third dimension; without its transposition where it has just that."""
    if flat:
        return fill("{0}.unsqueeze(2)", s.text(v))
    if v.op == PERMUTE and v.data == _HEADS_THIRD:
        try:
            return s.text(v.inputs[0])
        except Unwritable:
            pass  # only the transposed one has a name there
    return fill("{0}.transpose(1, 2)", s.text(v))


OPERATIONS = {"attention": attention}
