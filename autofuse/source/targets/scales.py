"""The scale of attention as an argument: what scores are multiplied by, or a query that is scaled by hand before.

`q = q * self.scale` becomes `scale=self.scale`, and the product goes where nothing else reads it. Knows the default
scale of scaled_dot_product_attention; edits nothing, but says which product the text no longer needs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.canonical import PERMUTE
from autofuse.ir.graph import ATTRIBUTE, GLOBAL, ITEM, MODULE, PARAMETER, TUPLE, Value, ancestors, is_const
from autofuse.ir.vocabulary import OPS
from autofuse.match.legality import is_metadata, may_share_memory
from autofuse.source.capture.captured import ValuePosition, unconditional
from autofuse.source.capture.symbolic_lengths import lengths_of
from autofuse.source.targets.call import Arguments
from autofuse.source.targets.express import Speller, Unscaled, Unwritable, places_of
from autofuse.source.targets.printing import fill

_LAID_OUT = frozenset("view reshape transpose permute rearrange contiguous unflatten flatten unsqueeze mT".split())


def scale_of(a: Arguments, query: str, s: Speller) -> tuple[str, list[str]]:
    """The query, multiplied by a scale that is a tensor, and the argument for any other scale."""
    scale = a.get("scale")
    if scale is None:
        return query, ["scale=1.0"]
    if s.view.number(scale) is False:
        return fill("{0} * {1}", query, s.text(scale)), ["scale=1.0"]
    return query, [] if _is_default_scale(scale, a["query"], a["key"], s) else [f"scale={s.text(scale)}"]


def unscaled(a: Arguments, s: Speller) -> tuple[Arguments, list[str] | None]:
    """The arguments with the query as it was before it was scaled by hand, and the text of that scale.

    None where it was not, or where something else reads the scaled query.
    """
    if (a.get("scale") is not None and not is_const(a["scale"], 1, 1.0)) or not s.may_unscale:
        return a, None
    found = next((f for o in s.view.originals(a["query"]) if (f := _scaled(o, s)) is not None), None)
    if found is None:
        return a, None
    used, removed = set(s.used), set(s.removed)
    try:
        return _without(found, a, s)
    except Unwritable:
        s.used, s.removed = used, removed
        return a, None


@dataclass(frozen=True)
class _Scaled:
    """A product of a tensor with a number, for the query alone. `named`: a statement of its own makes it."""

    product: Value
    tensor: Value
    number: Value
    place: ValuePosition
    operand: ast.expr  # the text of the tensor in the product
    named: bool


def _without(found: _Scaled, a: Arguments, s: Speller) -> tuple[Arguments, list[str] | None]:
    number = s.view.of(found.number)
    scale = number if found.product.op == "mul" else s.view.plain("reciprocal", number)
    before = s.view.of(found.tensor)
    default = any(_is_default_scale(scale, of, a["key"], s) for of in (before, a["query"]))
    text = "" if default else s.text(number)
    if not found.named:
        s.text(before)
        a = {**a, "query": before}
    elif not s.text(a["query"]).isidentifier():
        return a, None
    else:
        s.unscaled.append(Unscaled(found.place.node, found.operand, found.place.statement))
    if default:
        return a, []
    return a, [f"scale={text}" if found.product.op == "mul" else f"scale={fill('1.0 / {0}', text)}"]


def _scaled(query: Value, s: Speller) -> _Scaled | None:
    """The product that `query` is, perhaps laid out otherwise."""
    v, user = query, s.result
    while True:
        if not all(u is user or v is query and u in s.gone for u in _readers(v, s)):
            return None
        if v.op not in _LAID_OUT:
            break
        v, user = v.inputs[0], v
    found = _product(v, query, s)
    return found if found is not None and _is_own(found, s) else None


def _product(v: Value, query: Value, s: Speller) -> _Scaled | None:
    if v.op not in ("mul", "div") or len(v.inputs) < 2 or v in s.gone:
        return None
    places = [p for p in dict.fromkeys(places_of(s.captured, v)) if not p.inner]
    if len(places) != 1 or not unconditional(places[0]) or places[0].region != s.root.region:
        return None
    node = places[0].node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Mult, ast.Div)):
        return None
    sides = [(v.inputs[0], v.inputs[1], node.left)]
    if v.op == "mul":
        sides.append((v.inputs[1], v.inputs[0], node.right))
    for tensor, number, operand in sides:
        written = any(p.node is operand for p in s.captured.places.get(tensor, ()))
        numbers = s.view.facts.number(number) and not s.view.facts.number(tensor)
        if written and numbers and _stays(number, places[0], s):
            held = any(isinstance(p.node, ast.Name) for p in s.captured.places.get(v, ()))
            named = v is not query or held or bool(s.captured.binders(v))
            return _Scaled(v, tensor, number, places[0], operand, named)
    return None


def _stays(number: Value, place: ValuePosition, s: Speller) -> bool:
    """Whether a number that is read at `place` is surely the same where the call stands: nothing of it is assigned."""
    read = [v for v in (number, *ancestors(number)) if v.op in (ATTRIBUTE, GLOBAL) and not is_metadata(v)]
    own = all(v.op == ATTRIBUTE and v.inputs[0].op in (PARAMETER, MODULE, ATTRIBUTE) for v in read)
    return not read or own and place.forgets == s.place.forgets


def _is_own(found: _Scaled, s: Speller) -> bool:
    """Whether nobody else may write to the tensor: attention keeps it for the backward pass, the product did not."""
    readers = any(u is not found.product for u in _readers(found.tensor, s))
    written = any(may_share_memory(w.target, found.tensor) for w in s.captured.graph.writes)
    return not readers and not written and not _is_kept(found.tensor)


def _readers(v: Value, s: Speller) -> Iterator[Value]:
    """What reads the contents of `v`: neither its sizes, nor a method or a tuple that nobody looks at."""
    for user in s.captured.graph.users[v]:
        idle = user.op in (ATTRIBUTE, TUPLE) and not s.captured.graph.users.get(user)
        if not idle and not is_metadata(user):
            yield user


def _is_kept(v: Value) -> bool:
    """Whether a tensor may lie in the memory of an argument or an attribute: each step on the way may be a view."""
    while v.inputs and (v.op == ITEM or v.op in OPS and OPS[v.op].effect == "view" or v.op == "identity"):
        v = v.inputs[0]
    return v.op in (PARAMETER, ATTRIBUTE)


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
