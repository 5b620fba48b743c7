"""Finds a rule's `before` in a canonical graph, and tells how near it came.

A pattern is itself a canonical value, whose parameters bind what they meet. Products and sums match in any order, and a
parameter in one takes all that is left over. Knows the shape of patterns; knows nothing of whether a match may be acted
on (legality.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from autofuse.canonical import CAST, PERMUTE, View, bare, literal
from autofuse.canonical.arithmetic import factors_of, product, terms_of, total, without
from autofuse.canonical.recognise.class_rows import rows_of
from autofuse.canonical.recognise.precision import (
    changes_dtype,
    known_dtypes,
    known_to_keep_dtype,
    named_half,
    names_dtype,
)
from autofuse.canonical.recognise.projections import as_linear
from autofuse.canonical.shapes import elements
from autofuse.canonical.sizes import asked, whole_shape
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
_TURNED_ROUND = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_PASSES_DTYPE_ON = frozenset({"softmax"})  # their result has the dtype of what they are given
_WEIGHTS = frozenset({"softmax", "sink_softmax", "dropout"})  # times the values, whose dtype they take on
_NORMS = frozenset({"layer_norm", "rms_norm"})  # they compute in float32 whatever they are given
_DIGITS = 1e-5  # people write 0.7978845608 for sqrt(2 / pi)


@dataclass
class Matcher:
    """Matches one pattern in one view, remembering the nearest miss."""

    pattern: Pattern
    view: View
    miss: Miss = field(default_factory=lambda: Miss(0))
    restored: Value | None = None  # of the match that is under way; see matches()
    cast: Value | None = None

    def matches(self, value: Value, restored: Value | None = None, cast: Value | None = None) -> Iterator[Bindings]:
        """Every way in which `value` is the pattern. Optional parameters that the code leaves out are not bound.

        Code that computes in float32 and casts back inside the match is matched on what it cast: the fused operation
        keeps its own precision inside. `restored`: `value` is cast right after to the dtype of that, which counts only
        if that is what was cast before. `cast`: what the program casts `value` to right after, where that
        counts only as far as the front end knows its dtype.
        """
        self.restored, self.cast = restored, cast
        for found in self._match(self.pattern.root, value, Bindings(), 0):
            operands = [n for n in found.captures if not self._stays_cast(n)]
            if cast is not None and found.widened is None:
                continue
            if restored is not None and not self._restores(found, operands, restored):
                continue
            if not found.casts and restored is None:
                yield found
                continue
            passes = restored is None and self.pattern.root.op in _PASSES_DTYPE_ON
            if passes and not known_to_keep_dtype(self.view, value, found.captures.values()):
                continue  # the program's result has the dtype that was cast to
            if any(_is_mixed(self.view, step) for step in found.steps.values()):
                if restored is None and self._share_a_dtype(found, operands):
                    yield found  # as they stand, casts and all
                continue
            if restored is None and self._names_dtype(found):
                continue  # the program's result has that dtype, and the operands need not
            captures = {n: self._uncast(v) if n in operands else v for n, v in found.captures.items()}
            yield Bindings(captures, found.steps, found.notes, found.mask, found.casts)

    def _share_a_dtype(self, found: Bindings, operands: list[str]) -> bool:
        """Whether the front end knows that all operands that are tensors have one dtype, as they stand."""
        tensors = [found.captures[n] for n in operands if not self.view.number(found.captures[n])]
        dtypes = [known_dtypes(self.view, v) for v in tensors]
        return all(len(d) == 1 for d in dtypes) and len(set().union(*dtypes)) == 1

    def _stays_cast(self, name: str) -> bool:
        """A mask that is cast to float is another mask, and the sum of what is cast has more digits."""
        return self.pattern.may_be_none(name) or name in self.pattern.masks or name in self.pattern.summands

    def _casts_back(self, before: Bindings, after: Bindings) -> bool:
        """Whether a cast that was crossed between the two gives back what another one, further in, had changed.

        A lone cast of what was never cast gives a dtype that the operands do not have. In a product with the values
        it can but be theirs.
        """
        crossed = after.casts > before.casts or after.widened is not before.widened
        if self.pattern.root.op in ("matmul", *_PASSES_DTYPE_ON) or crossed:
            return True  # for a softmax, matches() asks what its result is cast to
        inside = [v for n, v in after.captures.items() if n not in before.captures]
        return any(v.op == CAST for v in inside or after.captures.values())

    def _rounds(self, cast: Value, found: Bindings) -> bool:
        """Whether a cast is to half precision by name, and nobody knows that this is the operands' own."""
        halves = {named_half(o) for o in self.view.originals(cast)} - {None}
        return bool(halves) and not any(known_dtypes(self.view, bare(v)) >= halves for v in found.captures.values())

    def _names_dtype(self, found: Bindings) -> bool:
        """Whether what a last product weighs is cast to a dtype by name: `weights @ value.float()`."""
        last = self.pattern.root.inputs[-1] if self.pattern.root.op == "matmul" else None
        value = found.captures.get(str(last.data)) if last is not None and last.op == PARAMETER else None
        if value is None:
            return False
        cast = value.inputs[0] if value.op == PERMUTE else value
        return cast.op == CAST and any(names_dtype(self.view, o) for o in self.view.originals(cast))

    def _restores(self, found: Bindings, operands: list[str], restored: Value) -> bool:
        """Whether the dtype of `restored` is what an operand had before it was cast."""
        if found.widened is not None and self.view.like(found.widened) is self.view.like(restored):
            return True
        if any(found.captures[n].op == CAST and bare(found.captures[n]) is restored for n in operands):
            return True
        if not found.casts or self.pattern.root.op not in _PASSES_DTYPE_ON:
            return False
        like = self.view.like(restored)
        return any(
            self.view.like(bare(found.captures[n])) is like for n in operands if not self.view.number(found.captures[n])
        )

    def _match(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        spend()
        if pattern.op == PARAMETER:
            yield from self._bind(str(pattern.data), value, bound)
            return
        if pattern.op == CONST:
            if value.op == CONST and _same(value.data, pattern.data):
                yield bound
            return
        if pattern.op == PERMUTE:
            inverse = layout.inverse(order_of(pattern))
            yield from self._match(pattern.inputs[0], self.view.permuted(value, inverse), bound, depth)
            return
        crossed, cast = depth > 0 and value.op == CAST, value
        if value.op == CAST:
            value, bound = bare(value), bound.across_cast() if depth else bound
        found = False
        for result in self._match_step(pattern, value, bound, depth):
            found = True
            if crossed and not self._casts_back(bound, result):
                continue
            if crossed and pattern.op not in _WEIGHTS and self._rounds(cast, result):
                continue
            yield result.with_step(pattern, value)
        inner = self.pattern.optional(pattern)
        if inner is not None:
            yield from self._match(inner, value, bound, depth)
        elif not found and depth > self.miss.depth and _differs_in_arguments(pattern, value):
            self.miss = Miss(depth, pattern, value)

    def rest_matches(self, miss: Miss) -> bool:
        """Whether what a step computes of is the pattern's, so that its arguments alone are others."""
        if miss.step is None or miss.found is None:
            return False
        plain, found = bare(miss.found), miss.found
        if plain.op == PERMUTE:  # over a dimension that was turned to the end, and back
            found = bare(plain.inputs[0])
        pairs = [(p, v) for p, v in zip(miss.step.inputs, found.inputs, strict=False) if p.op != CONST]
        if plain.op == PERMUTE:
            pairs = [(p, self._turned(v, order_of(plain))) for p, v in pairs]
        return all(any(True for _ in self._match(p, v, Bindings(), 1)) for p, v in pairs)

    def _turned(self, v: Value, order: layout.Tail) -> Value:
        """`v` with its last dimensions reordered: a product of matrices is the product of the others' transposes."""
        if v.op == "matmul" and order == (-1, -2):
            return self.view.plain("matmul", *(self.view.permuted(i, order) for i in reversed(v.inputs)))
        if v.op in OPS and OPS[v.op].keeps_sizes and v.op not in _WEIGHTS:
            inputs = (i if self.view.number(i) else self._turned(i, order) for i in v.inputs)
            return self.view.plain(v.op, *inputs, data=v.data)
        return self.view.permuted(v, order)

    def _match_step(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        if pattern.op == "masked":
            yield from self._match_masked(pattern, value, bound, depth)
        elif pattern.op == "log_softmax" and pattern.inputs[0].op == "rows":
            yield from self._match_rows(pattern, value, bound, depth)
        elif pattern.op == "linear" != value.op:
            yield from self._match_linear(pattern, value, bound, depth)
        elif (size := asked(pattern)) is not None:
            yield from self._match_size(size, asked(value), bound, depth)
        elif pattern.op == "view" == value.op:
            yield from self._match_view(pattern, value, bound, depth + 1)
        elif pattern.op in _PARTS and pattern.op == value.op:
            yield from self._match_parts(pattern, value, bound, depth + 1)
        elif pattern.op in _NORMS and pattern.op == value.op and pattern.inputs[0].op == "add":
            yield from self._match_norm(pattern, value, bound, depth + 1)
        elif pattern.op == value.op and pattern.data == value.data and len(pattern.inputs) == len(value.inputs):
            yield from self._match_inputs(pattern.inputs, value.inputs, bound, depth + 1)
            if pattern.op in OPS and OPS[pattern.op].commutes:
                yield from self._match_inputs(pattern.inputs, value.inputs[::-1], bound, depth + 1)
        elif _TURNED_ROUND.get(pattern.op) == value.op:  # 0 < x is x > 0
            yield from self._match_inputs(pattern.inputs, value.inputs[::-1], bound, depth + 1)
        elif pattern.op == "mul" and value.op == CONST:
            yield from self._match_multiple(pattern, value, bound)

    def _match_multiple(self, pattern: Value, value: Value, bound: Bindings) -> Iterator[Bindings]:
        """`delta * 0.5` where delta is a literal of the code, so that the product is one too."""
        whole, known = literal(value), [n for f in pattern.inputs if (n := literal(f)) is not None]
        parameters = [f for f in pattern.inputs if f.op == PARAMETER]
        if whole is None or len(known) != 1 or len(parameters) != 1 or not known[0]:
            return
        yield from self._bind(str(parameters[0].data), self.view.const(whole / known[0]), bound)

    def _match_masked(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """masked(scores, mask, fill, is_causal, kept): any masking, read as one."""
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
        """The norm of a sum. Where the sum is cast first, the result has to be cast back further out."""
        of, *rest = value.inputs
        if of.op == CAST:
            if not bound.casts and not self._gives_back(bare(of)):
                return
            of, bound = bare(of), bound.across_widening(bare(of))
        yield from self._match_inputs(pattern.inputs, (of, *rest), bound, depth)

    def _gives_back(self, v: Value) -> bool:
        """Whether the whole match is cast to the dtype of `v`, as far as the code or the front end says."""
        if self.restored is not None:
            return self.view.like(self.restored) is self.view.like(v)
        known = known_dtypes(self.view, v)
        return self.cast is not None and len(known) == 1 and known == known_dtypes(self.view, self.cast)

    def _match_linear(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """linear(x, weight, bias): a product with a matrix of the module's own, read as one."""
        found = as_linear(self.view, value)
        if found is not None:
            for partial in self._match_inputs(pattern.inputs, found.inputs, bound, depth + 1):
                yield partial.with_step(found, found)  # what is assumed of it counts

    def _match_rows(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """log_softmax(rows(logits, in_float32), dim): logits in any arrangement, read as one."""
        rows, dim = pattern.inputs
        found = rows_of(self.view, value) if value.op == "log_softmax" else None
        if found is None:
            return
        if found.in_float32:
            bound = bound.with_capture(str(rows.inputs[1].data), self.view.const(True))
        yield from self._match_inputs((dim, rows.inputs[0]), (value.inputs[1], found.linear), bound, depth + 1)

    def _match_size(
        self, pattern: tuple[Value, int | None], found: tuple[Value, int | None] | None, bound: Bindings, depth: int
    ) -> Iterator[Bindings]:
        """`x.size(0)` and `x.shape[0]` are one, and so are `x.size()` and `x.shape`."""
        if found is not None and found[1] == pattern[1]:
            yield from self._match(pattern[0], found[0], bound, depth)

    def _match_view(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """A view of the same sizes; those of a whole shape may be named one by one, or at once."""
        wanted, given = elements(pattern.inputs[1]), elements(value.inputs[1])
        for partial in self._match(pattern.inputs[0], value.inputs[0], bound, depth):
            if len(wanted) == len(given):
                yield from self._match_inputs(wanted, given, partial, depth)
            elif len(wanted) == 1 and asked(wanted[0]) is not None and (owner := whole_shape(self.view, given)):
                yield from self._match_size((wanted[0].inputs[0], None), (owner, None), partial, depth)

    def _match_inputs(
        self, patterns: tuple[Value, ...], values: tuple[Value, ...], bound: Bindings, depth: int
    ) -> Iterator[Bindings]:
        if not patterns:
            yield bound
            return
        for partial in self._match(patterns[0], values[0], bound, depth):
            yield from self._match_inputs(patterns[1:], values[1:], partial, depth)

    def _match_parts(self, pattern: Value, value: Value, bound: Bindings, depth: int) -> Iterator[Bindings]:
        """The parts of a product or a sum, in any order: those with a shape first, parameters take what is left."""
        shaped = [p for p in pattern.inputs if p.op not in (PARAMETER, CONST)]
        plain = [p for p in pattern.inputs if p.op in (CONST, PARAMETER)]
        yield from self._match_shaped(shaped, plain, list(value.inputs), value.op, bound, depth)

    def _match_shaped(
        self, shaped: list[Value], plain: list[Value], rest: list[Value], op: str, bound: Bindings, depth: int
    ) -> Iterator[Bindings]:
        if not shaped:
            yield from self._match_plain(plain, rest, op, bound)
            return
        for part in sorted(rest, key=lambda part: bare(part).op != shaped[0].op):
            others = without(rest, (part,)) or []
            for partial in self._match(shaped[0], part, bound, depth):
                yield from self._match_shaped(shaped[1:], plain, others, op, partial, depth)

    def _match_plain(self, plain: list[Value], rest: list[Value], op: str, bound: Bindings) -> Iterator[Bindings]:
        """Constants and bound parameters take their own; of the unbound ones, the last takes all that is left."""
        unbound = []
        for p in plain:
            known = bound.captures.get(str(p.data)) if p.op == PARAMETER else None
            if p.op == PARAMETER and known is None:
                unbound.append(p)
                continue
            left = self._less(rest, p, known, op)
            if left is None:
                return
            rest = left
        yield from self._share(unbound, rest, op, bound)

    def _less(self, rest: list[Value], p: Value, known: Value | None, op: str) -> list[Value] | None:
        if known is not None and literal(known) is None:
            return without(rest, _PARTS[op](known))
        if known is not None:
            return next((without(rest, (v,)) for v in rest if _is_number(v, known)), None)
        return next((without(rest, (v,)) for v in rest if v.op == CONST and _same(v.data, p.data)), None)

    def _share(self, unbound: list[Value], rest: list[Value], op: str, bound: Bindings) -> Iterator[Bindings]:
        if len(unbound) == 1 and rest:
            joined = total(self.view, rest) if op == "add" else product(self.view, rest)
            yield bound.with_capture(str(unbound[0].data), joined if len(rest) > 1 else rest[0])
        elif not unbound and not rest:
            yield bound
        elif len(unbound) > 1:
            for part in rest:
                partial = bound.with_capture(str(unbound[0].data), part)
                yield from self._share(unbound[1:], without(rest, (part,)) or [], op, partial)

    def _bind(self, name: str, value: Value, bound: Bindings) -> Iterator[Bindings]:
        if name not in bound.captures:
            yield bound.with_capture(name, value)
        elif bound.captures[name] is value or bare(bound.captures[name]) is bare(value):
            yield bound
        elif _is_number(value, bound.captures[name]):
            yield bound

    def _uncast(self, value: Value) -> Value:
        if value.op == PERMUTE and value.inputs[0].op == CAST:
            return self.view.permuted(bare(value.inputs[0]), order_of(value))
        return bare(value)


def _is_number(value: Value, known: Value) -> bool:
    """Whether both are literals of one number: 2 and 2.0."""
    number, other = literal(value), literal(known)
    return number is not None and other is not None and math.isclose(number, other, rel_tol=1e-12)


def _is_mixed(view: View, step: Value) -> bool:
    """Whether one side of a product of scores is cast and the other is not, as far as can be seen."""
    if step.op != "matmul":
        return False
    left, right = (v.inputs[0] if v.op == PERMUTE else v for v in step.inputs)
    weighted = bare(left).op in _WEIGHTS
    return not weighted and changes_dtype(view, left) != changes_dtype(view, right)


def _differs_in_arguments(pattern: Value, value: Value) -> bool:
    """The right operation with another constant: softmax over another dimension, or over the last of what is turned."""
    if value.op == PERMUTE and value.inputs[0].op == pattern.op:
        return True
    return pattern.op == value.op and any(
        p.op == CONST and not (v.op == CONST and _same(v.data, p.data))
        for p, v in zip(pattern.inputs, value.inputs, strict=False)
    )


def _same(found: object, wanted: object) -> bool:
    """Literals are equal to the digits people write, and True is not 1."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, (int, float)) and isinstance(wanted, (int, float)):
        return is_close(found, wanted, _DIGITS)
    return type(found) is type(wanted) and found == wanted
