"""Checks that the ranks and dtypes of attention operands fit scaled_dot_product_attention.

Attention that is written out as products and a softmax takes more than scaled_dot_product_attention does:

- a query or value of rank 1,
- a mask of higher rank than the scores,
- operands of different dtypes, with a cast between them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.canonical import LEAF
from autofuse.ir.dtypes import CASTS, Dtype
from autofuse.ir.facts import Facts
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, NOT, PARAMETER, TUPLE, Value, is_const, sides_of
from autofuse.rule import Fails
from autofuse.source.capture.symbolic_lengths import GraphSizes, recorded_lengths
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.call_arguments import CallArguments
from autofuse.source.evidence.call_operands import only_argument_of
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.minimum_ranks import MinimumRanks
from autofuse.source.evidence.site_values import describe_value, program_values, self_attribute_name

_BATCHED = 4  # batch, heads, queries, keys: a mask of batched scores has no further dimension
_MATRIX = 2
_PRODUCTS = frozenset({"matmul", "einsum", "einops_einsum", "baddbmm"})
_MASK_OPERATIONS = frozenset("add sub rsub where masked_fill".split())
_SEQUENCE_CAPTURES = ("mask", "scale", "p", "is_causal")


def attention_operands_fit(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports operands that may have rank 1, masks of a rank that may not fit, and dtypes that may differ."""
    if claim.site.rule.replacement.operation != "attention":
        return
    captures, ranks = claim.site.captures, MinimumRanks(claim.captured, claim.view, claim.site.root)
    names_of_operands = () if _has_matrix_operands(claim) else ("query", "key", "value")
    vectors = [n for n in names_of_operands if ranks.bound_of(captures[n]) < _MATRIX]
    vectors = [n for n in vectors if not _gets_matrices(claim, captures[n])]
    if vectors:
        names = " and ".join(dict.fromkeys(describe_value(claim, captures[n], f"the {n}") for n in vectors))
        yield Missing(f"assumes that {names} {'have' if ' and ' in names else 'has'} two dimensions or more")
    scores = max(ranks.bound_of(captures["query"]), ranks.bound_of(captures["key"]))
    if "mask" in captures and scores < _BATCHED and not _mask_rank_fits(claim, captures["mask"], max(scores, _MATRIX)):
        mask = describe_value(claim, captures["mask"], "the mask")
        at_least = "two dimensions or more, and " if claim.view.rank(captures["mask"]) is None else ""
        yield Missing(f"assumes that {mask} has {at_least}no more dimensions than the scores")
    if "mask" in captures and any(claim.view.rank(side) == 0 for side in sides_of(captures["mask"])):
        yield Missing(f"assumes that {describe_value(claim, captures['mask'], 'the mask')} has two dimensions or more")
    if "mask" in captures and _is_tested_for_truth(claim, captures["mask"]):
        mask = describe_value(claim, captures["mask"], "the mask")
        yield Missing(f"assumes that {mask} is None where `if` tests it: only a tensor of one entry has a truth value")
    for side in sides_of(captures["mask"]) if "mask" in captures else ():
        if _may_be_number(claim, side):
            yield Missing(f"assumes that {describe_value(claim, side, 'the mask')} is a torch tensor")
    if not _has_one_dtype(claim):
        yield Missing("assumes that the query, the key and the value have one dtype")
    if not _has_one_length(claim) and claim.defined.scope.index(CallArguments).may_be_called_in_try(claim.defined):
        yield Missing("assumes that there are as many keys as values: torch's kernel for CPUs does not check it")


def _has_one_length(claim: Claim) -> bool:
    """Whether the text shows that there are as many keys as values. For other lengths, the code raises an error."""
    return bool(_length_keys(claim, "key") & _length_keys(claim, "value"))


def _length_keys(claim: Claim, name: str) -> set[object]:
    """The keys of the number of rows of an operand (symbolic_lengths.py)."""
    operand, sizes = claim.site.captures[name], GraphSizes(claim.view.facts)
    recorded = recorded_lengths(claim.view, operand)
    keys = {sizes.trace_dimension(v, -2) for v in program_values(claim, operand)}
    return keys | ({recorded[-2]} - {None} if recorded is not None and len(recorded) >= _MATRIX else set())


def _has_matrix_operands(claim: Claim) -> bool:
    """Whether the code around the scores shows that query, key and value have rank 2 or more.

    `softmax(q @ k.mT) @ v` alone is no evidence: a lookup with a single vector has the same form, also with a constant
    temperature. Evidence is one of these, if the transposition of the keys accepts any rank (docs/safety.md):

    - the scores are scaled by a value that is not a constant, masked, or dropped out,
    - a module computes them.
    """
    captures = claim.site.captures
    products = [v for v in _removed_values(claim) if v.op in _PRODUCTS]
    matrices = _operand_tensors(products[0]) if products else []
    if claim.view.rank(captures["key"]) == _MATRIX or any(v.op == "t" or _is_attribute(v, "T") for v in matrices):
        return False
    if claim.defined.scope.index(CallArguments).is_called_in_try(claim.defined):
        return False  # a caller that catches the error may pass operands of any rank
    # A constant scale is also the temperature of a lookup with a single vector.
    shows_sequences = any(n in captures and (n != "scale" or captures[n].op != CONST) for n in _SEQUENCE_CAPTURES)
    if _belongs_to_class(claim) or shows_sequences:
        return True
    scaled = (v for n in ("query", "key") for v in program_values(claim, captures[n]) if v.op in ("mul", "div"))
    return any(i.op != CONST and i.op not in _PRODUCTS for v in scaled for i in v.inputs[1:])


def _gets_matrices(claim: Claim, operand: Value) -> bool:
    """Whether an operand is an argument, and every call in the file passes it a tensor of rank 2 or more."""
    d, index = claim.defined, claim.defined.scope.index(CallArguments)
    argument = only_argument_of(claim, operand)
    if argument is None or index.is_called_in_try(d):
        return False
    sizes = index.argument_sizes(d, argument)
    return bool(sizes) and all(len(s) >= _MATRIX for s in sizes)


def _is_attribute(v: Value, name: str) -> bool:
    return v.op == ATTRIBUTE and v.data == name


def _mask_rank_fits(claim: Claim, mask: Value, dimensions: int) -> bool:
    if mask.op == CHOICE:
        return all(is_const(side, None) or _mask_rank_fits(claim, side, dimensions) for side in mask.inputs[1:])
    rank = claim.view.rank(mask)
    if rank is None:
        return _belongs_to_class(claim) or _fills_in_place(claim)  # a module gets mask and operands together
    return rank <= (_BATCHED if claim.defined.owner is not None and dimensions == _MATRIX else dimensions)


def _is_tested_for_truth(claim: Claim, mask: Value) -> bool:
    """Whether the program tests the truth value of the mask, `if mask:`, and not `mask is None`."""
    own = {o for part in _mask_parts(mask) for o in program_values(claim, part)}
    for v in claim.captured.graph.values:
        test = v.inputs[0] if v.op == CHOICE else None
        while test is not None and test.inputs and (test.op == NOT or _is_call_of_bool(test)):
            test = test.inputs[-1]
        if test in own and (test.op == PARAMETER or claim.view.rank(test) is not None):
            return True
    return False


def _is_call_of_bool(v: Value) -> bool:
    return v.op == CALL and isinstance(v.data, tuple) and v.data[0] == "bool"


def _may_be_number(claim: Claim, mask: Value) -> bool:
    """Whether the mask that is added to the scores may be a number: a default, or a constructor's argument."""
    for v in program_values(claim, mask):
        if v.op == PARAMETER and isinstance(_default(claim, str(v.data)), (int, float)):
            return True
        if (name := self_attribute_name(v)) is not None:
            scope, owner = claim.defined.scope, claim.defined.owner
            assigned = scope.buffer(owner, name) or scope.attribute(owner, name)
            return isinstance(assigned, (ast.Name, ast.Constant))
    return False


def _default(claim: Claim, name: str) -> object:
    """Returns the value of an argument's default if it is a literal."""
    arguments = claim.captured.function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[::-1], arguments.defaults[::-1], strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((default.value for a, default in pairs if a.arg == name and isinstance(default, ast.Constant)), None)


def _fills_in_place(claim: Claim) -> bool:
    """Whether every mask is used by `masked_fill_`, which raises an error for a mask of higher rank."""
    called = [
        getattr(p.node.func, "attr", "") if isinstance(p.node, ast.Call) else ""
        for v in _removed_values(claim)
        if v.op in _MASK_OPERATIONS
        for p in claim.captured.positions.get(v, ())[:1]
    ]
    return bool(called) and set(called) == {"masked_fill_"}


def _mask_parts(mask: Value) -> Iterator[Value]:
    yield mask
    if mask.op not in (LEAF, PARAMETER):
        for part in mask.inputs:
            yield from _mask_parts(part)


def _belongs_to_class(claim: Claim) -> bool:
    """Whether the function is a method, or methods of a class in its file call it."""
    d = claim.defined
    return d.owner is not None or getattr(d.function, "name", "") in d.scope.index(_NamesCalledInClasses).names


class _NamesCalledInClasses:
    """The names that methods of the classes of a file call."""

    def __init__(self, tree: ast.Module) -> None:
        classes = (n for n in walk(tree) if isinstance(n, ast.ClassDef))
        calls = (n for c in classes for n in walk(c) if isinstance(n, ast.Call))
        self.names = {n.func.id for n in calls if isinstance(n.func, ast.Name)}


def _has_one_dtype(claim: Claim) -> bool:
    """Whether query, key and value have one dtype.

    Both matrix products raise an error for operands of different dtypes. So query and key have one dtype. If the
    attention weights still have it, or are cast back to it, the value has it too.
    """
    removed, facts = _removed_values(claim), claim.view.facts
    products = [v for v in removed if v.op in _PRODUCTS]
    if len(products) < 2:
        return True
    scores, second_product = products[0], products[-1]
    weights = next((i for i in _operand_tensors(second_product) if i in removed and i is not scores), None)
    before_casts = [v.inputs[0] for v in _operand_tensors(scores) if v.op in CASTS]
    score_dtypes = {facts.dtype(v) for v in (scores, *_operand_tensors(scores), *before_casts)}
    value_dtypes = {facts.dtype(v) for v in program_values(claim, claim.site.captures["value"])}
    if all(map(_comes_from_layers, value_dtypes)) and any(map(_comes_from_layers, score_dtypes)):
        score_dtypes |= value_dtypes  # `.to(dtype)` converts all layers of a module
    return weights is None or _keeps_dtype(weights, score_dtypes, set(removed), facts)


def _keeps_dtype(v: Value, operand_dtypes: set[Dtype], removed: set[Value], facts: Facts) -> bool:
    """Whether the steps from the scores to `v` keep a dtype of `operand_dtypes`, or cast back to one."""
    if v.op in CASTS or v.op in ("softmax", "log_softmax") and not is_const(v.inputs[2], None):
        dtype = facts.dtype(v)
        named_dtype = any(isinstance(symbol, str) for symbol in dtype)
        return dtype in operand_dtypes or not named_dtype and any(known <= dtype for known in operand_dtypes)
    return v.op in _PRODUCTS or all(_keeps_dtype(i, operand_dtypes, removed, facts) for i in v.inputs if i in removed)


def _comes_from_layers(dtype: Dtype) -> bool:
    return bool(dtype) and all(isinstance(symbol, Value) and symbol.op == "linear" for symbol in dtype)


def _operand_tensors(product: Value) -> list[Value]:
    parts = [i for part in product.inputs for i in (part.inputs if part.op == TUPLE else (part,))]
    return [p for p in parts if not is_const(p)]


def _removed_values(claim: Claim) -> list[Value]:
    values = {*claim.site.removed.values, *(r.value for r in claim.site.results)}
    return sorted(values, key=lambda v: v.serial)
