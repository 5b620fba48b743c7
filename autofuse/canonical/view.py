"""One form per meaning: a view of a program's graph, never an edit of it.

`View.of(value)` is the canonical value; `View.originals(canonical)` are the values of the program that already compute
it, so that whatever a rule captures can be named, or rebuilt from parts that can. Program values and canonical values
live in two graphs. Knows how values are mapped and simplified; the simplifications themselves stand in the other files
of this folder. Knows nothing of rules, files or modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeVar

from autofuse.ir import layout
from autofuse.ir.facts import Facts
from autofuse.ir.graph import ATTRIBUTE, CHOICE, CONST, IS_NONE, ITEM, NOT, PARAMETER, SLICE, TUPLE, Graph, Value
from autofuse.ir.numbers import is_small
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import OPS, SAME_SIZES

PERMUTE = "permute"  # data: a tail permutation
CAST = "cast"  # a change of floating dtype: rounding only
KEEP = "keep"  # inputs: scores, what is kept, the fill of what is not
LEAF = "leaf"  # data: a program value that the canonical form does not look into

_T = TypeVar("_T")
_Asked = TypeVar("_Asked", bound=Callable[..., object])
Rewrite = Callable[..., "Value | None"]
REWRITES: dict[str, Rewrite] = {}

_SAME_RANK = SAME_SIZES | {PERMUTE, CAST, KEEP, "pow", "activation"}
_STRUCTURE = (TUPLE, CHOICE, IS_NONE, NOT, SLICE, ITEM)
# op -> the input whose dtype and device its result has
_LIKE = {PERMUTE: 0, KEEP: 0, "mul": 0, "add": 0, "matmul": 0, "softmax": 0, "sink_softmax": 0, CHOICE: 1}


def rewrites(*ops: str) -> Callable[[Rewrite], Rewrite]:
    """Register how `ops` of canonical inputs become canonical: the result, or None where they stay as they are.

    An operation may be several files' concern: the first of them that has a result gives it.
    """

    def register(rewrite: Rewrite) -> Rewrite:
        REWRITES.update({op: _first_of(REWRITES[op], rewrite) if op in REWRITES else rewrite for op in ops})
        return rewrite

    return register


def remembered(ask: _Asked) -> _Asked:
    """Let what a function `(view, value, ...)` says of a value be asked once: values that are shared are met often."""

    @wraps(ask)
    def asked(view: View, *about: Hashable) -> object:
        key = (ask, *about)
        if key not in view.memo:
            spend()
            view.memo[key] = ask(view, *about)
        return view.memo[key]

    return asked  # type: ignore[return-value]


def _first_of(first: Rewrite, second: Rewrite) -> Rewrite:
    def rewrite(view: View, *inputs: Value) -> Value | None:
        found = first(view, *inputs)
        return second(view, *inputs) if found is None else found

    return rewrite


@dataclass
class View:
    """The canonical form of one program, built as it is asked for."""

    facts: Facts
    assumed: dict[Value, str] = field(default_factory=dict)  # what has to hold for a canonical value to be right
    differences: set[Value] = field(default_factory=set)  # variances that the program writes as E[x^2] - E[x]^2
    memo: dict[Hashable, object] = field(default_factory=dict)  # what was found out about canonical values
    _graph: Graph = field(default_factory=Graph)
    _canonical: dict[Value, Value] = field(default_factory=dict)
    _originals: dict[Value, list[Value]] = field(default_factory=dict)
    _numbers: dict[Value, tuple[bool | None, int]] = field(default_factory=dict)
    _ranks: dict[Value, tuple[int | None, int]] = field(default_factory=dict)
    _likes: dict[Value, Value] = field(default_factory=dict)

    def of(self, v: Value) -> Value:
        """The canonical form of a value of the program."""
        found = self._canonical.get(v)
        if found is None:
            spend()
            found = self._canonical[v] = self._made(v)
            self._originals.setdefault(found, []).append(v)
        return found

    def originals(self, canonical: Value) -> list[Value]:
        """The program's own values that compute `canonical`, in program order; none if the view introduced it."""
        return self._originals.get(canonical, [])

    def make(self, op: str, *inputs: Value, data: Hashable = None) -> Value:
        """The canonical value of an operation on canonical inputs."""
        rewrite = REWRITES.get(op) if data is None else None
        found = rewrite(self, *inputs) if rewrite else None
        return found if found is not None else self.plain(op, *inputs, data=data)

    def plain(self, op: str, *inputs: Value, data: Hashable = None) -> Value:
        """A canonical value that is not simplified further."""
        return self._graph.value(op, *inputs, data=data)

    def fresh(self, op: str, *inputs: Value) -> Value:
        """A canonical value that equals no other: two random draws are never one."""
        return self._graph.fresh(op, *inputs)

    def const(self, data: Hashable) -> Value:
        return self._graph.const(data)

    def in_place_of(self, step: Value, made: Value) -> Value:
        """`made`, for which `step` is done no more: whoever else uses `step` keeps it from going."""
        self._originals.setdefault(made, []).extend(self.originals(step))
        return made

    def assuming(self, made: Value, why: str) -> Value:
        """`made` as a value of its own, which is canonical only if `why`; itself where there is nothing to assume."""
        if not why:
            return made
        own = self._graph.fresh(made.op, *made.inputs, data=made.data)
        self.assumed[own] = why
        return own

    def assumption(self, v: Value) -> str:
        """What was assumed for canonical `v` to stand for its originals, "" if nothing."""
        return self.assumed.get(v, "")

    def permuted(self, x: Value, order: layout.Tail) -> Value:
        """`x` with its last dimensions reordered; permutations compose and cancel."""
        if x.op == PERMUTE:
            return self.permuted(x.inputs[0], layout.compose(order_of(x), order))
        return self.plain(PERMUTE, x, data=order) if order else x

    def number(self, v: Value) -> bool | None:
        """Whether canonical `v` is a Python number: True, False (a tensor), or None where it is not known."""
        return self._remembered(self._numbers, self._number, v)

    def _number(self, v: Value) -> bool | None:
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
        """How many dimensions canonical `v` has, if known."""
        return self._remembered(self._ranks, self._rank, v)

    def _rank(self, v: Value) -> int | None:
        for o in self.originals(v):
            if (found := self.facts.rank(o)) is not None:
                return found
        if v.op == LEAF:
            return self.facts.rank(v.data)  # type: ignore[arg-type]
        if v.op in ("mul", "add"):
            return self._broadcast_rank(v)
        return self.rank(v.inputs[0]) if v.op in _SAME_RANK else None

    def _remembered(
        self, answers: dict[Value, tuple[_T | None, int]], ask: Callable[[Value], _T | None], v: Value
    ) -> _T | None:
        """What is known of `v`; what is not is asked again once another value of the program is found to be `v`."""
        originals = len(self.originals(v))
        found = answers.get(v)
        if found is None or found[0] is None and found[1] != originals:
            spend()
            found = answers[v] = ask(v), originals
        return found[0]

    def _broadcast_rank(self, v: Value) -> int | None:
        ranks = [0 if self.number(i) else self.rank(i) for i in v.inputs]
        known = [r for r in ranks if r is not None]
        return max(known) if len(known) == len(ranks) else None

    def like(self, v: Value) -> Value:
        """The earliest value with the dtype and device of `v`."""
        passed = []
        while v.op in _LIKE and v not in self._likes:
            passed.append(v)
            v = v.inputs[_LIKE[v.op]]
        found = self._likes.get(v, v)
        self._likes.update(dict.fromkeys(passed, found))
        return found

    def _made(self, v: Value) -> Value:
        if v.op == CONST:
            return self.const(v.data)
        if v.op == PARAMETER:
            return self.plain(PARAMETER, data=v.data)
        if v.op == ATTRIBUTE:
            return self._attribute(v)
        if v.op in _STRUCTURE:
            inputs = tuple(map(self.of, v.inputs))
            return self._distinct(v, self.make(v.op, *inputs, data=v.data if v.op == TUPLE else None))
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
            return self._distinct(v, self.plain(ATTRIBUTE, self.like(owner), data=v.data))
        if v.data == "T" and self.rank(owner) == 2:
            return self.permuted(owner, layout.SWAP)
        return self._distinct(v, self.plain(ATTRIBUTE, owner, data=v.data))

    def _distinct(self, v: Value, made: Value) -> Value:
        """`made`, unless it already stands for the same read of memory at another time."""
        if v.op in (ATTRIBUTE, ITEM) and any(
            o is not v and o.op == v.op and o.data == v.data and o.inputs == v.inputs for o in self.originals(made)
        ):
            return self._graph.fresh(made.op, *made.inputs, data=made.data)
        return made


_CONSTANTS = {"pi": math.pi, "inf": math.inf, "Inf": math.inf, "infty": math.inf, "e": math.e}


def order_of(permuted: Value) -> layout.Tail:
    """The permutation of a PERMUTE."""
    assert isinstance(permuted.data, tuple)
    return permuted.data


def literal(v: Value) -> float | None:
    """The number that `v` is, if the text says so."""
    if v.op != CONST or not isinstance(v.data, (int, float)) or isinstance(v.data, bool):
        return None
    return v.data if is_small(v.data) else None


def bare(v: Value) -> Value:
    """`v` before any change of floating dtype."""
    while v.op == CAST:
        v = v.inputs[0]
    return v
