"""The target `flash-attn`: attention as a call of flash_attn_func (version 2.8.3).

- It takes no mask except the causal one. It aligns that mask at the last query and key, so it equals torch's causal
  mask only if there are as many queries as keys.
- Its operands have their heads in the third dimension.
"""

from __future__ import annotations

from autofuse.canonical import PERMUTE
from autofuse.ir.graph import Value
from autofuse.reasons import libraries
from autofuse.reasons.reason import because
from autofuse.source.targets.attention import dropout_probability, lacks_heads, may_drop
from autofuse.source.targets.call import Arguments, NotInTarget, TargetCall
from autofuse.source.targets.masks import is_causal
from autofuse.source.targets.printing import fill
from autofuse.source.targets.scales import scale_argument
from autofuse.source.targets.speller import Speller, Unwritable

_NEEDS = (
    "the file then needs flash-attn where it runs, which takes float16 or bfloat16 on CUDA devices of compute "
    "capability 8.0 or newer, and heads of at most 256 entries"
)
_FOUR = "assumes that query, key and value are (batch, heads, length, head_dim)"
_HEADS_THIRD = (0, 2, 1, 3)


def attention(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of flash_attn_func. Raises NotInTarget for a mask or another number of dimensions."""
    causal = is_causal(args, speller)
    if "mask" in args and not causal:
        raise NotInTarget(because(libraries.FLASH_ATTN_MASK))
    ranks = {speller.view.rank(args[name]) for name in ("query", "key", "value")}
    if not ranks <= {3, 4, None} or {3, 4} <= ranks:
        raise NotInTarget(because(libraries.FLASH_ATTN_DIMENSIONS))
    adds_heads = lacks_heads(args, speller)
    query, scale = scale_argument(args, _with_heads_third(args["query"], adds_heads, speller), speller)
    keywords = [text.replace("scale=", "softmax_scale=", 1) for text in scale]
    if may_drop(args):
        keywords.insert(0, f"dropout_p={dropout_probability(args['dropout_p'], args['training'], speller)}")
    operands = (
        query,
        _with_heads_third(args["key"], adds_heads, speller),
        _with_heads_third(args["value"], adds_heads, speller),
    )
    function = speller.imports.text("flash_attn.flash_attn_func", speller.place)
    unsafe = _NEEDS if None not in ranks else f"{_NEEDS}; {_FOUR}"
    causal_keyword = ("causal=True",) if causal else ()
    return TargetCall(
        function,
        (*operands, *keywords, *causal_keyword),
        ".squeeze(2)" if adds_heads else ".transpose(1, 2)",
        unsafe=unsafe,
    )


def _with_heads_third(v: Value, adds_heads: bool, speller: Speller) -> str:
    """The text of an operand with its heads in the third dimension; an existing transpose is removed, not undone."""
    if adds_heads:
        return fill("{0}.unsqueeze(2)", speller.text(v))
    if v.op == PERMUTE and v.data == _HEADS_THIRD:
        try:
            return speller.text(v.inputs[0])
        except Unwritable:
            pass  # only the transposed operand is available here
    return fill("{0}.transpose(1, 2)", speller.text(v))


OPERATIONS = {"attention": attention}
