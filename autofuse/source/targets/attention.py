"""Attention as a call of torch's scaled_dot_product_attention.

Its fused kernels need a head dimension, so this file adds one if necessary. The file scales.py handles scales.
"""

from __future__ import annotations

from autofuse.ir.graph import ATTRIBUTE, CHOICE, NOT, Value, is_const
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.masks import casts_to_query, is_causal, mask_rank, write_mask
from autofuse.source.targets.printing import fill, unused_name, without_views
from autofuse.source.targets.scales import fold_scale, scale_argument, with_positive_scale
from autofuse.source.targets.speller import Speller


def attention(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of scaled_dot_product_attention."""
    causal = is_causal(args, speller)
    if causal:
        del args["mask"]
    adds_heads = lacks_heads(args, speller)
    args, folded = fold_scale(args, speller)
    query, naming = _query_and_its_name(args, speller)
    mask = write_mask(args, speller, query, adds_heads)
    if mask.row_factor:
        query = fill("{0} * {1}", query, mask.row_factor) if not mask.query else mask.query
    operands = [query, speller.text(args["key"]), speller.text(args["value"])]
    if adds_heads:
        operands = [fill("{0}.unsqueeze(1)", t) for t in operands]
    keywords = ["is_causal=True"] if causal else [f"attn_mask={mask.text}"] if mask.text else []
    if may_drop(args):
        keywords.append(f"dropout_p={dropout_probability(args['dropout_p'], args['training'], speller)}")
    operands[0], scale = (
        scale_argument(args, operands[0], speller) if folded is None else with_positive_scale(operands[0], folded)
    )
    function = speller.imports.text("torch.nn.functional.scaled_dot_product_attention", speller.place)
    tail = (".squeeze(1)" if adds_heads else "") + _cast_back(speller)
    return TargetCall(function, (*operands, *keywords, *scale), tail, (*naming, *mask.before))


def _query_and_its_name(args: Arguments, speller: Speller) -> tuple[str, tuple[str, ...]]:
    """The text of the query, and the statement that gives it a name if the mask needs the query's dtype, too."""
    text = speller.text(args["query"])
    is_short = all(part.isidentifier() for part in without_views(text).split("."))
    if is_short or "mask" not in args or not speller.may_insert or not casts_to_query(args, speller):
        return text, ()
    name = unused_name("query", speller.taken)
    speller.taken.add(name)
    return name, (f"{name} = {text}",)


def _cast_back(speller: Speller) -> str:
    """The cast that ends the program's attention; under autocast the fused call may return another dtype."""
    cast = speller.result
    if cast is None or cast.op not in ("to", "type_as"):
        return ""
    like = cast.inputs[1] if cast.op == "type_as" else cast.inputs[1].inputs[0]
    if cast.op == "to" and like.op == ATTRIBUTE:
        return f".to({speller.text(speller.view.of(like.inputs[0]))}.dtype)"
    return f".type_as({speller.text(speller.view.of(like))})" if cast.op == "type_as" else ""


def lacks_heads(args: Arguments, speller: Speller) -> bool:
    """Whether the operands are known to have no head dimension, which the fused kernels need."""
    ranks = {speller.view.rank(args[n]) for n in ("query", "key", "value")}
    return ranks == {3} and ("mask" not in args or mask_rank(args["mask"], speller) in (None, 1, 2, 3))


def may_drop(args: Arguments) -> bool:
    """Whether the code may apply dropout to the weights."""
    may_drop = "dropout_p" in args and "training" in args  # without these arguments, the code has no dropout
    return may_drop and not is_const(args["dropout_p"], 0, 0.0) and not is_const(args["training"], False)


def dropout_probability(p: Value, training: Value, speller: Speller) -> str:
    """Return the dropout probability in training, and 0.0 otherwise, as text.

    The tests of a conditional `training` are written in order, since a later test may be readable only if an earlier
    one holds.
    """
    tests, before = list[str](), speller.assumed
    try:
        while training.op == CHOICE and any(is_const(side, False) for side in training.inputs[1:]):
            test, yes, no = training.inputs
            truth = is_const(no, False)
            tests.append(speller.text(test if truth else speller.view.make(NOT, test)))
            speller.assumed = (*speller.assumed, (test, truth))
            training = yes if truth else no
        if not is_const(training, True):
            tests.append(speller.text(training))
        probability = speller.text(p)
    finally:
        speller.assumed = before
    condition = " and ".join("{" + str(i + 1) + "}" for i in range(len(tests)))
    return fill("{0} if " + condition + " else 0.0", probability, *tests) if tests else probability
