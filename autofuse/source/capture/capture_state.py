"""The state of the capture of one function: values of names, writes to memory, and values that escape.

This is the base class of the classes that read statements, expressions and calls. It works with graphs and names, and
reads no syntax itself.
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
from autofuse.source.capture.name_table import NameSnapshot, NameTable
from autofuse.source.capture.scope import ClassScope, FileScope

# Calls that return new memory. A write to their result changes no other value.
_ALLOCATES = frozenset("torch.empty torch.eye torch.cat torch.stack torch.concat .new_zeros .new_ones".split())
_PARTS = ("chunk", "split", "unbind")  # the items of a result share no memory with each other
# Operations that keep the rank of their argument.
_KEEP_RANK = frozenset("transpose mT permute contiguous to float double half bfloat16 detach".split())


class CaptureState(ABC):
    """The state of the capture.

    Args:
        scope: The names that the code sees.
        owner: The class, if the code is a method.
        captured: Receives the result.
        in_helper: Whether the code is the body of a helper that is inlined into the captured function.
    """

    def __init__(
        self, scope: FileScope, owner: ClassScope | None, captured: CapturedFunction, in_helper: bool = False
    ) -> None:
        self.scope, self.owner, self.captured, self.in_helper = scope, owner, captured, in_helper
        self.graph: Graph = captured.graph
        self.names = NameTable()
        self.frames: list[dict[str, Value]] = []  # variables of comprehensions and lambdas, innermost last
        self.local_names: frozenset[str] = frozenset()
        self.declared_names: set[str] = set()  # global or nonlocal here
        self.names_rebound_by_nested: set[str] = set()  # nonlocal in a nested function
        self.closure_names: set[str] = set()  # names that nested functions read
        self.instance_name: str | None = None  # usually "self"
        self.module_parameters: dict[str, ast.expr] = {}  # parameters that are modules, with their constructors
        self.instance_value: Value | None = None  # the value of `instance_name`: the module, or an inlined submodule
        self.in_other_file = False  # whether the code is in another file than the captured function
        self.inlined_calls: set[int] = set()  # ids of the calls of helpers and submodules that were inlined
        self.statement: ast.stmt | None = None
        self.current_call: ast.expr | None = None  # the innermost call in the text of the captured function
        self.before = NameSnapshot(self.names, 0)
        self.region: Region = ()
        self.branch_depth = 0  # the number of branches and loops around the statement
        self.branch_start = 0  # the serial of the first value that is computed only if the statement runs
        self.inline_stack: tuple[Function, ...] = ()  # the functions that are being inlined, outermost first
        self.local_helpers: frozenset[Function] = frozenset()  # nested functions that can be inlined
        self.nested_functions: dict[Value, Function] = {}
        self.facts = Facts(captured.known)
        self.precomputed: dict[int, Value] = {}  # values of expressions that were read early, by the id of the node
        self._sharing: dict[Value, set[str]] = {}  # for each value, the names that may share memory with it
        self._bases: dict[Value, frozenset[Value]] = {}

    @abstractmethod
    def value(self, node: ast.expr) -> Value:
        """Return the value of an expression."""

    # Names.

    def bind_name(self, name: str, value: Value) -> None:
        """Bind `name` to `value`."""
        if name in self.declared_names:
            self.add_escape(because(matches.VALUE_STORED, place="a global or nonlocal name"), value)
            self.forget_attributes("a global or nonlocal name is assigned")
            self.record_effect()
            return
        self.names.set(name, value)
        if name in self.closure_names:
            self.add_escape(because(matches.VALUE_READ_BY_FUNCTION), value)
        self._record_sharing(name, value)

    def _record_sharing(self, name: str, value: Value) -> None:
        bases = self.bases(value) | self.split_sources(value)
        spend(len(bases))
        for base in bases:
            self._sharing.setdefault(base, set()).add(name)

    def record_position(self, value: Value, node: ast.expr, inlined: bool, inner: bool = False) -> None:
        """Record that `node` computes `value`. See ValuePosition for `inlined` and `inner`."""
        if not self.in_helper and not self.frames and self.statement is not None:
            writes = len(self.captured.attribute_write_serials)
            position = ValuePosition(node, self.statement, self.before, self.region, inlined, inner, writes)
            self.captured.positions.setdefault(value, []).append(position)

    def record_helper_position(self, value: Value, node: ast.expr) -> None:
        """Record that `node`, an unconditional expression of a helper in this file, computes `value`."""
        plain = len(self.inline_stack) == 1 and not self.branch_depth and not self.frames and not self.in_other_file
        same_instance = self.instance_value is None or self.instance_value.op == PARAMETER
        if not plain or not same_instance or self.statement is None or self.inline_stack[0] in self.local_helpers:
            return
        text = HelperText(
            node, self.inline_stack[0], self.names.snapshot(), self.statement, self.before, self.region,
            len(self.captured.attribute_write_serials),
        )  # fmt: skip
        self.captured.helper_texts.setdefault(value, []).append(text)

    def record_binding(self, *values: Value) -> None:
        """Record that the current statement binds `values`."""
        if self.statement is not None and not self.in_helper:
            self.captured.assigned.setdefault(self.statement, []).extend(values)

    def record_effect(self) -> None:
        """Record that the current statement does more than bind names."""
        if self.statement is not None and not self.in_helper:
            self.captured.effects.add(self.statement)

    # Facts.

    def add_facts(self, value: Value, **facts: object) -> None:
        """Add facts about a value. A fact that is already known stays."""
        known = self.captured.known.get(value, Known())
        new = {k: v for k, v in facts.items() if getattr(known, k) is None}
        self.captured.known[value] = replace(known, **new)  # type: ignore[arg-type]
        if any(fact is not None for fact in new.values()):
            self.facts.forget_unknowns()
        if "rank" in new and value.op in _KEEP_RANK:
            self.require_rank(value.inputs[0], new["rank"])  # type: ignore[arg-type]

    def require_rank(self, value: Value, rank: int) -> None:
        """Record that the current statement fails unless `value` is a tensor with `rank` dimensions.

        The fact is recorded only for values that are computed in the same branch. An older value may have another rank
        whenever the branch does not run.
        """
        if value.serial >= self.branch_start:
            self.add_facts(value, rank=rank, number=False)

    def unknown_value(self, why: str, *inputs: Value) -> Value:
        """Return an opaque value that depends on `inputs`."""
        return self.graph.fresh(OPAQUE, *inputs, data=why)

    def one_of(self, why: str, values: list[Value]) -> Value:
        """Return an opaque value that is one of `values`. It is a number if all of them are numbers."""
        result = self.unknown_value(why, *values)
        if values and all(self.facts.number(v) for v in values):
            self.add_facts(result, number=True)
        return result

    # Escapes.

    def add_escape(self, why: Reason, *values: Value) -> None:
        """Record that `values` escape: they leave the function or are inspected, so they must be kept.

        Args:
            why: The reason.
            values: The values.
        """
        if values:
            sink = self.graph.fresh(SINK, *values, data=why)
            if self.statement is not None:
                self.captured.lines[sink] = self.statement.lineno

    def capture_nested(self, node: ast.AST) -> Value:
        """Return the value of a nested function, lambda or class. The values that it reads escape.

        They escape because the nested code may run at any time.
        """
        read = [v for name in sorted(free_names(node)) if (v := self.lookup(name)) is not None]
        self.add_escape(because(matches.VALUE_READ_BY_FUNCTION), *read)
        return self.unknown_value("a function or class", *read)

    def lookup(self, name: str) -> Value | None:
        return next((f[name] for f in reversed(self.frames) if name in f), None) or self.names.get(name)

    # Memory.

    def forget_attributes(self, why: str) -> None:
        """Record that later reads of attributes may have other results than earlier reads."""
        self.graph.forget(why)
        self.captured.attribute_write_serials.append(len(self.graph.values))

    def record_write(self, target: Value, result: Value) -> None:
        """Record that the memory of `target` is overwritten with `result`.

        Names that hold `target` now hold `result`. Names that hold an overlapping value now hold an opaque value.
        """
        bases, wholes = self.bases(target), self.split_sources(target)
        for written in dict.fromkeys((target, *bases, *wholes)):
            self.graph.write(written, result)
        if not all(map(_is_owned, bases | wholes)):
            self.add_escape(because(matches.VALUE_WRITTEN_TO_MEMORY), result)
            self.record_effect()
        for name, held in self._names_overlapping(bases, wholes):
            # This uses the table and not bind_name: the value has escaped already if a nested function reads the name.
            now = result if held is target else self.unknown_value("shares memory with a write", held, result)
            self.names.set(name, now)
            self._record_sharing(name, now)

    def apply_helper_writes(self, since: int) -> None:
        """Update the names of this function after a helper was inlined that wrote to memory.

        Args:
            since: The length of `graph.writes` before the helper.
        """
        for write in self.graph.writes[since:]:
            for name, held in self._names_overlapping(self.bases(write.target), self.split_sources(write.target)):
                now = self.unknown_value("written by a helper", held, write.result)
                self.names.set(name, now)
                self._record_sharing(name, now)

    def _names_overlapping(self, bases: frozenset[Value], wholes: frozenset[Value]) -> list[tuple[str, Value]]:
        """Return the names that may share memory with `bases`, with their values."""
        names = sorted({n for base in bases | wholes for n in self._sharing.get(base, ())})
        spend(len(names))
        pairs = [(n, v) for n in names if (v := self.names.get(n)) is not None and v.op != CONST]
        return [(n, v) for n, v in pairs if self.bases(v) & (bases | wholes) or self.split_sources(v) & bases]

    def split_sources(self, value: Value) -> frozenset[Value]:
        """Return the values that `value` was split off from by chunk, split or unbind."""
        parts = [b for b in self.bases(value) if b.op == ITEM and b.inputs[0].op in _PARTS]
        return frozenset().union(*(self.bases(p.inputs[0]) for p in parts)) if parts else _NOTHING

    def bases(self, value: Value) -> frozenset[Value]:
        """Return the values that may share memory with `value`. It includes `value` if this may own memory.

        The loop replaces a recursion, which would be too deep for long functions.
        """
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
                itself = () if parts and v.op not in (CALL, OPAQUE) else (v,)
                spend(sum(len(self._bases[p]) for p in parts) // 8)
                self._bases[v] = frozenset(itself).union(*(self._bases[p] for p in parts))
        return self._bases[value]


_NOTHING: frozenset[Value] = frozenset()


def _may_alias(v: Value) -> tuple[Value, ...]:
    """Return the inputs of `v` that may share memory with `v`."""
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
    """Return the object of a method call, such as `x` of `x.detach()`; nothing for a method of a module."""
    function = call.inputs[0] if call.inputs else call
    owner = function.inputs[0] if function.op == ATTRIBUTE else None
    return (owner,) if owner is not None and owner.op != MODULE and owner.data not in ("self", "cls") else ()


def _is_owned(base: Value) -> bool:
    """Whether the function itself allocated the memory of `base`, and nothing outside of it holds this memory."""
    if base.op == CALL:
        return isinstance(base.data, tuple) and base.data[0] in _ALLOCATES
    if base.op == ITEM:
        return base.inputs[0].op in _PARTS  # the caller checks the value that this is a part of
    return base.op in OPS and OPS[base.op].effect != "view"


def qualified_name(v: Value) -> str | None:
    """Return the full name of an imported module or function, such as `torch.nn.functional.softmax`, or None."""
    if v.op == MODULE:
        return str(v.data)
    if v.op == ATTRIBUTE and (owner := qualified_name(v.inputs[0])):
        return f"{owner}.{v.data}"
    return None
