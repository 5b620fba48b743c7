"""What a rule looks for, and what one match of it has bound so far. Plain data; matcher.py does the matching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autofuse.ir.graph import CONST, PARAMETER, Value, ancestors, is_const
from autofuse.match.masks import Mask
from autofuse.rule import CallChange, Replacement, Rule

_READ_AS = {"linear": ("matmul", "add", "addmm")}  # what the matcher may read as an operation


@dataclass(frozen=True)
class Pattern:
    """`before`, captured and canonical: what it returns, the last result being the root.

    `defaults` are the values of parameters that the code may leave out. `written` is how many computations `before`
    writes out for it, `names` are its parameters.
    """

    results: tuple[Value, ...]
    defaults: Mapping[str, Value]
    written: int = 2
    names: frozenset[str] = frozenset()

    @property
    def root(self) -> Value:
        return self.results[-1]

    def optional(self, step: Value) -> Value | None:
        """What `step` works on, where code without the step matches too: all it adds are parameters with defaults."""
        rest = [v for v in step.inputs if not self._default(v)]
        return rest[0] if len(rest) == 1 and len(step.inputs) > 1 and rest[0].op != CONST else None

    def may_be_none(self, name: str) -> bool:
        return name in self.defaults and is_const(self.defaults[name], None)

    def _default(self, v: Value) -> bool:
        return v.op == PARAMETER and v.data in self.defaults

    @cached_property
    def masks(self) -> frozenset[str]:
        """The parameters that masks are made of."""
        steps = {v for result in self.results for v in ancestors(result) if v.op == "masked"}
        return frozenset(str(p.data) for step in steps for p in step.inputs[1:])

    @cached_property
    def summands(self) -> frozenset[str]:
        """The parameters whose sum is normed."""
        norms = {v for result in self.results for v in ancestors(result) if v.op in ("layer_norm", "rms_norm")}
        sums = [v.inputs[0] for v in norms if v.inputs[0].op == "add"]
        return frozenset(str(p.data) for v in sums for p in ancestors(v) if p.op == PARAMETER)

    @cached_property
    def root_ops(self) -> frozenset[str]:
        """The operations that a whole match may end in."""
        step: Value | None = self.root if self.results else None
        ops = set[str]()
        while step is not None:
            ops |= {step.op, *_READ_AS.get(step.op, ())}
            step = self.optional(step)
        return frozenset(ops)


@dataclass(frozen=True)
class LoadedRule:
    """A rule, with `before` as a pattern and `after` as a call; of a rule about calls, what it changes in one.

    `assumes` is what keeps its edits of text from being safe, whatever its `where` says.
    """

    rule: type[Rule]
    pattern: Pattern
    replacement: Replacement
    change: CallChange | None = None
    assumes: str = ""

    @property
    def ships(self) -> bool:
        """Whether the rule is one of autofuse's own."""
        return self.rule.__module__.startswith("autofuse.rules.")


@dataclass(frozen=True)
class Bindings:
    """What a partial match has found: parameters, steps, the proof of a mask, and how many casts were crossed.

    `widened`: the sum that is cast before it is normed; the cast counts as the norm's own precision.
    """

    captures: Mapping[str, Value] = field(default_factory=dict)
    steps: Mapping[Value, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    mask: Mask | None = None
    casts: int = 0
    widened: Value | None = None

    def with_capture(self, name: str, value: Value) -> Bindings:
        captures = {**self.captures, name: value}
        return Bindings(captures, self.steps, self.notes, self.mask, self.casts, self.widened)

    def with_step(self, pattern: Value, value: Value) -> Bindings:
        steps = {**self.steps, pattern: value}
        return Bindings(self.captures, steps, self.notes, self.mask, self.casts, self.widened)

    def across_cast(self) -> Bindings:
        return Bindings(self.captures, self.steps, self.notes, self.mask, self.casts + 1, self.widened)

    def across_widening(self, value: Value) -> Bindings:
        return Bindings(self.captures, self.steps, self.notes, self.mask, self.casts, value)

    def with_mask(self, mask: Mask, note: str) -> Bindings:
        notes = (*self.notes, note) if note else self.notes
        return Bindings(self.captures, self.steps, notes, mask, self.casts, self.widened)


@dataclass(frozen=True)
class Miss:
    """The best failed attempt: how many steps matched, the step of the pattern that did not, and what stood there."""

    depth: int
    step: Value | None = None
    found: Value | None = None
