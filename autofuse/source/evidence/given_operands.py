"""Do the calls that the file makes give what the new call takes? `Swish()(torch.arange(8))` gives integers.

Fails where a call in the file shows otherwise: integers or complex numbers for an activation or a norm, a
tensor for a scale, a vector for a query,
a mask with more dimensions than the scores, or of a size that no operand has. Judges only what stands for an argument.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.canonical import CAST, LEAF, PERMUTE
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, ITEM, PARAMETER, Value
from autofuse.ir.vocabulary import OUR_ACTIVATIONS, SAME_SIZES
from autofuse.reasons import tensors
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.given_arguments import GivenArguments, GivenCall
from autofuse.source.evidence.made_tensors import Made, Sizes
from autofuse.source.evidence.reached import attribute_of_self, programs_own

_OF_FLOATS = frozenset({*OUR_ACTIVATIONS, "glu", "activation", "gated_activation", "layer_norm", "rms_norm"})
_VIEWS = frozenset("view transpose permute chunk split unbind".split())
_KEEP = SAME_SIZES | frozenset("transpose permute mT identity".split())


def calls_give_what_fits(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails where a call in the file gives an argument what the new call does not take."""
    operation = claim.site.rule.replacement.operation
    if operation in _OF_FLOATS:
        yield from _integers(claim)
    elif operation == "attention":
        yield from _operands(claim)


def _integers(claim: Claim) -> Iterator[Missing | Fails]:
    x = claim.site.captures.get("x")
    names = {str(v.data) for v in _roots(claim, x, _VIEWS)} if x is not None else set[str]()
    index = claim.defined.scope.index(GivenArguments)
    for name in sorted(names):
        for given in index.calls_of(claim.defined):
            if any(made.floating is False and not made.number for made in index.made(given, name)):
                yield _fails(given, name, "no floating-point numbers")
                return
            if index.is_index(given, name):
                yield _fails(given, name, "an index")
                return


def _operands(claim: Claim) -> Iterator[Missing | Fails]:
    given, d = claim.site.captures, claim.defined
    index = d.scope.index(GivenArguments)
    names = {n: _argument(claim, given[n]) for n in ("query", "key", "value") if n in given}
    scale = given.get("scale")
    scales = {str(v.data) for v in _roots(claim, scale, frozenset())} if scale is not None else set[str]()
    mask = _of_mask(claim, given["mask"]) if "mask" in given else None
    for call in index.calls_of(d) if scales or mask or any(names.values()) else ():
        for name in sorted(scales):
            if any(not m.number for m in index.made(call, name)):
                yield _fails(call, name, "a tensor, and attention takes a number for a scale")
                return
        made = {n: _sizes(index.made(call, a)) for n, a in names.items() if a}
        if (few := next((n for n, s in made.items() if s is not None and len(s) < 2), None)) is not None:
            yield _fails(call, str(names[few]), "a tensor of less than two dimensions")
            return
        sizes = _sizes(index.made(call, mask)) if mask else None
        if sizes is not None and _reaches_further(sizes, made.get("query"), made.get("key")):
            yield _fails(call, str(mask), "a mask that is larger than the scores")
            return
    yield from _constructed_scale(claim, scale, index)


def _constructed_scale(claim: Claim, scale: Value | None, index: GivenArguments) -> Iterator[Fails]:
    """Fails where the scale is what a constructor is given, and a call gives it a tensor."""
    d = claim.defined
    names = {n for v in programs_own(claim, scale) if (n := attribute_of_self(v))} if scale is not None else set[str]()
    for name in sorted(names) if d.owner is not None else ():
        held, init = d.scope.attribute(d.owner, name), d.scope.method(d.owner, "__init__")
        if isinstance(held, ast.Name) and init is not None and d.owner is not None:
            for given in index.constructions(d.owner.node.name, init):
                if any(not m.number for m in index.made(given, held.id)):
                    yield _fails(given, held.id, "a tensor, and attention takes a number for a scale")
                    return


def _fails(given: GivenCall, name: str, what: str) -> Fails:
    why = because(tensors.OTHERWISE_GIVEN, name=name, what=what)
    return Fails(why, enables=False, text=given.text, line=given.call.lineno)


def _reaches_further(mask: Sizes, query: Sizes | None, key: Sizes | None) -> bool:
    """Whether scores and mask broadcast to something larger than the scores."""
    if query is None or key is None:
        return False
    rank = max(len(query), len(key))
    if len(mask) > rank:
        return True
    for i in range(3, len(mask) + 1):  # from the end: rows and columns are those of the scores
        sides = [s[-i] if len(s) >= i else 1 for s in (query, key)]
        if sides == [1, 1] and mask[-i] not in (1, None):
            return True
    rows = query[-2] if len(mask) >= 2 else None
    return rows == 1 and len(mask) >= 2 and mask[-2] not in (1, None)


def _sizes(made: list[Made]) -> Sizes | None:
    return next((m.sizes for m in made if m.sizes is not None and not m.number), None)


def argument_of(claim: Claim, canonical: Value) -> str | None:
    """The only argument that an operand is, in any layout and dtype, but with all of its dimensions."""
    roots = _roots(claim, canonical, _KEEP, of_size=True)
    return str(next(iter(roots)).data) if len(roots) == 1 else None


def _argument(claim: Claim, canonical: Value) -> str | None:
    """An argument that an operand is, or one of those that are added up to it."""
    return next((str(v.data) for v in _roots(claim, canonical, _KEEP, of_size=True)), None)


def _of_mask(claim: Claim, canonical: Value) -> str | None:
    """The one argument that a mask is computed from, entry by entry."""
    todo, found, seen = [canonical], set[str](), set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        own = programs_own(claim, v)
        if any(o.op == PARAMETER for o in own):
            found |= {str(o.data) for o in own if o.op == PARAMETER}
        elif v.op in (ITEM, CALL, ATTRIBUTE, "view", "expand", "unsqueeze"):
            return None
        elif v.op == LEAF:
            todo += [i for o in own for i in o.inputs]
        else:
            todo += v.inputs
    return found.pop() if len(found) == 1 else None


def _roots(claim: Claim, canonical: Value, through: frozenset[str], of_size: bool = False) -> set[Value]:
    """The arguments of which a value is a view or a part, by operations of `through`."""
    todo, found, seen = [canonical], set[Value](), set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.op == PARAMETER:
            found.add(v)
        elif v.op == LEAF and isinstance(v.data, Value):
            todo.append(v.data)
        elif v.op in (PERMUTE, CAST) or v.op in through or v.op in SAME_SIZES or v.op == ITEM and not of_size:
            todo += v.inputs[:1]
        elif v.op == CHOICE:
            todo += v.inputs[1:]
        elif v.op in ("mul", "div", "add", "sub"):
            todo += v.inputs
        elif not v.inputs or v.op not in (CALL, ATTRIBUTE):
            todo += [o for o in programs_own(claim, v) if o is not v]
    return found
