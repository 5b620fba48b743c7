"""Checks that calls in the file pass operands that the fused call accepts: `Swish()(torch.arange(8))` does not.

A call is counter-evidence if it passes

- integers or complex numbers to an activation or a norm,
- a tensor as the scale of an attention,
- a query, key or value of rank 1,
- another number of values than of keys,
- a mask of higher rank than the scores, or with a size that does not broadcast to them.

Only operands that are arguments of the function can be checked.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from autofuse.canonical import CAST, LEAF, PERMUTE
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, ITEM, PARAMETER, Value
from autofuse.ir.vocabulary import OUR_ACTIVATIONS, SAME_SIZES
from autofuse.reasons import tensors
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.evidence.call_arguments import BoundCall, CallArguments
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.minimum_ranks import MinimumRanks
from autofuse.source.evidence.site_values import program_values, self_attribute_name
from autofuse.source.evidence.tensor_expressions import Sizes, TensorFacts

_FLOATING_OPERATIONS = frozenset({*OUR_ACTIVATIONS, "glu", "activation", "gated_activation", "layer_norm", "rms_norm"})
_VIEWS = frozenset("view transpose permute chunk split unbind".split())
_BATCHED = 4  # batch, heads, queries, keys
_KEEP_SIZE = SAME_SIZES | frozenset("transpose permute mT identity".split())


def calls_pass_valid_operands(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails if a call in the file passes an operand that the fused call does not accept."""
    operation = claim.site.rule.replacement.operation
    if operation in _FLOATING_OPERATIONS:
        yield from _integer_calls(claim)
    elif operation == "attention":
        yield from _operand_calls(claim)


def _integer_calls(claim: Claim) -> Iterator[Missing | Fails]:
    x = claim.site.captures.get("x")
    names = {str(v.data) for v in _argument_roots(claim, x, _VIEWS)} if x is not None else set[str]()
    index = claim.defined.scope.index(CallArguments)
    for name in sorted(names):
        for call in index.calls_of(claim.defined):
            if any(value.floating is False and not value.number for value in index.passed_values(call, name)):
                yield _fails(call, name, "no floating-point numbers")
                return
            if index.is_index(call, name):
                yield _fails(call, name, "an index")
                return


def _operand_calls(claim: Claim) -> Iterator[Missing | Fails]:
    captures, d = claim.site.captures, claim.defined
    index = d.scope.index(CallArguments)
    names = {n: _some_argument_of(claim, captures[n]) for n in ("query", "key", "value") if n in captures}
    scale = captures.get("scale")
    scales = {str(v.data) for v in _argument_roots(claim, scale, frozenset())} if scale is not None else set[str]()
    are_arguments = all(_is_argument(captures[n]) for n in ("key", "value") if n in captures)
    mask = _argument_of_mask(claim, captures["mask"]) if "mask" in captures else None
    for call in index.calls_of(d) if scales or mask or any(names.values()) else ():
        for name in sorted(scales):
            if any(not value.number for value in index.passed_values(call, name)):
                yield _fails(call, name, "a tensor, and attention takes a number for a scale")
                return
        shapes = {n: _known_shape(index.passed_values(call, argument)) for n, argument in names.items() if argument}
        if (vector := next((n for n, s in shapes.items() if s is not None and len(s) < 2), None)) is not None:
            yield _fails(call, str(names[vector]), "a tensor of less than two dimensions")
            return
        if are_arguments and _lengths_differ(shapes.get("key"), shapes.get("value")):
            yield _fails(call, str(names["value"]), "another number of values than of keys")
            return
        mask_shape = _known_shape(index.passed_values(call, mask)) if mask else None
        if mask_shape is not None and _broadcasts_beyond_scores(mask_shape, shapes.get("query"), shapes.get("key")):
            yield _fails(call, str(mask), "a mask that is larger than the scores")
            return
    if mask is not None:
        yield from _masks_of_batches(claim, mask, names)
    yield from _scales_of_constructor(claim, scale, index)


def _masks_of_batches(claim: Claim, mask: str, names: Mapping[Any, str | None]) -> Iterator[Missing]:
    """Reports a call that passes a mask of four dimensions or more, if nothing shows that the scores have them too."""
    captures, index = claim.site.captures, claim.defined.scope.index(CallArguments)
    ranks = MinimumRanks(claim.captured, claim.view, claim.site.root)
    if max(ranks.bound_of(captures["query"]), ranks.bound_of(captures["key"])) >= _BATCHED:
        return
    for call in (*index.calls_of(claim.defined), *index.calls_of_objects(claim.defined)):
        rank = len(_known_shape(index.passed_values(call, mask)) or ())
        operands = [_known_shape(index.passed_values(call, a)) for n in ("query", "key") if (a := names.get(n))]
        if rank >= _BATCHED and max((len(s) for s in operands if s is not None), default=0) < rank:
            line = call.call.lineno
            yield Missing(f"assumes that `{mask}`, as line {line} passes it, has no more dimensions than the scores")
            return


def _is_argument(operand: Value) -> bool:
    """Whether an operand is an argument itself, and no view or transposition of it."""
    return operand.op == PARAMETER or operand.op == LEAF and getattr(operand.data, "op", "") == PARAMETER


def _lengths_differ(key: Sizes | None, value: Sizes | None) -> bool:
    """Whether the code raises an error for these shapes, and the fused call does not check it."""
    known = key is not None and value is not None and key[-2] is not None and value[-2] is not None
    return known and key[-2] != value[-2]  # type: ignore[index]


def _scales_of_constructor(claim: Claim, scale: Value | None, index: CallArguments) -> Iterator[Fails]:
    """Fails if the scale is an argument of the constructor, and a call passes it a tensor."""
    d = claim.defined
    names = (
        {n for v in program_values(claim, scale) if (n := self_attribute_name(v))} if scale is not None else set[str]()
    )
    for name in sorted(names) if d.owner is not None else ():
        assigned, init = d.scope.attribute(d.owner, name), d.scope.method(d.owner, "__init__")
        if isinstance(assigned, ast.Name) and init is not None and d.owner is not None:
            for call in index.constructor_calls(d.owner.node.name, init):
                if any(not value.number for value in index.passed_values(call, assigned.id)):
                    yield _fails(call, assigned.id, "a tensor, and attention takes a number for a scale")
                    return


def _fails(call: BoundCall, name: str, what: str) -> Fails:
    why = because(tensors.OTHERWISE_GIVEN, name=name, what=what)
    return Fails(why, enables=False, text=call.text, line=call.call.lineno)


def _broadcasts_beyond_scores(mask: Sizes, query: Sizes | None, key: Sizes | None) -> bool:
    """Whether the mask broadcasts the scores to a larger shape."""
    if query is None or key is None:
        return False
    rank = max(len(query), len(key))
    if len(mask) > rank:
        return True
    for i in range(3, len(mask) + 1):  # dimensions before the last two, counted from the end
        sides = [s[-i] if len(s) >= i else 1 for s in (query, key)]
        if sides == [1, 1] and mask[-i] not in (1, None):
            return True
    rows = query[-2] if len(mask) >= 2 else None
    return rows == 1 and len(mask) >= 2 and mask[-2] not in (1, None)


def _known_shape(values: list[TensorFacts]) -> Sizes | None:
    return next((v.sizes for v in values if v.sizes is not None and not v.number), None)


def only_argument_of(claim: Claim, canonical: Value) -> str | None:
    """Returns the name of the argument that an operand is: a view or cast of it with all of its dimensions.

    Returns None if there is none, or more than one.
    """
    roots = _argument_roots(claim, canonical, _KEEP_SIZE, same_size=True)
    return str(next(iter(roots)).data) if len(roots) == 1 else None


def _some_argument_of(claim: Claim, canonical: Value) -> str | None:
    """Returns the name of an argument that an operand is, or is computed from entry by entry."""
    return next((str(v.data) for v in _argument_roots(claim, canonical, _KEEP_SIZE, same_size=True)), None)


def _argument_of_mask(claim: Claim, canonical: Value) -> str | None:
    """Returns the name of the only argument that a mask is computed from, entry by entry; None if there is none."""
    todo, names, seen = [canonical], set[str](), set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        originals = program_values(claim, v)
        if any(o.op == PARAMETER for o in originals):
            names |= {str(o.data) for o in originals if o.op == PARAMETER}
        elif v.op in (ITEM, CALL, ATTRIBUTE, "view", "expand", "unsqueeze"):
            return None
        elif v.op == LEAF:
            todo += [i for o in originals for i in o.inputs]
        else:
            todo += v.inputs
    return names.pop() if len(names) == 1 else None


def _argument_roots(claim: Claim, canonical: Value, through: frozenset[str], same_size: bool = False) -> set[Value]:
    """Returns the arguments that a value is a view, a part or a sum of.

    Args:
        claim: The claim that the value belongs to.
        canonical: A canonical value.
        through: The operations that are followed to their first input.
        same_size: Whether the value must have the argument's size, so that parts of it do not count.
    """
    todo, arguments, seen = [canonical], set[Value](), set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.op == PARAMETER:
            arguments.add(v)
        elif v.op == LEAF and isinstance(v.data, Value):
            todo.append(v.data)
        elif v.op in (PERMUTE, CAST) or v.op in through or v.op in SAME_SIZES or v.op == ITEM and not same_size:
            todo += v.inputs[:1]
        elif v.op == CHOICE:
            todo += v.inputs[1:]
        elif v.op in ("mul", "div", "add", "sub"):
            todo += v.inputs
        elif not v.inputs or v.op not in (CALL, ATTRIBUTE):
            todo += [o for o in program_values(claim, v) if o is not v]
    return arguments
