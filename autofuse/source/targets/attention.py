"""Attention as torch has it: scaled_dot_product_attention.

Knows what that function takes, and that its kernels want a dimension of heads; scales are the business of scales.py.
"""

from __future__ import annotations

from autofuse.ir.graph import ATTRIBUTE, CHOICE, NOT, Value, is_const
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.express import Speller
from autofuse.source.targets.masks import is_causal, mask_of
from autofuse.source.targets.printing import fill
from autofuse.source.targets.scales import scale_of, unscaled


def attention(a: Arguments, s: Speller) -> TargetCall:
    causal = is_causal(a, s)
    if causal:
        del a["mask"]
    flat = three_dimensional(a, s)
    a, by_hand = unscaled(a, s)
    query, mask = s.text(a["query"]), mask_of(a, s)
    if mask.rows:
        query = fill("{0} * {1}", query, mask.rows) if not mask.query else mask.query
    operands = [query, s.text(a["key"]), s.text(a["value"])]
    if flat:
        operands = [fill("{0}.unsqueeze(1)", t) for t in operands]
    text = fill("{0}.unsqueeze(1)", mask.text) if flat and "mask" in a and s.view.rank(a["mask"]) == 3 else mask.text
    rest = ["is_causal=True"] if causal else [f"attn_mask={text}"] if text else []
    if drops(a):
        rest.append(f"dropout_p={dropout(a['dropout_p'], a['training'], s)}")
    operands[0], scale = (operands[0], by_hand) if by_hand is not None else scale_of(a, operands[0], s)
    function = s.imports.text("torch.nn.functional.scaled_dot_product_attention", s.place)
    tail = (".squeeze(1)" if flat else "") + _cast_back(s)
    return TargetCall(function, (*operands, *rest, *scale), tail, mask.before)


def _cast_back(s: Speller) -> str:
    """The cast that the program ends its attention with: under autocast, what the call returns has another dtype."""
    cast = s.result
    if cast is None or cast.op not in ("to", "type_as"):
        return ""
    like = cast.inputs[1] if cast.op == "type_as" else cast.inputs[1].inputs[0]
    if cast.op == "to" and like.op == ATTRIBUTE:
        return f".to({s.text(s.view.of(like.inputs[0]))}.dtype)"
    return f".type_as({s.text(s.view.of(like))})" if cast.op == "type_as" else ""


def three_dimensional(a: Arguments, s: Speller) -> bool:
    """Whether the operands are known to lack the dimension of heads, which fused kernels need."""
    ranks = {s.view.rank(a[n]) for n in ("query", "key", "value")}
    return ranks == {3} and ("mask" not in a or s.view.rank(a["mask"]) in (2, 3))


def drops(a: Arguments) -> bool:
    """Whether weights may be dropped."""
    drops = "dropout_p" in a and "training" in a  # what is left out does not train
    return drops and not is_const(a["dropout_p"], 0, 0.0) and not is_const(a["training"], False)


def dropout(p: Value, training: Value, s: Speller) -> str:
    """The probability where it trains, else zero; each test is asked before what can be read only where it holds."""
    asked, before = list[str](), s.assumed
    try:
        while training.op == CHOICE and any(is_const(side, False) for side in training.inputs[1:]):
            test, yes, no = training.inputs
            truth = is_const(no, False)
            asked.append(s.text(test if truth else s.view.make(NOT, test)))
            s.assumed = (*s.assumed, (test, truth))
            training = yes if truth else no
        if not is_const(training, True):
            asked.append(s.text(training))
        given = s.text(p)
    finally:
        s.assumed = before
    tests = " and ".join("{" + str(i + 1) + "}" for i in range(len(asked)))
    return fill("{0} if " + tests + " else 0.0", given, *asked) if asked else given
