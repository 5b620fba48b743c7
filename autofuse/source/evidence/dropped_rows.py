"""May a mask that is added to the scores drop every key of a row with large finite numbers?

The weights of such a row are equal in the original code, and in torch's fused kernels too. But those kernels save the
logarithm of the row's sum next to the large number, where rounding loses it, so the gradients of the row are wrong.

A mask that is shown to be one of these is safe:

- "small": its numbers have the size of scores, as those of a learned bias.
- "infinite": other numbers are minus infinity. A row without a key is then NaN in the original.
- "kept": it adds large numbers, and at least one key of each row is free of them, as in a causal mask.

The contents of arguments and attributes are read in added_numbers.py. This file follows captured values.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from functools import reduce

from autofuse.canonical import CAST, KEEP, LEAF, PERMUTE, fill_of, literal
from autofuse.canonical.recognise.masks import BOOLEAN
from autofuse.ir.graph import CALL, CHOICE, CONST, ITEM, PARAMETER, TUPLE, Value, is_const, sides_of
from autofuse.ir.vocabulary import OPS
from autofuse.match.mask_kinds import causal_proof
from autofuse.match.masks import Mask
from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.added_numbers import CREATED, AddedNumbers
from autofuse.source.evidence.added_sizes import (
    INFINITE,
    KEPT,
    SCALE,
    SMALL,
    UNKNOWN,
    Size,
    any_of,
    mixture_of,
    product_of,
    size_of_number,
    sum_of,
)
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.site_values import describe_value, program_values, self_attribute_name

_MAX_DEPTH = 40
_SAME_NUMBERS = frozenset(
    {CAST, PERMUTE, ITEM, "gather", "take_along_dim", "clone", "detach", "clamp_max", "tril"}
    | {name for name, op in OPS.items() if op.effect == "view"}
)
_BOUNDED = frozenset(
    "tanh sigmoid softmax sin cos erf sign atan atan2 hardsigmoid softsign hardtanh relu6 one_hot arange linear "
    "layer_norm rms_norm group_norm normalize cosine_similarity any all size "
    "dim expert_linear".split()
)
_ENTRYWISE_BOUNDED = frozenset(
    "gelu silu relu mish softplus dropout sqrt logsigmoid mean clamp clamp_min neg abs".split()
)
_PRODUCTS = frozenset("matmul einsum einops_einsum baddbmm addmm".split())
_JOINED = frozenset({"cat", "stack"})


def rows_keep_a_key(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports an added mask of which nothing shows that each row keeps a key."""
    captures = claim.site.captures
    if not claim.edit.becomes.endswith("scaled_dot_product_attention") or "mask" not in captures:
        return  # ops.attention computes such rows as the original does
    if "mask_is_causal" in captures or "kept" in captures or "fill" in captures:
        return
    sizes = _Sizes(claim)
    for side in sides_of(captures["mask"]):
        if side.op not in BOOLEAN and ("unknown" in sizes.of(side, _MAX_DEPTH) or sizes.are_written()):
            what = describe_value(claim, side, "the mask that is added to the scores")
            yield Missing(f"assumes that {what} drops no row as a whole with large finite numbers, or that no gradient "
                          "reaches such a row")  # fmt: skip
            return


class _Sizes:
    """The sizes of the numbers in captured values."""

    def __init__(self, claim: Claim) -> None:
        self._claim, self._view = claim, claim.view
        self._text = AddedNumbers(claim.defined, claim.files)
        self._known: dict[Value, Size] = {}
        self._own_nodes = {id(n) for n in walk(claim.captured.function)}

    def of(self, v: Value, depth: int) -> Size:
        if v not in self._known:
            self._known[v] = UNKNOWN  # of a value that depends on itself
            self._known[v] = self._read(v, depth - 1) if depth > 0 else UNKNOWN
        return self._known[v]

    def are_written(self) -> bool:
        """Whether the function may write to one of the values that were read, in a way that no value shows."""
        positions = self._claim.captured.positions
        values = {o for v in self._known for o in (v, *program_values(self._claim, v))}
        names = {str(v.data) for v in values if v.op == PARAMETER}
        for place in (p for v in values for p in positions.get(v, ())):
            if isinstance(place.node, ast.Name):
                names.add(place.node.id)
            elif isinstance(place.statement, ast.Assign) and place.statement.value is place.node:
                names |= {t.id for t in place.statement.targets if isinstance(t, ast.Name)}
        return any(map(self._text.is_written_unseen, names - {"self"}))

    def _read(self, v: Value, depth: int) -> Size:
        if v.op == CONST:
            return SMALL if v.data is None else size_of_number(literal(v))
        if v.op in BOOLEAN or v.op in CREATED or v.op in _BOUNDED:
            return SMALL
        size = self._of_operation(v, depth)
        if "unknown" in size:
            size = self._of_program_values(v, depth)
        return KEPT if "unknown" in size and causal_proof(self._view, Mask(v)) is not None else size

    def _of_operation(self, v: Value, depth: int) -> Size:
        def inner(i: int) -> Size:
            return self.of(v.inputs[i], depth)

        if v.op == CHOICE:
            return any_of([inner(1), inner(2)])
        if v.op == "where":
            return mixture_of(inner(1), inner(2))
        if v.op in (KEEP, "masked_fill", "masked_at"):
            return mixture_of(inner(0), self._of_fill(v.inputs[2]))
        if v.op in ("full", "full_like"):
            return self._of_fill(v.inputs[1])
        if v.op in ("add", "sub", "rsub"):
            return reduce(sum_of, (self.of(i, depth) for i in v.inputs if i.op != TUPLE))
        if v.op in ("mul", "div"):
            return self._of_product(v, depth)
        if v.op == "triu":
            return inner(0)
        if v.op in _PRODUCTS:
            return UNKNOWN if self._text.names_large_number else SMALL
        if v.op == "log":
            return INFINITE if inner(0) == SMALL else UNKNOWN
        if v.op in _JOINED and v.inputs[0].op == TUPLE:
            return reduce(mixture_of, (self.of(i, depth) for i in v.inputs[0].inputs))
        if v.op in _ENTRYWISE_BOUNDED and inner(0) != SMALL:
            return UNKNOWN
        return inner(0) if v.inputs and v.op in _SAME_NUMBERS | _ENTRYWISE_BOUNDED else UNKNOWN

    def _of_fill(self, fill: Value) -> Size:
        number = fill_of(self._view, fill)
        return size_of_number(literal(fill) if number is None else number)

    def _of_product(self, v: Value, depth: int) -> Size:
        """The size of a product. `(1 - m) * -10000` holds no other numbers, because `m` holds zeros and ones."""
        numbers = [n for i in v.inputs if (n := literal(i)) is not None]
        if not numbers or abs(math.prod(numbers)) <= SCALE:
            return reduce(product_of, (self.of(i, depth) for i in v.inputs))
        rest = [i for i in v.inputs if literal(i) is None]
        if any(map(self._is_upper_triangle, rest)):
            return KEPT
        is_binary = len(rest) == 1 and (_opposite(rest[0]) or _without_casts(rest[0]).op in BOOLEAN)
        return size_of_number(math.prod(numbers)) if is_binary and math.prod(numbers) < 0 else UNKNOWN

    def _is_upper_triangle(self, v: Value) -> bool:
        """Whether a value holds ones above the diagonal and zeros elsewhere: `triu(ones, 1)`, `1 - tril(ones)`."""
        zero = self._view.const(0)
        kept = [self._view.make("eq", v, zero), *(self._view.make("ne", m, zero) for m in _opposite(v))]
        return any(causal_proof(self._view, Mask(k, boolean=True)) is not None for k in kept)

    def _of_program_values(self, v: Value, depth: int) -> Size:
        own = [o for o in program_values(self._claim, v) if o is not v]
        if own:
            return any_of([self.of(o, depth) for o in own])
        return self._of_source(v)

    def _of_source(self, v: Value) -> Size:
        """The size of an argument, an attribute, or the result of a call."""
        if v.op == PARAMETER:
            return self._text.of_argument(str(v.data))
        if (name := _own_attribute(v)) is not None:
            return self._text.of_attribute(name)
        if v.op == CALL and v.inputs and (name := _own_attribute(v.inputs[0])) is not None:
            return self._text.of_called(name)
        nodes = [p.node for p in self._claim.captured.positions.get(v, ())]
        own = [n for n in nodes if id(n) in self._own_nodes]  # others are expressions of helpers
        return any_of([self._text.of_expression(n) for n in own]) if own else UNKNOWN


def _own_attribute(v: Value) -> str | None:
    """The name of an attribute of the module itself: `name` of `self.name`."""
    return self_attribute_name(v) if v.inputs and v.inputs[0].data == "self" else None


def _without_casts(v: Value) -> Value:
    while v.op == LEAF and isinstance(v.data, Value) or v.inputs and v.op in _SAME_NUMBERS:
        v = v.data if v.op == LEAF and isinstance(v.data, Value) else v.inputs[0]
    return v


def _opposite(v: Value) -> list[Value]:
    """`m`, if a value is `1 - m`, perhaps cast or viewed."""
    v = _without_casts(v)
    if v.op not in ("rsub", "sub", "add") or not any(is_const(i, 1, 1.0) for i in v.inputs):
        return []
    factors = [m for i in v.inputs for m in (i.inputs if i.op == "mul" else (i,))]
    return [m for m in factors if m.op != CONST]
