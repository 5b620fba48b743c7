"""The scale of an attention as an argument.

The scale multiplies the scores, or the query before the scores. `q = q * self.scale` becomes `scale=self.scale`, and
the product is removed if nothing else reads it. scaled_dot_product_attention has a default scale, which is left out.
This file edits nothing; it records which product the text no longer needs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.canonical import PERMUTE
from autofuse.ir.graph import ATTRIBUTE, GLOBAL, ITEM, MODULE, PARAMETER, TUPLE, Value, ancestors, is_const
from autofuse.ir.vocabulary import OPS
from autofuse.match.legality import is_metadata, may_share_memory
from autofuse.source.capture.captured import ValuePosition, is_unconditional
from autofuse.source.capture.symbolic_lengths import recorded_lengths
from autofuse.source.targets.call import Arguments
from autofuse.source.targets.printing import fill
from autofuse.source.targets.speller import FoldedScale, Speller, Unwritable, computing_places

_LAYOUT_OPERATIONS = frozenset(
    "view reshape transpose permute rearrange contiguous unflatten flatten unsqueeze mT".split()
)


def scale_argument(args: Arguments, query: str, speller: Speller) -> tuple[str, list[str]]:
    """Return the query, multiplied by a scale that is a tensor, and the argument for a scale that is a number."""
    scale = args.get("scale")
    if scale is None:
        return query, ["scale=1.0"]
    if speller.view.number(scale) is False:
        return fill("{0} * {1}", query, speller.text(scale)), ["scale=1.0"]
    return query, [] if _is_default_scale(scale, args["query"], args["key"], speller) else [
        f"scale={speller.text(scale)}"
    ]


def fold_scale(args: Arguments, speller: Speller) -> tuple[Arguments, list[str] | None]:
    """Fold the product of the query with a number into the `scale` argument.

    Returns:
        The arguments with the unscaled query, and the text of the scale. The text is None if the query is not scaled,
            or if something else reads the scaled query.
    """
    if (args.get("scale") is not None and not is_const(args["scale"], 1, 1.0)) or not speller.may_fold_scale:
        return args, None
    scaled = next(
        (f for o in speller.view.originals(args["query"]) if (f := _find_scaled_query(o, speller)) is not None), None
    )
    if scaled is None:
        return args, None
    # If the unscaled query turns out to be unwritable, the speller must forget the values that it used for it.
    used, removed = set(speller.used), set(speller.removed_statements)
    try:
        return _without_scale(scaled, args, speller)
    except Unwritable:
        speller.used, speller.removed_statements = used, removed
        return args, None


@dataclass(frozen=True)
class _ScaledQuery:
    """A product of a tensor with a number that only the query uses.

    Attributes:
        query: the query, which is the product, perhaps in another layout.
        product: the product.
        tensor: its tensor.
        number: its number.
        place: the position of the product.
        operand: the text of the tensor in the product.
        has_statement: whether a statement of its own assigns the product.
    """

    query: Value
    product: Value
    tensor: Value
    number: Value
    place: ValuePosition
    operand: ast.expr
    has_statement: bool


def _without_scale(scaled: _ScaledQuery, args: Arguments, speller: Speller) -> tuple[Arguments, list[str] | None]:
    number = speller.view.of(scaled.number)
    scale = number if scaled.product.op == "mul" else speller.view.plain("reciprocal", number)
    before = speller.view.of(scaled.tensor)
    is_default = any(_is_default_scale(scale, of, args["key"], speller) for of in (before, args["query"]))
    text = "" if is_default else speller.text(number)
    if not scaled.has_statement:
        speller.text(before)
        args = {**args, "query": before}
    elif not speller.is_name_of(speller.text(args["query"]), scaled.query):
        return args, None
    else:
        speller.folded_scales.append(FoldedScale(scaled.place.node, scaled.operand, scaled.place.statement))
    if is_default:
        return args, []
    return args, [f"scale={text}" if scaled.product.op == "mul" else f"scale={fill('1.0 / {0}', text)}"]


def _find_scaled_query(query: Value, speller: Speller) -> _ScaledQuery | None:
    """The product that the query is, perhaps after a change of layout; None if it is not one."""
    v, user, views = query, speller.result, list[Value]()
    while True:
        if not all(u is user or v is query and u in speller.removed_values for u in _readers(v, speller)):
            return None
        if v.op not in _LAYOUT_OPERATIONS:
            break
        if _needs_layout(v, speller):
            views.append(v)
        v, user = v.inputs[0], v
    scaled = _find_product(v, query, speller)
    if scaled is None or views and _may_be_slice(scaled.tensor):
        return None
    return scaled if _is_unshared(scaled, speller) else None


def _needs_layout(v: Value, speller: Speller) -> bool:
    """Whether `v` is a `.view` that joins dimensions, which raises for some layouts."""
    if v.op != "view" or ".view" not in speller.captured.spellings.get(v, ()):
        return False
    before, after = speller.view.facts.rank(v.inputs[0]), speller.view.facts.rank(v)
    return before is None or after is None or after <= before


def _may_be_slice(v: Value) -> bool:
    """Whether `v` may be a part of a larger tensor. A product with a number copies it, so that any view of it works."""
    while v.inputs and (v.op in _LAYOUT_OPERATIONS or v.op == "identity"):
        v = v.inputs[0]
    return v.op in (PARAMETER, ATTRIBUTE, ITEM) or v.op in OPS and OPS[v.op].effect == "view"


def _find_product(v: Value, query: Value, speller: Speller) -> _ScaledQuery | None:
    if v.op not in ("mul", "div") or len(v.inputs) < 2 or v in speller.removed_values:
        return None
    places = [p for p in dict.fromkeys(computing_places(speller.captured, v)) if not p.inner]
    if len(places) != 1 or not is_unconditional(places[0]) or places[0].region != speller.root.region:
        return None
    node = places[0].node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Mult, ast.Div)):
        return None
    sides = [(v.inputs[0], v.inputs[1], node.left)]
    if v.op == "mul":
        sides.append((v.inputs[1], v.inputs[0], node.right))
    for tensor, number, operand in sides:
        is_written = any(p.node is operand for p in speller.captured.positions.get(tensor, ()))
        is_number = speller.view.facts.number(number) and not speller.view.facts.number(tensor)
        if is_written and is_number and _is_unchanged(number, places[0], speller):
            has_name = any(isinstance(p.node, ast.Name) for p in speller.captured.positions.get(v, ()))
            has_statement = v is not query or has_name or bool(speller.captured.binding_statements(v))
            return _ScaledQuery(query, v, tensor, number, places[0], operand, has_statement)
    return None


def _is_unchanged(number: Value, place: ValuePosition, speller: Speller) -> bool:
    """Whether a number that is read at `place` is certainly the same at the call: the code assigns nothing in it."""
    reads = [v for v in (number, *ancestors(number)) if v.op in (ATTRIBUTE, GLOBAL) and not is_metadata(v)]
    are_attributes = all(v.op == ATTRIBUTE and v.inputs[0].op in (PARAMETER, MODULE, ATTRIBUTE) for v in reads)
    return not reads or are_attributes and place.attribute_writes == speller.place.attribute_writes


def _is_unshared(scaled: _ScaledQuery, speller: Speller) -> bool:
    """Whether no other code can write to the tensor.

    Attention saves the unscaled tensor for the backward pass. The product did not.
    """
    readers = any(u is not scaled.product for u in _readers(scaled.tensor, speller))
    written = any(may_share_memory(w.target, scaled.tensor) for w in speller.captured.graph.writes)
    return not readers and not written and not _may_share_argument_memory(scaled.tensor)


def _readers(v: Value, speller: Speller) -> Iterator[Value]:
    """Yield the users of the contents of `v`: no reads of its sizes, no methods or tuples that nothing uses."""
    for user in speller.captured.graph.users[v]:
        idle = user.op in (ATTRIBUTE, TUPLE) and not speller.captured.graph.users.get(user)
        if not idle and not is_metadata(user):
            yield user


def _may_share_argument_memory(v: Value) -> bool:
    """Whether a tensor may share the memory of an argument or an attribute, since each step may be a view."""
    while v.inputs and (v.op == ITEM or v.op in OPS and OPS[v.op].effect == "view" or v.op == "identity"):
        v = v.inputs[0]
    return v.op in (PARAMETER, ATTRIBUTE)


def _is_default_scale(scale: Value, query: Value, key: Value, speller: Speller) -> bool:
    """Whether `scale` is 1 / sqrt(head_dim), with the last size of the query or the key as the text names it."""
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
    return any(_is_last_size(size, of, speller) for of in (query, key))


def _is_last_size(size: Value, of: Value, speller: Speller) -> bool:
    if size.op == "size" and size.inputs[0] is of and is_const(size.inputs[1], -1):
        return True
    if size.op == ITEM and size.inputs[0].op == ATTRIBUTE and size.inputs[0].data == "shape":
        if size.inputs[0].inputs[0] is of and is_const(size.inputs[1], -1):
            return True
    if of.op == PERMUTE and isinstance(of.data, tuple) and of.data[-1] == -1:
        return _is_last_size(size, of.inputs[0], speller)
    lengths = recorded_lengths(speller.view, of)
    return (
        lengths is not None
        and lengths[-1] is not None
        and lengths[-1] in {speller.sizes.size_key(o) for o in speller.view.originals(size)}
    )
