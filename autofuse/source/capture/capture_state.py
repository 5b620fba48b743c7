"""The state of reading one function: what names hold, what memory was written, what escapes.

The parts that read statements, expressions and calls build on it. Knows graphs and names; reads no syntax itself.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import replace

from autofuse.ir.facts import Facts, Known
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, ITEM, MODULE, OPAQUE, PARAMETER, SINK, TUPLE, Graph, Value
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import Reason, because
from autofuse.source.capture.bindings import Function, free_names
from autofuse.source.capture.captured import CapturedFunction, HelperText, Region, ValuePosition
from autofuse.source.capture.held_names import HeldNames, NameTable
from autofuse.source.capture.scope import ClassScope, FileScope

# Calls whose result is new memory, so that writing to it changes nothing else.
_ALLOCATES = frozenset("torch.empty torch.eye torch.cat torch.stack torch.concat .new_zeros .new_ones".split())
_PARTS = ("chunk", "split", "unbind")  # their items share no memory with each other
_AS_MANY_DIMENSIONS = frozenset("transpose mT permute contiguous to float double half bfloat16 detach".split())


class CaptureState(ABC):
    """What reading has found so far. `quiet`: the text being read is not this function's own (an inlined helper)."""

    def __init__(self, scope: FileScope, owner: ClassScope | None, out: CapturedFunction, quiet: bool = False) -> None:
        self.scope, self.owner, self.out, self.quiet = scope, owner, out, quiet
        self.graph: Graph = out.graph
        self.names = NameTable()
        self.frames: list[dict[str, Value]] = []  # variables of comprehensions and lambdas, innermost last
        self.local: frozenset[str] = frozenset()
        self.declared: set[str] = set()  # global or nonlocal here
        self.rebound_inside: set[str] = set()  # nonlocal in a nested function
        self.closed_over: set[str] = set()
        self.me: str | None = None
        self.given: dict[str, ast.expr] = {}  # parameters that are modules, and what makes them
        self.instance: Value | None = None  # what `me` stands for: the module, or a child that is read in its place
        self.abroad = False  # the text being read stands in another file
        self.entered: set[int] = set()  # calls of helpers and children that were read in their place
        self.statement: ast.stmt | None = None
        self.calling: ast.expr | None = None  # the call in this function's own text that is being read
        self.before = HeldNames(self.names, 0)
        self.region: Region = ()
        self.depth = 0  # branches around the statement
        self.horizon = 0  # the first serial of what is computed only where the statement runs too
        self.inlining: tuple[Function, ...] = ()
        self.only_called: frozenset[Function] = frozenset()  # nested functions that do no more than a helper does
        self.inner_functions: dict[Value, Function] = {}
        self.facts = Facts(out.known)
        self.evaluated: dict[int, Value] = {}  # expressions read ahead of their turn
        self._sharing: dict[Value, set[str]] = {}
        self._bases: dict[Value, frozenset[Value]] = {}

    @abstractmethod
    def value(self, node: ast.expr) -> Value: ...

    # Names.

    def hold(self, name: str, value: Value) -> None:
        """`name` holds `value` from now on."""
        if name in self.declared:
            self.sink(because(matches.VALUE_STORED, place="a global or nonlocal name"), value)
            self.forget("a global or nonlocal name is assigned")
            self.effect()
            return
        self.names.set(name, value)
        if name in self.closed_over:
            self.sink(because(matches.VALUE_READ_BY_FUNCTION), value)
        self._shares(name, value)

    def _shares(self, name: str, value: Value) -> None:
        bases = self.bases(value) | self.wholes(value)
        spend(len(bases))
        for base in bases:
            self._sharing.setdefault(base, set()).add(name)

    def place(self, value: Value, node: ast.expr, inlined: bool, inner: bool = False) -> None:
        """Remember that `node` computes `value`, or something on the way to it."""
        if not self.quiet and not self.frames and self.statement is not None:
            place = ValuePosition(
                node, self.statement, self.before, self.region, inlined, inner, len(self.out.forgotten)
            )
            self.out.places.setdefault(value, []).append(place)

    def place_in_helper(self, value: Value, node: ast.expr) -> None:
        """Remember that `node`, which always runs where a helper of this file is called, computes `value`."""
        plain = len(self.inlining) == 1 and not self.depth and not self.frames and not self.abroad
        own = self.instance is None or self.instance.op == PARAMETER
        if not plain or not own or self.statement is None or self.inlining[0] in self.only_called:
            return
        text = HelperText(
            node, self.inlining[0], self.names.snapshot(), self.statement, self.before, self.region,
            len(self.out.forgotten),
        )  # fmt: skip
        self.out.helper_texts.setdefault(value, []).append(text)

    def binds(self, *values: Value) -> None:
        """The statement binds these values."""
        if self.statement is not None and not self.quiet:
            self.out.assigned.setdefault(self.statement, []).extend(values)

    def effect(self) -> None:
        """The statement does something besides binding names."""
        if self.statement is not None and not self.quiet:
            self.out.effects.add(self.statement)

    # Facts.

    def know(self, value: Value, **facts: object) -> None:
        """Add to what is known of a value; what was known before stays."""
        known = self.out.known.get(value, Known())
        fresh = {k: v for k, v in facts.items() if getattr(known, k) is None}
        self.out.known[value] = replace(known, **fresh)  # type: ignore[arg-type]
        if any(fact is not None for fact in fresh.values()):
            self.facts.learned()
        if "rank" in fresh and value.op in _AS_MANY_DIMENSIONS:
            self.has_rank(value.inputs[0], fresh["rank"])  # type: ignore[arg-type]

    def has_rank(self, value: Value, rank: int) -> None:
        """The statement takes `value` only with `rank` dimensions: so it has them, unless it is used elsewhere too."""
        if value.serial >= self.horizon:
            self.know(value, rank=rank, number=False)

    def unknown(self, why: str, *inputs: Value) -> Value:
        """A value that nothing is known of, but what it depends on."""
        return self.graph.fresh(OPAQUE, *inputs, data=why)

    def some_of(self, why: str, values: list[Value]) -> Value:
        """Some one of `values`; a number if all of them are."""
        made = self.unknown(why, *values)
        if values and all(self.facts.number(v) for v in values):
            self.know(made, number=True)
        return made

    # Escapes.

    def sink(self, why: Reason, *values: Value) -> None:
        """`values` leave the function, or are looked at: `why` they must stay."""
        if values:
            made = self.graph.fresh(SINK, *values, data=why)
            if self.statement is not None:
                self.out.lines[made] = self.statement.lineno

    def nested(self, node: ast.AST) -> Value:
        """A function, lambda or class: what it reads escapes, for it may run at any time."""
        read = [v for name in sorted(free_names(node)) if (v := self._held(name)) is not None]
        self.sink(because(matches.VALUE_READ_BY_FUNCTION), *read)
        return self.unknown("a function or class", *read)

    def _held(self, name: str) -> Value | None:
        return next((f[name] for f in reversed(self.frames) if name in f), None) or self.names.get(name)

    # Memory.

    def forget(self, why: str) -> None:
        """Attributes read from here on may be other ones."""
        self.graph.forget(why)
        self.out.forgotten.append(len(self.graph.values))

    def write(self, target: Value, result: Value) -> None:
        """The memory of `target` is overwritten; whatever names it holds `result`, and what overlaps it is unknown."""
        bases, wholes = self.bases(target), self.wholes(target)
        for written in dict.fromkeys((target, *bases, *wholes)):
            self.graph.write(written, result)
        if not all(map(_owned, bases | wholes)):
            self.sink(because(matches.VALUE_WRITTEN_TO_MEMORY), result)
            self.effect()
        for name, held in self._overlapping(bases, wholes):
            # through the table: a nested function that reads the name has seen the value escape already
            now = result if held is target else self.unknown("shares memory with a write", held, result)
            self.names.set(name, now)
            self._shares(name, now)

    def written_inside(self, since: int) -> None:
        """A helper was read, and wrote what `graph.writes` tells from `since` on: names here may hold that memory."""
        for write in self.graph.writes[since:]:
            for name, held in self._overlapping(self.bases(write.target), self.wholes(write.target)):
                now = self.unknown("written by a helper", held, write.result)
                self.names.set(name, now)
                self._shares(name, now)

    def _overlapping(self, bases: frozenset[Value], wholes: frozenset[Value]) -> list[tuple[str, Value]]:
        """The names that hold memory of `bases`, or a part of it, and what they hold."""
        names = sorted({n for base in bases | wholes for n in self._sharing.get(base, ())})
        spend(len(names))
        held = [(n, v) for n in names if (v := self.names.get(n)) is not None and v.op != CONST]
        return [(n, v) for n, v in held if self.bases(v) & (bases | wholes) or self.wholes(v) & bases]

    def wholes(self, value: Value) -> frozenset[Value]:
        """The values that `value` is a part of, split off by chunk, split or unbind."""
        parts = [b for b in self.bases(value) if b.op == ITEM and b.inputs[0].op in _PARTS]
        return frozenset().union(*(self.bases(p.inputs[0]) for p in parts)) if parts else _NOTHING

    def bases(self, value: Value) -> frozenset[Value]:
        """The values whose memory `value` may share, itself included where it may own some."""
        if value in self._bases:
            return self._bases[value]
        todo = [value]
        while todo:
            v = todo[-1]
            parts = _may_alias(v)
            missing = [p for p in parts if p not in self._bases]
            if missing and v not in self._bases:
                todo += missing
                continue
            todo.pop()
            if v not in self._bases:
                own = () if parts and v.op not in (CALL, OPAQUE) else (v,)
                spend(sum(len(self._bases[p]) for p in parts) // 8)
                self._bases[v] = frozenset(own).union(*(self._bases[p] for p in parts))
        return self._bases[value]


_NOTHING: frozenset[Value] = frozenset()


def _may_alias(v: Value) -> tuple[Value, ...]:
    """The inputs whose memory `v` may be part of."""
    if v.op == ITEM:
        return () if v.inputs[0].op in _PARTS else v.inputs[:1]
    if v.op == CHOICE:
        return v.inputs[1:]
    if v.op in (OPAQUE, TUPLE):
        return v.inputs
    if v.op == CALL:
        return () if isinstance(v.data, tuple) and v.data[0] in _ALLOCATES else (*_receiver(v), *v.inputs)
    return v.inputs[:1] if v.op in OPS and OPS[v.op].effect == "view" else ()


def _receiver(call: Value) -> tuple[Value, ...]:
    """x of x.detach(); not the module whose method is called."""
    function = call.inputs[0] if call.inputs else call
    owner = function.inputs[0] if function.op == ATTRIBUTE else None
    return (owner,) if owner is not None and owner.op != MODULE and owner.data not in ("self", "cls") else ()


def _owned(base: Value) -> bool:
    """Whether the memory of `base` was made by this function and is held by nothing outside it."""
    if base.op == CALL:
        return isinstance(base.data, tuple) and base.data[0] in _ALLOCATES
    if base.op == ITEM:
        return base.inputs[0].op in _PARTS  # as long as the whole is, which is asked separately
    return base.op in OPS and OPS[base.op].effect != "view"


def qualified(v: Value) -> str | None:
    """The imported name that a value is: torch.nn.functional.softmax."""
    if v.op == MODULE:
        return str(v.data)
    if v.op == ATTRIBUTE and (owner := qualified(v.inputs[0])):
        return f"{owner}.{v.data}"
    return None
