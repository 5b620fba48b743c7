"""Defines patterns, and the bindings of a partial match. Plain data; matcher.py does the matching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autofuse.ir.graph import CONST, PARAMETER, Value, ancestors, is_const
from autofuse.match.masks import Mask
from autofuse.rule import CallChange, Replacement, Rule

_READ_AS = {"linear": ("matmul", "add", "addmm")}  # operation -> other operations that the matcher accepts for it


@dataclass(frozen=True)
class Pattern:
    """A captured `before` in canonical form.

    Attributes:
        results: the values that it returns. The last one is the root.
        defaults: parameter -> the default, for parameters that the code may omit.
        written: the number of computations in the source of `before`.
        names: the parameters.
    """

    results: tuple[Value, ...]
    defaults: Mapping[str, Value]
    written: int = 2
    names: frozenset[str] = frozenset()

    @property
    def root(self) -> Value:
        """The last result."""
        return self.results[-1]

    def optional(self, step: Value) -> Value | None:
        """The input of `step`, if its other inputs are parameters with defaults, so that the step is optional."""
        rest = [v for v in step.inputs if not self._has_default(v)]
        return rest[0] if len(rest) == 1 and len(step.inputs) > 1 and rest[0].op != CONST else None

    def may_be_none(self, name: str) -> bool:
        """Whether None is the default of the parameter `name`."""
        return name in self.defaults and is_const(self.defaults[name], None)

    def _has_default(self, v: Value) -> bool:
        return v.op == PARAMETER and v.data in self.defaults

    @cached_property
    def masks(self) -> frozenset[str]:
        """The parameters that are part of a mask."""
        steps = {v for result in self.results for v in ancestors(result) if v.op == "masked"}
        return frozenset(str(p.data) for step in steps for p in step.inputs[1:])

    @cached_property
    def summands(self) -> frozenset[str]:
        """The parameters that are summands of the input of a norm."""
        norms = {v for result in self.results for v in ancestors(result) if v.op in ("layer_norm", "rms_norm")}
        sums = [v.inputs[0] for v in norms if v.inputs[0].op == "add"]
        return frozenset(str(p.data) for v in sums for p in ancestors(v) if p.op == PARAMETER)

    @cached_property
    def root_ops(self) -> frozenset[str]:
        """The possible last operations of a match."""
        step: Value | None = self.root if self.results else None
        ops = set[str]()
        while step is not None:
            ops |= {step.op, *_READ_AS.get(step.op, ())}
            step = self.optional(step)
        return frozenset(ops)


@dataclass(frozen=True)
class LoadedRule:
    """A rule in the form that the matcher and the writers use.

    Attributes:
        rule: the rule.
        pattern: its `before`.
        replacement: its `after`.
        change: the edit of a CallRule.
        assumes: an assumption that makes its edits of source text unsafe, whatever its `where` returns.
    """

    rule: type[Rule]
    pattern: Pattern
    replacement: Replacement
    change: CallChange | None = None
    assumes: str = ""

    @property
    def ships(self) -> bool:
        """Whether the rule is part of autofuse."""
        return self.rule.__module__.startswith("autofuse.rules.")


@dataclass(frozen=True)
class Bindings:
    """The bindings of a partial match.

    Attributes:
        captures: parameter -> the value that it captured.
        steps: step of the pattern -> the value that it matched.
        notes: what was proved for the match.
        mask: the mask that was matched.
        casts: the number of casts that the match has crossed.
        widened: a sum that the code casts before a norm. The cast counts as part of the norm's own precision.
    """

    captures: Mapping[str, Value] = field(default_factory=dict)
    steps: Mapping[Value, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    mask: Mask | None = None
    casts: int = 0
    widened: Value | None = None

    def with_capture(self, name: str, value: Value) -> Bindings:
        """These bindings, with `value` captured by the parameter `name`."""
        captures = {**self.captures, name: value}
        return Bindings(captures, self.steps, self.notes, self.mask, self.casts, self.widened)

    def with_step(self, pattern: Value, value: Value) -> Bindings:
        """These bindings, with `value` matched by the step `pattern`."""
        steps = {**self.steps, pattern: value}
        return Bindings(self.captures, steps, self.notes, self.mask, self.casts, self.widened)

    def across_cast(self) -> Bindings:
        """These bindings, after the match crossed one more cast."""
        return Bindings(self.captures, self.steps, self.notes, self.mask, self.casts + 1, self.widened)

    def across_widening(self, value: Value) -> Bindings:
        """These bindings, after the match crossed the cast of the sum `value` before a norm."""
        return Bindings(self.captures, self.steps, self.notes, self.mask, self.casts, value)

    def with_mask(self, mask: Mask, note: str) -> Bindings:
        """These bindings, with the matched mask. `note`: the proof of its kind; "" if nothing was proved."""
        notes = (*self.notes, note) if note else self.notes
        return Bindings(self.captures, self.steps, notes, mask, self.casts, self.widened)


@dataclass(frozen=True)
class Miss:
    """The failed match that came furthest.

    Attributes:
        depth: the number of steps that matched.
        step: the step of the pattern that did not match.
        found: the value that the program has in its place.
    """

    depth: int
    step: Value | None = None
    found: Value | None = None
