"""The canonical view of a program's graph, in which each meaning has one form. The graph itself is not edited.

`View.of(value)` is the canonical value of a value of the program. `View.originals(canonical)` are the values of the
program that compute a canonical value. So a capture of a rule can be named, or rebuilt from parts that have names.
Program values and canonical values are in two separate graphs.

This file maps values. The simplifications are in the other files of this folder. It knows no rules, files or modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeVar

from autofuse.ir import layout
from autofuse.ir.facts import Facts
from autofuse.ir.graph import (
    ATTRIBUTE,
    CHOICE,
    CONST,
    IN_WITH_BLOCK,
    IS_NONE,
    ITEM,
    NOT,
    OPAQUE,
    PARAMETER,
    SLICE,
    TUPLE,
    Graph,
    Value,
)
from autofuse.ir.numbers import is_small
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import OPS, SAME_SIZES

PERMUTE = "permute"  # data: a tail permutation, which reorders the last dimensions and counts them from the end
CAST = "cast"  # a change of floating dtype, which only rounds
KEEP = "keep"  # inputs: scores, boolean mask, the fill where it is False
LEAF = "leaf"  # data: a value of the program that the canonical form treats as unknown

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., object])
Rewrite = Callable[..., "Value | None"]
REWRITES: dict[str, Rewrite] = {}

_SAME_RANK = SAME_SIZES | {PERMUTE, CAST, KEEP, "pow", "activation"}
_STRUCTURE = (TUPLE, CHOICE, IS_NONE, NOT, SLICE, ITEM)
# operation -> the position of the input whose dtype and device its result has
_LIKE = {PERMUTE: 0, KEEP: 0, "mul": 0, "add": 0, "matmul": 0, "softmax": 0, "sink_softmax": 0, CHOICE: 1}


def rewrites(*ops: str) -> Callable[[Rewrite], Rewrite]:
    """Register a function that simplifies the operations `ops`.

    The function takes the view and the canonical inputs. It returns the canonical value, or None to keep the operation.
    If several functions are registered for an operation, the first result that is not None counts.
    """

    def register(rewrite: Rewrite) -> Rewrite:
        REWRITES.update({op: _first_of(REWRITES[op], rewrite) if op in REWRITES else rewrite for op in ops})
        return rewrite

    return register


def memoize(compute: _Function) -> _Function:
    """Cache the results of a function `(view, value, ...)` in the view. Shared values would be visited many times."""

    @wraps(compute)
    def cached(view: View, *values: Hashable) -> object:
        key = (compute, *values)
        if key not in view.memo:
            spend()
            view.memo[key] = compute(view, *values)
        return view.memo[key]

    return cached  # type: ignore[return-value]


def _first_of(first: Rewrite, second: Rewrite) -> Rewrite:
    def rewrite(view: View, *inputs: Value) -> Value | None:
        found = first(view, *inputs)
        return second(view, *inputs) if found is None else found

    return rewrite


@dataclass
class View:
    """The canonical form of one program, built on demand.

    Attributes:
        facts: what is known about the values of the program.
        assumed: canonical value -> the assumption under which it is right.
        differences: variances that the program computes as E[x^2] - E[x]^2.
        memo: cached answers of functions that are decorated with `memoize`.
    """

    facts: Facts
    assumed: dict[Value, str] = field(default_factory=dict)
    differences: set[Value] = field(default_factory=set)
    memo: dict[Hashable, object] = field(default_factory=dict)
    _graph: Graph = field(default_factory=Graph)
    _canonical: dict[Value, Value] = field(default_factory=dict)
    _originals: dict[Value, list[Value]] = field(default_factory=dict)
    _numbers: dict[Value, tuple[bool | None, int]] = field(default_factory=dict)
    _ranks: dict[Value, tuple[int | None, int]] = field(default_factory=dict)
    _dtype_sources: dict[Value, Value] = field(default_factory=dict)

    def of(self, v: Value) -> Value:
        """The canonical form of a value of the program."""
        found = self._canonical.get(v)
        if found is None:
            spend()
            found = self._canonical[v] = self._canonicalize(v)
            self._originals.setdefault(found, []).append(v)
        return found

    def originals(self, canonical: Value) -> list[Value]:
        """The values of the program that compute `canonical`, in program order; empty if the view introduced it."""
        return self._originals.get(canonical, [])

    def make(self, op: str, *inputs: Value, data: Hashable = None) -> Value:
        """The canonical value of an operation on canonical inputs, simplified."""
        rewrite = REWRITES.get(op) if data is None else None
        found = rewrite(self, *inputs) if rewrite else None
        return found if found is not None else self.plain(op, *inputs, data=data)

    def plain(self, op: str, *inputs: Value, data: Hashable = None) -> Value:
        """A canonical value that is not simplified further."""
        return self._graph.value(op, *inputs, data=data)

    def fresh(self, op: str, *inputs: Value) -> Value:
        """A new canonical value that is equal to no other: two random draws are two values."""
        return self._graph.fresh(op, *inputs)

    def const(self, data: Hashable) -> Value:
        """The canonical literal of a number, a text, None or another hashable constant."""
        return self._graph.const(data)

    def replace_step(self, step: Value, made: Value) -> Value:
        """Return `made`, and count the originals of `step` as originals of it.

        Use it if the fused code no longer computes `step`. Other uses of `step` then decline the site.
        """
        self._originals.setdefault(made, []).extend(self.originals(step))
        return made

    def with_assumption(self, made: Value, why: str) -> Value:
        """A copy of `made` that is right only under the assumption `why`; `made` itself if `why` is empty."""
        if not why:
            return made
        own = self._graph.fresh(made.op, *made.inputs, data=made.data)
        self.assumed[own] = why
        return own

    def assumption(self, v: Value) -> str:
        """The assumption under which canonical `v` is equal to its originals; "" if there is none."""
        return self.assumed.get(v, "")

    def permuted(self, x: Value, order: layout.Tail) -> Value:
        """`x` with its last dimensions permuted. Successive permutations become one."""
        if x.op == PERMUTE:
            return self.permuted(x.inputs[0], layout.compose(order_of(x), order))
        return self.plain(PERMUTE, x, data=order) if order else x

    def number(self, v: Value) -> bool | None:
        """Whether canonical `v` is a Python number: True, False (a tensor), or None if unknown."""
        return self._cached(self._numbers, self._infer_number, v)

    def _infer_number(self, v: Value) -> bool | None:
        for o in self.originals(v):
            if (answer := self.facts.number(o)) is not None:
                return answer
        if v.op == CONST:
            return isinstance(v.data, (int, float)) and not isinstance(v.data, bool)
        if v.op in ("mul", "add", "reciprocal", "pow", "number_sqrt", "number_pow"):
            answers = {self.number(i) for i in v.inputs}
            return True if answers == {True} else False if False in answers else None
        if v.op == CHOICE:
            answers = {self.number(i) for i in v.inputs[1:]}
            return answers.pop() if len(answers) == 1 else None
        return None

    def rank(self, v: Value) -> int | None:
        """The number of dimensions of canonical `v`; None if unknown."""
        return self._cached(self._ranks, self._infer_rank, v)

    def _infer_rank(self, v: Value) -> int | None:
        for o in self.originals(v):
            if (found := self.facts.rank(o)) is not None:
                return found
        if v.op == LEAF:
            return self.facts.rank(v.data)  # type: ignore[arg-type]
        if v.op in ("mul", "add"):
            return self._broadcast_rank(v)
        return self.rank(v.inputs[0]) if v.op in _SAME_RANK else None

    def _cached(
        self, answers: dict[Value, tuple[_T | None, int]], compute: Callable[[Value], _T | None], v: Value
    ) -> _T | None:
        """The cached answer for `v`. An unknown answer is computed again if `v` has more originals than before."""
        originals = len(self.originals(v))
        found = answers.get(v)
        if found is None or found[0] is None and found[1] != originals:
            spend()
            found = answers[v] = compute(v), originals
        return found[0]

    def _broadcast_rank(self, v: Value) -> int | None:
        ranks = [0 if self.number(i) else self.rank(i) for i in v.inputs]
        known = [r for r in ranks if r is not None]
        return max(known) if len(known) == len(ranks) else None

    def dtype_source(self, v: Value) -> Value:
        """The earliest value that is known to have the dtype and device of `v`."""
        passed = []
        while v.op in _LIKE and v not in self._dtype_sources:
            passed.append(v)
            v = v.inputs[_LIKE[v.op]]
        found = self._dtype_sources.get(v, v)
        self._dtype_sources.update(dict.fromkeys(passed, found))
        return found

    def _canonicalize(self, v: Value) -> Value:
        if v.op == CONST:
            return self.const(v.data)
        if v.op == PARAMETER:
            return self.plain(PARAMETER, data=v.data)
        if v.op == ATTRIBUTE:
            return self._attribute(v)
        if v.op in _STRUCTURE:
            inputs = tuple(map(self.of, v.inputs))
            return self._separate_reads(v, self.make(v.op, *inputs, data=v.data if v.op == TUPLE else None))
        if v.op not in OPS and v.op != "identity":
            return self.plain(LEAF, data=v)
        inputs = tuple(map(self.of, v.inputs))
        made = self.make(v.op, *inputs)
        if v.op in OPS and OPS[v.op].effect == "random" and made.op == v.op:
            return self.fresh(v.op, *inputs)
        return made

    def _attribute(self, v: Value) -> Value:
        owner = self.of(v.inputs[0])
        if (
            v.data in _CONSTANTS
            and owner.op == LEAF
            and getattr(owner.data, "data", None) in ("math", "torch", "numpy")
        ):
            return self.const(_CONSTANTS[str(v.data)])
        if v.data in ("dtype", "device"):
            return self._separate_reads(v, self.plain(ATTRIBUTE, self.dtype_source(owner), data=v.data))
        if v.data == "T" and self.rank(owner) == 2:
            return self.permuted(owner, layout.SWAP)
        return self._separate_reads(v, self.plain(ATTRIBUTE, owner, data=v.data))

    def _separate_reads(self, v: Value, made: Value) -> Value:
        """`made`; a new value if `made` already stands for a read of the same memory at another time."""
        if v.op in (ATTRIBUTE, ITEM) and any(
            o is not v and o.op == v.op and o.data == v.data and o.inputs == v.inputs for o in self.originals(made)
        ):
            return self._graph.fresh(made.op, *made.inputs, data=made.data)
        return made


_CONSTANTS = {"pi": math.pi, "inf": math.inf, "Inf": math.inf, "infty": math.inf, "e": math.e}


def order_of(permuted: Value) -> layout.Tail:
    """The permutation of a PERMUTE value."""
    assert isinstance(permuted.data, tuple)
    return permuted.data


def literal(v: Value) -> float | None:
    """The number of the literal `v`; None if `v` is not a literal, or if the number is too large for a float."""
    if v.op != CONST or not isinstance(v.data, (int, float)) or isinstance(v.data, bool):
        return None
    return v.data if is_small(v.data) else None


def through_blocks(view: View, v: Value) -> Value:
    """The value that a `with` block computes, if `v` is that value after the block; otherwise `v`.

    The block may compute it without gradients, so it may not be replaced. Only its numbers are known.
    """
    while v.op == LEAF and isinstance(v.data, Value) and v.data.op == OPAQUE:
        inside = v.data.inputs
        if v.data.data != IN_WITH_BLOCK or len(inside) != 1:
            break
        v = view.of(inside[0])
    return v


def strip_casts(v: Value) -> Value:
    """`v` before its casts."""
    while v.op == CAST:
        v = v.inputs[0]
    return v
