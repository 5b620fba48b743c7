"""The scale of an attention as an argument.

The scale multiplies the scores, or the query before the scores. `q = q * self.scale` becomes `scale=self.scale`, and
the product is removed if nothing else reads it. scaled_dot_product_attention has a default scale, which is left out.
This file edits nothing; it records which product the text no longer needs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autofuse.canonical import PERMUTE, View
from autofuse.canonical.view import order_of
from autofuse.ir.graph import ATTRIBUTE, GLOBAL, ITEM, MODULE, PARAMETER, TUPLE, Value, ancestors, is_const
from autofuse.ir.vocabulary import OPS
from autofuse.match.legality import is_metadata, may_share_memory
from autofuse.source.capture.captured import ValuePosition, is_unconditional
from autofuse.source.targets.call import Arguments
from autofuse.source.targets.default_scale import is_default_scale
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
    if is_default_scale(scale, args["query"], args["key"], speller):
        return query, []
    return with_positive_scale(query, [f"scale={speller.text(scale)}"])


def with_positive_scale(query: str, keywords: list[str]) -> tuple[str, list[str]]:
    """Move a minus sign of the scale to the query.

    Flash kernels subtract the largest score before they multiply the scores with the scale. With a negative scale that
    is the smallest result, and the exponential of another one may overflow.
    """
    rest = _without_sign(keywords[0].removeprefix("scale=")) if keywords else ""
    return (fill("-{0}", query), [f"scale={'1.0' if rest == '1' else rest}"]) if rest else (query, keywords)


def _without_sign(scale: str) -> str:
    """The text of `scale` without the minus sign of its first factor; "" if there is none."""
    first = ast.parse(scale, mode="eval").body
    while isinstance(first, ast.BinOp) and isinstance(first.op, (ast.Mult, ast.Div)):
        first = first.left
    if not isinstance(first, ast.UnaryOp) or not isinstance(first.op, ast.USub) or not scale.isascii():
        return ""
    return scale[: first.col_offset] + scale[first.col_offset + 1 :].lstrip()


def fold_scale(args: Arguments, speller: Speller) -> tuple[Arguments, list[str] | None]:
    """Fold the products of the query, and of the key, with a number into the `scale` argument.

    Returns:
        The arguments with the unscaled operands, and the text of the scale. The text is None if no operand is scaled,
            or if something else reads the scaled operands.
    """
    if (args.get("scale") is not None and not is_const(args["scale"], 1, 1.0)) or not speller.may_fold_scale:
        return args, None
    scaled = [s for name in ("query", "key") if (s := _find_scaled_operand(name, args, speller)) is not None]
    for operands in (scaled, scaled[:1]) if len(scaled) == 2 else (scaled,):
        # If an unscaled operand turns out to be unwritable, the speller must forget the values that it used for it.
        used, removed, folded = set(speller.used), set(speller.removed_statements), list(speller.folded_scales)
        try:
            if (found := _without_scales(operands, args, speller)) is not None:
                return found
        except Unwritable:
            pass
        speller.used, speller.removed_statements, speller.folded_scales = used, removed, folded
    return args, None


@dataclass(frozen=True)
class _ScaledOperand:
    """A product of a tensor with a number that only the query uses, or only the key.

    Attributes:
        name: "query" or "key".
        operand: the operand, which is the product, perhaps in another layout.
        product: the product.
        tensor: its tensor.
        number: its number.
        place: the position of the product.
        node: the text of the tensor in the product.
        has_statement: whether a statement of its own assigns the product.
    """

    name: str
    operand: Value
    product: Value
    tensor: Value
    number: Value
    place: ValuePosition
    node: ast.expr
    has_statement: bool

    def scale(self, view: View) -> Value:
        """The canonical number that multiplies the tensor."""
        number = view.of(self.number)
        return number if self.product.op == "mul" else view.plain("reciprocal", number)


def _without_scales(
    operands: Sequence[_ScaledOperand], args: Arguments, speller: Speller
) -> tuple[Arguments, list[str]] | None:
    """The arguments without the products, and the scale; None if the name of an operand holds another value."""
    if not operands:
        return None
    scales = [o.scale(speller.view) for o in operands]
    scale = scales[0] if len(scales) == 1 else speller.view.plain("mul", *scales)
    tensors = {o.name: speller.view.of(o.tensor) for o in operands}
    is_default = any(is_default_scale(scale, of, args["key"], speller) for of in (*tensors.values(), args["query"]))
    text = "" if is_default else _scale_text(operands, speller)
    for o in operands:
        if not o.has_statement:
            speller.text(tensors[o.name])
            args = {**args, o.name: _with_layout_of(args[o.name], tensors[o.name], o, speller.view)}
        elif not speller.is_name_of(speller.text(args[o.name]), o.operand):
            return None
        else:
            speller.folded_scales.append(FoldedScale(o.place.node, o.node, o.place.statement))
    return args, [] if is_default else [f"scale={text}"]


def _with_layout_of(argument: Value, tensor: Value, operand: _ScaledOperand, view: View) -> Value:
    """The unscaled tensor with its last dimensions permuted as those of the argument."""
    is_permuted = argument.op == PERMUTE and operand.operand not in view.originals(argument)
    return view.permuted(tensor, order_of(argument)) if is_permuted else tensor


def _scale_text(operands: Sequence[_ScaledOperand], speller: Speller) -> str:
    """The product of the numbers, as text."""
    texts = [speller.text(speller.view.of(o.number)) for o in operands]
    text = texts[0] if operands[0].product.op == "mul" else fill("1.0 / {0}", texts[0])
    for o, number in zip(operands[1:], texts[1:], strict=True):
        text = fill("{0} * {1}" if o.product.op == "mul" else "{0} / {1}", text, number)
    return text


def _originals_in_any_order(v: Value, view: View) -> list[Value]:
    """The program's values that `v` stands for, or else those with another order of the last dimensions."""
    return view.originals(v) or (view.originals(v.inputs[0]) if v.op == PERMUTE else [])


def _find_scaled_operand(name: str, args: Arguments, speller: Speller) -> _ScaledOperand | None:
    originals = _originals_in_any_order(args[name], speller.view)
    # The operand itself may be read by the removed code only through another layout of it, such as a transposed key.
    found = (_find_scaled(name, o, args, speller, layouts) for layouts in (False, True) for o in originals)
    return next((f for f in found if f is not None), None)


def _find_scaled(name: str, operand: Value, args: Arguments, speller: Speller, layouts: bool) -> _ScaledOperand | None:
    """The product that the operand is, perhaps after a change of layout; None if it is not one.

    Args:
        name: "query" or "key".
        operand: the operand.
        args: the arguments of the call.
        speller: the speller of the call.
        layouts: whether the removed code may read the operand through other layouts of it.
    """
    v, user, views = operand, speller.result, list[Value]()
    while True:
        if not all(u is user or v is operand and _is_consumed(u, speller, layouts) for u in _readers(v, speller)):
            return None
        if v.op not in _LAYOUT_OPERATIONS:
            break
        if _needs_layout(v, speller):
            views.append(v)
        v, user = v.inputs[0], v
    scaled = _find_product(name, v, operand, speller)
    if scaled is None or views and _may_be_slice(scaled.tensor):
        return None
    return scaled if _is_unshared(scaled, args, speller) else None


def _is_consumed(v: Value, speller: Speller, layouts: bool) -> bool:
    """Whether the edit removes `v`, or, if `v` is a layout, all that reads it: the transpose of a key."""
    if v in speller.removed_values:
        return True
    readers = list(_readers(v, speller)) if layouts and v.op in _LAYOUT_OPERATIONS else []
    return bool(readers) and all(_is_consumed(u, speller, layouts) for u in readers)


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


def _find_product(name: str, v: Value, query: Value, speller: Speller) -> _ScaledOperand | None:
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
            return _ScaledOperand(name, query, v, tensor, number, places[0], operand, has_statement)
    return None


def _is_unchanged(number: Value, place: ValuePosition, speller: Speller) -> bool:
    """Whether a number that is read at `place` is certainly the same at the call: the code assigns nothing in it."""
    reads = [v for v in (number, *ancestors(number)) if v.op in (ATTRIBUTE, GLOBAL) and not is_metadata(v)]
    are_attributes = all(v.op == ATTRIBUTE and v.inputs[0].op in (PARAMETER, MODULE, ATTRIBUTE) for v in reads)
    return not reads or are_attributes and place.attribute_writes == speller.place.attribute_writes


def _is_unshared(scaled: _ScaledOperand, args: Arguments, speller: Speller) -> bool:
    """Whether no other code can write to the tensor.

    Attention saves the unscaled tensor for the backward pass. The product did not.
    """
    readers = any(u is not scaled.product for u in _readers(scaled.tensor, speller))
    written = any(may_share_memory(w.target, scaled.tensor) for w in speller.captured.graph.writes)
    if readers or written:
        return False
    return not _may_share_argument_memory(scaled.tensor) or _is_saved_with_value(scaled.tensor, args, speller)


def _is_saved_with_value(tensor: Value, args: Arguments, speller: Speller) -> bool:
    """Whether the tensor and the value are parts of one tensor: `q, k, v = qkv.chunk(3)`.

    The code saves the value for the backward pass, so no caller can write to any part.
    """
    values = _originals_in_any_order(args["value"], speller.view)
    parts = {o.inputs[0] for o in values if o.op == ITEM and _is_split(o.inputs[0])}
    return tensor.op == ITEM and tensor.inputs[0] in parts


def _is_split(v: Value) -> bool:
    return v.op in ("chunk", "split", "unbind")


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
