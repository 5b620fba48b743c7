"""Matches a rule's `before` against a canonical graph, and records the nearest miss.

A pattern is a canonical value whose parameters capture the values in their place. Products and sums match in any order,
and a parameter in one captures all factors or terms that are left. Whether a match can be replaced is decided elsewhere
(legality.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from autofuse.canonical import CAST, PERMUTE, View, literal, strip_casts
from autofuse.canonical.arithmetic import factors_of, product, terms_of, total, without
from autofuse.canonical.recognise.class_rows import rows_of
from autofuse.canonical.recognise.precision import (
    changes_dtype,
    half_dtype_name,
    keeps_dtype,
    known_dtypes,
    names_dtype,
)
from autofuse.canonical.recognise.projections import as_linear
from autofuse.canonical.shapes import elements
from autofuse.canonical.sizes import size_query, whole_shape
from autofuse.canonical.view import order_of
from autofuse.ir import layout
from autofuse.ir.graph import CONST, PARAMETER, Value
from autofuse.ir.numbers import is_close
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import OPS
from autofuse.match.mask_kinds import added_above, causal_proof, kind_of
from autofuse.match.masks import masked_forms
from autofuse.match.pattern import Bindings, Miss, Pattern

_PARTS = {"mul": factors_of, "add": terms_of}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_OF_ROWS = frozenset({"log_softmax", "logsumexp"})  # operations along the classes of logits
_KEEP_DTYPE = frozenset({"softmax"})  # their result has the dtype of their operand
_WEIGHTS = frozenset(
    {"softmax", "sink_softmax", "dropout"}
)  # attention weights; they are cast to the dtype of the values
_NORMS = frozenset({"layer_norm", "rms_norm"})  # they compute in float32 for every dtype
_DIGITS = 1e-5  # people write 0.7978845608 for sqrt(2 / pi)


@dataclass
class Matcher:
    """Matches one pattern in one view.

    Attributes:
        pattern: the pattern.
        view: the canonical form of the graph.
        miss: the nearest miss so far.
        reached: operation -> the first step of the pattern with it whose operands did not match, and the value there.
        restored: an argument of the current call of `matches`.
        cast: an argument of the current call of `matches`.
    """

    pattern: Pattern
    view: View
    miss: Miss = field(default_factory=lambda: Miss(0))
    reached: dict[str, tuple[Value, Value]] = field(default_factory=dict)
    restored: Value | None = None
    cast: Value | None = None

    def matches(self, value: Value, restored: Value | None = None, cast: Value | None = None) -> Iterator[Bindings]:
        """Yield every way in which `value` matches the pattern. Optional parameters that the code omits are not bound.

        Code may compute in float32 and cast back. If both casts are inside the match, the captures are the values
        before the cast, because the fused operation chooses its own precision inside.

        Args:
            value: the canonical value.
            restored: the value to whose dtype the program casts `value` afterwards. The cast is part of the match only
                if an operand had this dtype before it was cast.
            cast: the cast of `value` that follows in the program. It is part of the match only if the front end knows
                its dtype.
        """
        self.restored, self.cast = restored, cast
        for found in self._match(self.pattern.root, value, Bindings(), 0):
            operands = [n for n in found.captures if not self._must_keep_cast(n)]
            if cast is not None and found.widened is None:
                continue
            if restored is not None and not self._restores_dtype(found, operands, restored):
                continue
            if not found.casts and restored is None:
                yield found
                continue
            passes = restored is None and self.pattern.root.op in _KEEP_DTYPE
            if passes and not keeps_dtype(self.view, value, found.captures.values()):
                continue  # the result of the program has the dtype of the cast
            if any(_casts_one_operand(self.view, step) for step in found.steps.values()):
                if restored is None and self._share_a_dtype(found, operands):
                    yield found  # the captures keep their casts
                continue
            if restored is None and self._names_dtype(found):
                continue  # the program's result has that dtype, but its operands may have another dtype
            captures = {n: self._without_casts(v) if n in operands else v for n, v in found.captures.items()}
            yield Bindings(captures, found.steps, found.notes, found.mask, found.casts)

    def _share_a_dtype(self, found: Bindings, operands: list[str]) -> bool:
        """Whether the front end knows that all tensors among the operands have the same dtype, casts included."""
        tensors = [found.captures[n] for n in operands if not self.view.number(found.captures[n])]
        dtypes = [known_dtypes(self.view, v) for v in tensors]
        return all(len(d) == 1 for d in dtypes) and len(set().union(*dtypes)) == 1

    def _must_keep_cast(self, name: str) -> bool:
        """Whether the capture `name` must keep its cast: a cast mask is another mask, and a cast sum rounds later."""
        return self.pattern.may_be_none(name) or name in self.pattern.masks or name in self.pattern.summands

    def _undoes_cast(self, before: Bindings, after: Bindings) -> bool:
        """Whether a cast that was crossed between `before` and `after` undoes a cast further inside.

        A cast without a cast further inside gives a dtype that the operands do not have. In a matrix product with the
        values of attention, torch requires that it is the dtype of the values.
        """
        crossed = after.casts > before.casts or after.widened is not before.widened
        if self.pattern.root.op in ("matmul", *_KEEP_DTYPE) or crossed:
            return True  # for a softmax, matches() checks the dtype of the result
        inside = [v for n, v in after.captures.items() if n not in before.captures]
        return any(v.op == CAST for v in inside or after.captures.values())

    def _rounds_to_half_precision(self, cast: Value, found: Bindings) -> bool:
        """Whether a cast is to half precision by name, and that is not known to be the dtype of an operand."""
        halves = {half_dtype_name(o) for o in self.view.originals(cast)} - {None}
        return bool(halves) and not any(
            known_dtypes(self.view, strip_casts(v)) >= halves for v in found.captures.values()
        )

    def _names_dtype(self, found: Bindings) -> bool:
        """Whether the right operand of the last product is cast to a dtype by name: `weights @ value.float()`."""
        last = self.pattern.root.inputs[-1] if self.pattern.root.op == "matmul" else None
        value = found.captures.get(str(last.data)) if last is not None and last.op == PARAMETER else None
        if value is None:
            return False
        cast = value.inputs[0] if value.op == PERMUTE else value
        return cast.op == CAST and any(names_dtype(self.view, o) for o in self.view.originals(cast))

    def _restores_dtype(self, found: Bindings, operands: list[str], restored: Value) -> bool:
        """Whether `restored` has the dtype that an operand had before it was cast."""
        if found.widened is not None and self.view.dtype_source(found.widened) is self.view.dtype_source(restored):
            return True
        if any(found.captures[n].op == CAST and strip_casts(found.captures[n]) is restored for n in operands):
            return True
        if not found.casts or self.pattern.root.op not in _KEEP_DTYPE:
            return False
        like = self.view.dtype_source(restored)
        return any(
            self.view.dtype_source(strip_casts(found.captures[n])) is like
            for n in operands
            if not self.view.number(found.captures[n])
        )

    def _match(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        spend()
        if pattern.op == PARAMETER:
            yield from self._bind(str(pattern.data), value, bound)
            return
        if pattern.op == CONST:
            if value.op == CONST and _is_same_literal(value.data, pattern.data):
                yield bound
            return
        if pattern.op == PERMUTE:
            inverse = layout.inverse(order_of(pattern))
            yield from self._match(pattern.inputs[0], self.view.permuted(value, inverse), bound, depth)
            return
        crossed, cast = depth > 0 and value.op == CAST, value
        if value.op == CAST:
            value, bound = strip_casts(value), bound.across_cast() if depth else bound
        found = False
        for result in self._match_step(pattern, value, bound, depth):
            found = True
            if crossed and not self._undoes_cast(bound, result):
                continue
            if crossed and pattern.op not in _WEIGHTS and self._rounds_to_half_precision(cast, result):
                continue
            yield result.with_step(pattern, value)
        inner = self.pattern.optional(pattern)
        if inner is not None:
            yield from self._match(inner, value, bound, depth)
        elif not found and _differs_in_arguments(pattern, value):
            if depth > self.miss.depth:
                self.miss = Miss(depth, pattern, value)
        elif not found and pattern.op == value.op:
            self.reached.setdefault(pattern.op, (pattern, value))

    def first_match(self, pattern: Value, value: Value) -> Bindings | None:
        """The first match of a part of the pattern; None if there is none."""
        return next(self._match(pattern, value, Bindings(), 1), None)

    def rest_matches(self, miss: Miss) -> bool:
        """Whether the operands of the step that did not match do match. Then only its constants differ."""
        if miss.step is None or miss.found is None:
            return False
        plain, found = strip_casts(miss.found), miss.found
        if plain.op == PERMUTE:  # an operation over a dimension that the canonical form moves to the end and back
            found = strip_casts(plain.inputs[0])
        pairs = [(p, v) for p, v in zip(miss.step.inputs, found.inputs, strict=False) if p.op != CONST]
        if plain.op == PERMUTE:
            pairs = [(p, self._permute(v, order_of(plain))) for p, v in pairs]
        return all(any(True for _ in self._match(p, v, Bindings(), 1)) for p, v in pairs)

    def _permute(self, v: Value, order: layout.Tail) -> Value:
        """`v` with permuted dimensions. The transpose of a matrix product is the product of the transposes."""
        if v.op == "matmul" and order == (-1, -2):
            return self.view.plain("matmul", *(self.view.permuted(i, order) for i in reversed(v.inputs)))
        if v.op in OPS and OPS[v.op].keeps_sizes and v.op not in _WEIGHTS:
            inputs = (i if self.view.number(i) else self._permute(i, order) for i in v.inputs)
            return self.view.plain(v.op, *inputs, data=v.data)
        return self.view.permuted(v, order)

    def _match_step(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        if pattern.op == "masked":
            yield from self._match_masked(pattern, value, bound, depth)
        elif pattern.op in _OF_ROWS and pattern.inputs[0].op == "rows":
            yield from self._match_rows(pattern, value, bound, depth)
        elif pattern.op == "linear" != value.op:
            yield from self._match_linear(pattern, value, bound, depth)
        elif (size := size_query(pattern)) is not None:
            yield from self._match_size(size, size_query(value), bound, depth)
        elif pattern.op == "view" == value.op:
            yield from self._match_view(pattern, value, bound, depth + 1)
        elif pattern.op in _PARTS and pattern.op == value.op:
            yield from self._match_in_any_order(pattern, value, bound, depth + 1)
        elif pattern.op in _NORMS and pattern.op == value.op and pattern.inputs[0].op == "add":
            yield from self._match_norm(pattern, value, bound, depth + 1)
        elif pattern.op == value.op and pattern.data == value.data and len(pattern.inputs) == len(value.inputs):
            yield from self._match_inputs(pattern.inputs, value.inputs, bound, depth + 1)
            if pattern.op in OPS and OPS[pattern.op].commutes:
                yield from self._match_inputs(pattern.inputs, value.inputs[::-1], bound, depth + 1)
        elif _MIRRORED.get(pattern.op) == value.op:  # 0 < x is x > 0
            yield from self._match_inputs(pattern.inputs, value.inputs[::-1], bound, depth + 1)
        elif pattern.op == "mul" and value.op == CONST:
            yield from self._match_multiple(pattern, value, bound)

    def _match_multiple(self, pattern: Value, value: Value, bound: Bindings) -> Iterator[Bindings]:
        """Match `delta * 0.5` against a literal: `delta` is a literal in the code, so the product is a literal too."""
        whole, known = literal(value), [n for f in pattern.inputs if (n := literal(f)) is not None]
        parameters = [f for f in pattern.inputs if f.op == PARAMETER]
        if whole is None or len(known) != 1 or len(parameters) != 1 or not known[0]:
            return
        yield from self._bind(str(parameters[0].data), self.view.const(whole / known[0]), bound)

    def _match_masked(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """Match masked(scores, mask, fill, is_causal, kept) against any way of masking."""
        scores, *parameters = pattern.inputs
        for inner, mask in masked_forms(self.view, value):
            proof = causal_proof(self.view, mask)
            assert mask.value is not None
            fill = added_above(self.view, mask) if proof and not mask.boolean else mask.fill
            values = [mask.value, fill, self.view.const(True) if proof else None, mask.kept]
            if len(parameters) < len(values) and mask.kept is not None:
                continue
            partial = bound.with_mask(mask, kind_of(self.view, mask))
            for parameter, found in zip(parameters, values, strict=False):
                partial = partial if found is None else partial.with_capture(str(parameter.data), found)
            yield from self._match(scores, inner, partial, depth + 1)

    def _match_norm(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """Match the norm of a sum. If the code casts the sum first, it must cast the result back outside."""
        of, *rest = value.inputs
        if of.op == CAST:
            if not bound.casts and not self._is_cast_back(strip_casts(of)):
                return
            of, bound = strip_casts(of), bound.across_widening(strip_casts(of))
        yield from self._match_inputs(pattern.inputs, (of, *rest), bound, depth)

    def _is_cast_back(self, v: Value) -> bool:
        """Whether the code or the front end shows that the result of the match is cast to the dtype of `v`."""
        if self.restored is not None:
            return self.view.dtype_source(self.restored) is self.view.dtype_source(v)
        known = known_dtypes(self.view, v)
        return self.cast is not None and len(known) == 1 and known == known_dtypes(self.view, self.cast)

    def _match_linear(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """Match linear(x, weight, bias) against a matrix product with an attribute of the module."""
        found = as_linear(self.view, value)
        if found is not None:
            for partial in self._match_inputs(pattern.inputs, found.inputs, bound, depth + 1):
                yield partial.with_step(found, found)  # so that its assumptions count

    def _match_rows(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """Match log_softmax(rows(logits, in_float32, scale, soft_cap, flat), dim) against logits in any layout.

        With `flat`, the rows may be flattened, but not arranged in another way.
        """
        rows, *dims = pattern.inputs
        found = rows_of(self.view, value) if value.op == pattern.op else None
        if found is None:
            return
        values = [self.view.const(True) if found.in_float32 else None, found.scale.factor, found.scale.soft_cap]
        if rows.inputs[4].op == PARAMETER:
            if found.flat is None:
                return
            values.append(self.view.const(True) if found.flat else None)
        parameters = [p for p in rows.inputs[1:] if p.op == PARAMETER]
        if any(v is not None for v in values[len(parameters) :]):
            return
        for parameter, captured in zip(parameters, values, strict=False):
            bound = bound if captured is None else bound.with_capture(str(parameter.data), captured)
        given = (*value.inputs[1:], found.linear)
        yield from self._match_inputs((*dims, rows.inputs[0]), given, bound, depth + 1)

    def _match_size(
        self, pattern: tuple[Value, int | None], found: tuple[Value, int | None] | None, bound: Bindings, depth: int
    ) -> Iterator[Bindings]:
        """Match a size: `x.size(0)` is the same as `x.shape[0]`, and `x.size()` the same as `x.shape`."""
        if found is not None and found[1] == pattern[1]:
            yield from self._match(pattern[0], found[0], bound, depth)

    def _match_view(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """Match a view to the same sizes, written as separate arguments or as one shape."""
        expected, actual = elements(pattern.inputs[1]), elements(value.inputs[1])
        for partial in self._match(pattern.inputs[0], value.inputs[0], bound, depth):
            if len(expected) == len(actual):
                yield from self._match_inputs(expected, actual, partial, depth)
            elif (
                len(expected) == 1 and size_query(expected[0]) is not None and (owner := whole_shape(self.view, actual))
            ):
                yield from self._match_size((expected[0].inputs[0], None), (owner, None), partial, depth)

    def _match_inputs(
        self, patterns: tuple[Value, ...], values: tuple[Value, ...], bound: Bindings, depth: int
    ) -> Iterator[Bindings]:
        if not patterns:
            yield bound
            return
        for partial in self._match(patterns[0], values[0], bound, depth):
            yield from self._match_inputs(patterns[1:], values[1:], partial, depth)

    def _match_in_any_order(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """Match a product or sum in any order: computed parts first, then constants and parameters."""
        shaped = [p for p in pattern.inputs if p.op not in (PARAMETER, CONST)]
        plain = [p for p in pattern.inputs if p.op in (CONST, PARAMETER)]
        yield from self._match_computed_parts(shaped, plain, list(value.inputs), value.op, bound, depth)

    def _match_computed_parts(
        self, shaped: list[Value], plain: list[Value], rest: list[Value], op: str, bound: Bindings, depth: int
    ) -> Iterator[Bindings]:
        if not shaped:
            yield from self._match_constants_and_parameters(plain, rest, op, bound)
            return
        for part in sorted(rest, key=lambda part: strip_casts(part).op != shaped[0].op):
            others = without(rest, (part,)) or []
            for partial in self._match(shaped[0], part, bound, depth):
                yield from self._match_computed_parts(shaped[1:], plain, others, op, partial, depth)

    def _match_constants_and_parameters(
        self, plain: list[Value], rest: list[Value], op: str, bound: Bindings
    ) -> Iterator[Bindings]:
        """Match constants and bound parameters. The last unbound parameter captures all that is left."""
        unbound = []
        for p in plain:
            known = bound.captures.get(str(p.data)) if p.op == PARAMETER else None
            if p.op == PARAMETER and known is None:
                unbound.append(p)
                continue
            left = self._remove(rest, p, known, op)
            if left is None:
                return
            rest = left
        yield from self._distribute(unbound, rest, op, bound)

    def _remove(self, rest: list[Value], p: Value, known: Value | None, op: str) -> list[Value] | None:
        """`rest` without the constant `p`, or without the value `known` of parameter `p`; None if that is missing."""
        if known is not None and literal(known) is None:
            return without(rest, _PARTS[op](known))
        if known is not None:
            return next((without(rest, (v,)) for v in rest if _is_number(v, known)), None)
        return next((without(rest, (v,)) for v in rest if v.op == CONST and _is_same_literal(v.data, p.data)), None)

    def _distribute(self, unbound: list[Value], rest: list[Value], op: str, bound: Bindings) -> Iterator[Bindings]:
        if len(unbound) == 1 and rest:
            joined = total(self.view, rest) if op == "add" else product(self.view, rest)
            yield bound.with_capture(str(unbound[0].data), joined if len(rest) > 1 else rest[0])
        elif not unbound and not rest:
            yield bound
        elif len(unbound) > 1:
            for part in rest:
                partial = bound.with_capture(str(unbound[0].data), part)
                yield from self._distribute(unbound[1:], without(rest, (part,)) or [], op, partial)

    def _bind(self, name: str, value: Value, bound: Bindings) -> Iterator[Bindings]:
        if name not in bound.captures:
            yield bound.with_capture(name, value)
        elif bound.captures[name] is value or strip_casts(bound.captures[name]) is strip_casts(value):
            yield bound
        elif _is_number(value, bound.captures[name]):
            yield bound

    def _without_casts(self, value: Value) -> Value:
        if value.op == PERMUTE and value.inputs[0].op == CAST:
            return self.view.permuted(strip_casts(value.inputs[0]), order_of(value))
        return strip_casts(value)


def _is_number(value: Value, known: Value) -> bool:
    """Whether both are literals of the same number: 2 and 2.0."""
    number, other = literal(value), literal(known)
    return number is not None and other is not None and math.isclose(number, other, rel_tol=1e-12)


def _casts_one_operand(view: View, step: Value) -> bool:
    """Whether only one operand of a product of scores is cast, as far as the graph shows."""
    if step.op != "matmul":
        return False
    left, right = (v.inputs[0] if v.op == PERMUTE else v for v in step.inputs)
    weighted = strip_casts(left).op in _WEIGHTS
    return not weighted and changes_dtype(view, left) != changes_dtype(view, right)


def _differs_in_arguments(pattern: Value, value: Value) -> bool:
    """Whether `value` is the operation of `pattern` with other constants, such as softmax over another dimension."""
    if value.op == PERMUTE and value.inputs[0].op == pattern.op:
        return True
    return pattern.op == value.op and any(
        p.op == CONST and not (v.op == CONST and _is_same_literal(v.data, p.data))
        for p, v in zip(pattern.inputs, value.inputs, strict=False)
    )


def _is_same_literal(found: object, expected: object) -> bool:
    """Whether two literals are equal up to `_DIGITS`. True is not equal to 1."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, (int, float)) and isinstance(expected, (int, float)):
        return is_close(found, expected, _DIGITS)
    return type(found) is type(expected) and found == expected
