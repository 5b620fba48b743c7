"""Attention as torch has it: scaled_dot_product_attention.

Knows what that function takes: its default scale, and that its kernels want a dimension of heads.
"""

from __future__ import annotations

from autofuse.canonical import PERMUTE
from autofuse.ir.graph import ATTRIBUTE, CHOICE, ITEM, NOT, Value, is_const
from autofuse.source.capture.symbolic_lengths import lengths_of
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.express import Speller
from autofuse.source.targets.masks import is_causal, mask_of
from autofuse.source.targets.printing import fill


def attention(a: Arguments, s: Speller) -> TargetCall:
    causal = is_causal(a, s)
    if causal:
        del a["mask"]
    flat = three_dimensional(a, s)
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
    operands[0], scale = scale_of(a, operands[0], s)
    function = s.imports.text("torch.nn.functional.scaled_dot_product_attention", s.place)
    return TargetCall(function, (*operands, *rest, *scale), ".squeeze(1)" if flat else "", mask.before)


def scale_of(a: Arguments, query: str, s: Speller) -> tuple[str, list[str]]:
    """The query, multiplied by a scale that is a tensor, and the argument for any other scale."""
    scale = a.get("scale")
    if scale is None:
        return query, ["scale=1.0"]
    if s.view.number(scale) is False:
        return fill("{0} * {1}", query, s.text(scale)), ["scale=1.0"]
    return query, [] if _is_default_scale(scale, a["query"], a["key"], s) else [f"scale={s.text(scale)}"]


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


def _is_default_scale(scale: Value, query: Value, key: Value, s: Speller) -> bool:
    """Whether `scale` is 1 / sqrt(head_dim), the last size of the query or the key by the sizes that the text names."""
    root = scale.inputs[0] if scale.op == "reciprocal" else None
    if scale.op in ("pow", "number_pow") and is_const(scale.inputs[1], -0.5):
        size = scale.inputs[0]
    elif root is not None and root.op == "number_sqrt":
        size = root.inputs[0]
    elif root is not None and root.op in ("pow", "number_pow") and is_const(root.inputs[1], 0.5):
        size = root.inputs[0]
    else:
        return False
    size = size.inputs[0] if size.op == "number" else size
    return any(_is_last_size(size, of, s) for of in (query, key))


def _is_last_size(size: Value, of: Value, s: Speller) -> bool:
    if size.op == "size" and size.inputs[0] is of and is_const(size.inputs[1], -1):
        return True
    if size.op == ITEM and size.inputs[0].op == ATTRIBUTE and size.inputs[0].data == "shape":
        if size.inputs[0].inputs[0] is of and is_const(size.inputs[1], -1):
            return True
    if of.op == PERMUTE and isinstance(of.data, tuple) and of.data[-1] == -1:
        return _is_last_size(size, of.inputs[0], s)
    lengths = lengths_of(s.view, of)
    return (
        lengths is not None
        and lengths[-1] is not None
        and lengths[-1] in {s.sizes.key(o) for o in s.view.originals(size)}
    )
