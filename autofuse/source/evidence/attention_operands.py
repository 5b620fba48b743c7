"""Do the operands of an attention have the dimensions and the dtypes that torch's attention takes?

Written out, attention takes vectors for a query or a value, masks with more dimensions than the scores, and operands
whose dtypes differ where a cast stands between. scaled_dot_product_attention takes none of these.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.canonical import LEAF
from autofuse.ir.dtypes import CASTS, Dtype
from autofuse.ir.facts import Facts
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, NOT, PARAMETER, TUPLE, Value, is_const, sides_of
from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.given_arguments import GivenArguments
from autofuse.source.evidence.given_operands import argument_of
from autofuse.source.evidence.least_ranks import LeastRanks
from autofuse.source.evidence.reached import attribute_of_self, named, programs_own

_BATCHED = 4  # batch, heads, queries, keys: what is added to scores has no further dimension
_MATRIX = 2
_PRODUCTS = frozenset({"matmul", "einsum", "einops_einsum", "baddbmm"})
_APPLIES = frozenset("add sub rsub where masked_fill".split())
_OF_ROWS = ("mask", "scale", "p", "is_causal")


def operands_fit(claim: Claim) -> Iterator[Missing | Fails]:
    """Each operand has two dimensions or more, the mask no more than the scores, and the values have one dtype."""
    if claim.site.rule.replacement.operation != "attention":
        return
    given, least = claim.site.captures, LeastRanks(claim.captured, claim.view, claim.site.root)
    few = [] if _is_of_rows(claim) else [n for n in ("query", "key", "value") if least.of(given[n]) < _MATRIX]
    few = [n for n in few if not _is_given_rows(claim, given[n])]
    if few:
        names = " and ".join(dict.fromkeys(named(claim, given[n], f"the {n}") for n in few))
        yield Missing(f"assumes that {names} {'have' if ' and ' in names else 'has'} two dimensions or more")
    scores = max(least.of(given["query"]), least.of(given["key"]))
    if "mask" in given and scores < _BATCHED and not _fits(claim, given["mask"], max(scores, _MATRIX)):
        yield Missing(f"assumes that {named(claim, given['mask'], 'the mask')} has no more dimensions than the scores")
    if "mask" in given and any(claim.view.rank(side) == 0 for side in sides_of(given["mask"])):
        yield Missing(f"assumes that {named(claim, given['mask'], 'the mask')} has two dimensions or more")
    if "mask" in given and _is_asked_for_truth(claim, given["mask"]):
        what = named(claim, given["mask"], "the mask")
        yield Missing(
            f"assumes that {what}, whose truth is asked, is None: of tensors, only those of one entry have one"
        )
    for side in sides_of(given["mask"]) if "mask" in given else ():
        if _may_be_number(claim, side):
            yield Missing(f"assumes that {named(claim, side, 'the mask')} is a torch tensor")
    if not _one_dtype(claim):
        yield Missing("assumes that the query, the key and the value have one dtype")


def _is_of_rows(claim: Claim) -> bool:
    """Whether this is attention of rows to rows by what else is done with the scores.

    `softmax(q @ k.mT) @ v` alone is also how a vector looks up numbers, and so it is with a temperature that is written
    as a number. Scores that are scaled by something else, masked or dropped out, of keys that are transposed whatever
    their rank, are those of sequences; so are those of a module (docs/safety.md).
    """
    given = claim.site.captures
    products = [v for v in _removed(claim) if v.op in _PRODUCTS]
    matrices = _tensors(products[0]) if products else []
    if claim.view.rank(given["key"]) == _MATRIX or any(v.op == "t" or _is_attribute(v, "T") for v in matrices):
        return False
    if claim.defined.scope.index(GivenArguments).is_tried(claim.defined):
        return False  # a caller that goes on after an error may give anything
    if _serves_modules(claim) or any(n in given and (n != "scale" or given[n].op != CONST) for n in _OF_ROWS):
        return True
    scaled = (v for n in ("query", "key") for v in programs_own(claim, given[n]) if v.op in ("mul", "div"))
    return any(i.op != CONST and i.op not in _PRODUCTS for v in scaled for i in v.inputs[1:])


def _is_given_rows(claim: Claim, operand: Value) -> bool:
    """Whether an operand is an argument to which every call in the file gives two dimensions or more."""
    d, index = claim.defined, claim.defined.scope.index(GivenArguments)
    argument = argument_of(claim, operand)
    if argument is None or index.is_tried(d):
        return False
    sizes = index.sizes_given(d, argument)
    return bool(sizes) and all(len(s) >= _MATRIX for s in sizes)


def _is_attribute(v: Value, name: str) -> bool:
    return v.op == ATTRIBUTE and v.data == name


def _fits(claim: Claim, mask: Value, dimensions: int) -> bool:
    if mask.op == CHOICE:
        return all(is_const(side, None) or _fits(claim, side, dimensions) for side in mask.inputs[1:])
    rank = claim.view.rank(mask)
    if rank is None:
        return _serves_modules(claim) or _fills_in_place(claim)  # a module is called with what it masks
    return rank <= (_BATCHED if claim.defined.owner is not None and dimensions == _MATRIX else dimensions)


def _is_asked_for_truth(claim: Claim, mask: Value) -> bool:
    """Whether the program tests the mask itself, `if mask:`, not whether it is None."""
    own = {o for part in _parts(mask) for o in programs_own(claim, part)}
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
    """Whether what is added to the scores may be a number: an argument's default, or what a constructor was given."""
    for v in programs_own(claim, mask):
        if v.op == PARAMETER and isinstance(_default(claim, str(v.data)), (int, float)):
            return True
        if (name := attribute_of_self(v)) is not None:
            scope, owner = claim.defined.scope, claim.defined.owner
            held = scope.buffer(owner, name) or scope.attribute(owner, name)
            return isinstance(held, (ast.Name, ast.Constant))
    return False


def _default(claim: Claim, name: str) -> object:
    """The literal that an argument holds where it is not given."""
    given = claim.captured.function.args
    positional = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(positional[::-1], given.defaults[::-1], strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return next((d.value for a, d in pairs if a.arg == name and isinstance(d, ast.Constant)), None)


def _fills_in_place(claim: Claim) -> bool:
    """Whether every mask is one for masked_fill_, which fills no more than what it is called on has."""
    called = [
        getattr(p.node.func, "attr", "") if isinstance(p.node, ast.Call) else ""
        for v in _removed(claim)
        if v.op in _APPLIES
        for p in claim.captured.places.get(v, ())[:1]
    ]
    return bool(called) and set(called) == {"masked_fill_"}


def _parts(mask: Value) -> Iterator[Value]:
    yield mask
    if mask.op not in (LEAF, PARAMETER):
        for part in mask.inputs:
            yield from _parts(part)


def _serves_modules(claim: Claim) -> bool:
    """Whether the function is a class's, or one that the methods of a class in its file call."""
    d = claim.defined
    return d.owner is not None or getattr(d.function, "name", "") in d.scope.index(_CalledInClasses).names


class _CalledInClasses:
    """The names that methods of the classes of a file call."""

    def __init__(self, tree: ast.Module) -> None:
        classes = (n for n in walk(tree) if isinstance(n, ast.ClassDef))
        calls = (n for c in classes for n in walk(c) if isinstance(n, ast.Call))
        self.names = {n.func.id for n in calls if isinstance(n.func, ast.Name)}


def _one_dtype(claim: Claim) -> bool:
    """Whether the weights that are multiplied with the values are in the dtype of the scores, or of the query.

    A product of matrices takes operands of one dtype. So query and key have one, and where the weights still have it,
    or have it again, so has the value.
    """
    removed, facts = _removed(claim), claim.view.facts
    products = [v for v in removed if v.op in _PRODUCTS]
    if len(products) < 2:
        return True
    scores, last = products[0], products[-1]
    weights = next((i for i in _tensors(last) if i in removed and i is not scores), None)
    before = [v.inputs[0] for v in _tensors(scores) if v.op in CASTS]
    own = {facts.dtype(v) for v in (scores, *_tensors(scores), *before)}
    value = {facts.dtype(v) for v in programs_own(claim, claim.site.captures["value"])}
    if all(map(_made_by_layers, value)) and any(map(_made_by_layers, own)):
        own |= value  # a module is converted as a whole: its layers give one dtype
    return weights is None or _keeps_dtype(weights, own, set(removed), facts)


def _keeps_dtype(v: Value, own: set[Dtype], removed: set[Value], facts: Facts) -> bool:
    """Whether what leads from the scores to `v` leaves them in a dtype of `own`, or casts back to one."""
    if v.op in CASTS or v.op in ("softmax", "log_softmax") and not is_const(v.inputs[2], None):
        found = facts.dtype(v)
        named_dtype = any(isinstance(symbol, str) for symbol in found)
        return found in own or not named_dtype and any(d <= found for d in own)
    return v.op in _PRODUCTS or all(_keeps_dtype(i, own, removed, facts) for i in v.inputs if i in removed)


def _made_by_layers(dtype: Dtype) -> bool:
    return bool(dtype) and all(isinstance(symbol, Value) and symbol.op == "linear" for symbol in dtype)


def _tensors(product: Value) -> list[Value]:
    parts = [i for part in product.inputs for i in (part.inputs if part.op == TUPLE else (part,))]
    return [p for p in parts if not is_const(p)]


def _removed(claim: Claim) -> list[Value]:
    values = {*claim.site.doomed.values, *(r.value for r in claim.site.results)}
    return sorted(values, key=lambda v: v.serial)
