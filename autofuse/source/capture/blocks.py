"""Reads compound statements: branches, loops, `with` blocks and `try` blocks.

- After a branch, a name that it changes holds a CHOICE.
- At the start of a loop, a name that the loop changes holds an opaque value. If an iteration reads this value, the
  value that the previous iteration assigned escapes.
- A `with` block may change the meaning of operations. So the values that it computes are opaque outside of it.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from autofuse.ir.graph import CHOICE, IN_WITH_BLOCK, OPAQUE, Value
from autofuse.ir.vocabulary import OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.source.capture.assignments import Assignments
from autofuse.source.capture.bindings import bound_names

Bound = dict[str, Value | None]  # the values of names where control leaves a block; None for an unbound name
# Context managers that do not change the operations of the block.
_NEUTRAL_CONTEXTS = {
    "torch.profiler.record_function",
    "torch.autograd.profiler.record_function",
    "contextlib.nullcontext",
}


@dataclass
class Loop:
    """The values of the changed names where control leaves the body of a loop.

    Attributes:
        mark: The time of the start of the body.
        continues: The values at each `continue`, and at the end of the body.
        breaks: The values at each `break`.
    """

    mark: int
    continues: list[Bound] = field(default_factory=list)
    breaks: list[Bound] = field(default_factory=list)


class Blocks(Assignments):
    """Reads compound statements. Each method returns whether execution can continue after the statement."""

    loops: tuple[Loop, ...] = ()  # the loops around the statement, outermost first

    @abstractmethod
    def read_block(self, body: Iterable[ast.stmt]) -> bool:
        """Read statements in order. Returns whether execution can reach the end of the block."""

    def changed_names(self, mark: int) -> Bound:
        """Return the names that changed since the time `mark`, with their values."""
        return {n: self.names.get(n) for n in self.names.changed_since(mark)}

    # Branches.

    def read_if(self, statement: ast.If) -> bool:
        """Read an `if` statement."""
        test = self.value(statement.test)
        self.add_escape(because(matches.VALUE_TESTED, how="tested"), test)
        if not self.in_helper:
            self.captured.tests[statement] = test
        mark = self.names.mark
        self.branch_depth += 1
        outer, self.branch_start = self.branch_start, len(self.graph.values)
        first = len(self.graph.values)
        ends = self.read_block(statement.body)
        then = self.changed_names(mark)
        self.names.restore(mark)
        mark = self.names.mark
        if statement.orelse or not ends:
            # The other branch must not use expensive results of this branch, because only one of them runs.
            self.graph.separate_branch(first, _is_heavy)
        self.branch_start = len(self.graph.values)
        ends_else = self.read_block(statement.orelse)
        self.branch_depth -= 1
        # If a branch leaves the function, the code after the `if` runs only after the other branch.
        self.branch_start = outer if ends and ends_else else len(self.graph.values)
        otherwise = self.changed_names(mark)
        if ends and ends_else:
            for n in dict.fromkeys((*then, *otherwise)):
                before = self.names.value_at(n, mark)
                self._join(n, test, then.get(n, before), otherwise.get(n, before))
        elif ends:
            self.names.restore(mark)
            for n, v in then.items():
                self.names.set(n, v)
        return ends or ends_else

    def _join(self, name: str, test: Value, yes: Value | None, no: Value | None) -> None:
        """Bind `name` to a choice between its values at the ends of two branches."""
        if yes is None and no is None:
            self.names.set(name, None)
            return
        choice = self.make_choice(test, yes, no)
        self.bind_name(name, choice)
        numbers = {None if v is None else self.facts.number(v) for v in (yes, no)}
        if numbers == {True}:
            self.add_facts(choice, number=True)

    def read_match(self, statement: ast.Match) -> bool:
        """Read a `match` statement."""
        subject = self.value(statement.subject)
        self.add_escape(because(matches.VALUE_TESTED, how="matched"), subject)
        mark = self.names.mark
        exits: list[Bound] = [{}]  # possibly no case matches
        self.branch_depth += 1
        for case in statement.cases:
            self.branch_start = len(self.graph.values)
            self.names.restore(mark)
            for name in _captured_names(case.pattern):
                self.bind_name(name, self.unknown_value("matched", subject))
            if case.guard:
                self.add_escape(because(matches.VALUE_TESTED, how="tested"), self.value(case.guard))
            if self.read_block(case.body):
                exits.append(self.changed_names(mark))
        self.branch_depth -= 1
        self.names.restore(mark)
        self.branch_start = len(self.graph.values)
        self._merge(mark, exits, "one of several cases")
        return True

    def _merge(self, mark: int, exits: list[Bound], why: str) -> None:
        """Bind each name that changed at an exit to an opaque value, which is one of its values at the exits.

        Args:
            mark: The time before the block.
            exits: The values of the changed names at each exit.
            why: The reason for the opaque values.
        """
        for name in dict.fromkeys(n for e in exits for n in e):
            before = self.names.value_at(name, mark)
            values = dict.fromkeys(v for e in exits if (v := e.get(name, before)) is not None)
            if len(values) == 1 and all(e.get(name, before) is not None for e in exits):
                self.bind_name(name, next(iter(values)))
            elif values:
                self.bind_name(name, self.one_of(why, list(values)))
            else:
                self.names.set(name, None)

    # Loops.

    def read_loop(self, statement: ast.For | ast.AsyncFor | ast.While) -> bool:
        """Read a loop. The body is read once, with opaque values for the names that it changes."""
        source = self.value(statement.iter) if not isinstance(statement, ast.While) else None
        mark, outer = self.names.mark, self.region
        heads = {n: self._loop_head(n) for n in sorted(_names_stored(statement))}
        loop = Loop(self.names.mark)
        before, self.branch_start = self.branch_start, len(self.graph.values)
        self.loops, self.region, self.branch_depth = (*self.loops, loop), (*outer, statement), self.branch_depth + 1
        if isinstance(statement, ast.While):
            self.add_escape(because(matches.VALUE_TESTED, how="tested"), self.value(statement.test))
        elif source is not None:
            self.bind_target(statement.target, self.unknown_value("an element", source))
        if self.read_block(statement.body):
            loop.continues.append(self.changed_names(loop.mark))
        self.loops, self.region, self.branch_depth = self.loops[:-1], outer, self.branch_depth - 1
        self.branch_start = before
        self._escape_carried_values(heads, loop)
        self.names.restore(loop.mark)
        self._merge(loop.mark, [{}, *loop.continues], "assigned in a loop")
        self._make_opaque_since(mark, "assigned in a loop")
        mark = self.names.mark
        ends = self.read_block(statement.orelse)
        exits = [*([self.changed_names(mark)] if ends else []), *loop.breaks]
        self.names.restore(mark)
        self._merge(mark, exits, "assigned in a loop")
        if loop.breaks:
            self._make_opaque_since(mark, "assigned in a loop")
        forever = isinstance(statement, ast.While) and isinstance(statement.test, ast.Constant) and statement.test.value
        return bool(loop.breaks) or ends and not forever

    def _loop_head(self, name: str) -> Value | None:
        """Bind `name` to an opaque value for the start of an iteration, and return this value."""
        before = self.names.get(name)
        if before is None:
            return None
        head = self.one_of("changed by the loop", [before])
        if self.facts.number(before):
            self.add_facts(head, number=True)
        self.bind_name(name, head)
        return head

    def _escape_carried_values(self, heads: dict[str, Value | None], loop: Loop) -> None:
        """Let the values escape that one iteration assigns and the next iteration reads."""
        for name, head in heads.items():
            if head is not None and self._is_read(head):
                carried = [v for e in loop.continues if (v := e.get(name)) is not None and v is not head]
                self.add_escape(because(matches.VALUE_CARRIED), *dict.fromkeys(carried))

    def _is_read(self, head: Value) -> bool:
        """Whether any value other than a choice or an opaque value depends on `head`."""
        todo, seen = [head], {head}
        while todo:
            for user in self.graph.users[todo.pop()]:
                if user.op not in (CHOICE, OPAQUE):
                    return True
                if user not in seen:
                    seen.add(user)
                    todo.append(user)
        return False

    def _make_opaque_since(self, mark: int, why: str) -> None:
        """Bind each name that changed since `mark` to an opaque value, because a block has ended."""
        for name in self.names.changed_since(mark):
            if (value := self.names.get(name)) is not None and value is not self.names.value_at(name, mark):
                self.bind_name(name, self.one_of(why, [value]))

    # Contexts and exceptions.

    def read_with(self, statement: ast.With | ast.AsyncWith) -> bool:
        """Read a `with` block. The values that it computes are opaque afterwards, unless the context is neutral.

        Under `no_grad` or `autocast`, for example, the same operation has another result than outside.
        """
        outer, mark = self.region, self.names.mark
        managers = {self._enter_context(item) for item in statement.items}
        self.record_effect()
        if managers <= _NEUTRAL_CONTEXTS:
            return self.read_block(statement.body)
        self.region = (*outer, statement)
        ends = self.read_block(statement.body)
        self.region = outer
        if all(m.startswith("torch.") for m in managers):
            self._make_opaque_since(mark, IN_WITH_BLOCK)
            return ends
        for name in self.names.changed_since(mark):  # the context manager may suppress an exception anywhere
            self.bind_name(name, self.one_of(IN_WITH_BLOCK, self.names.values_since(name, mark)))
        return True

    def _enter_context(self, item: ast.withitem) -> str:
        """Read one item of a `with` statement, and return the name of its context manager, or "" if it is unknown."""
        entered = self.value(item.context_expr)
        if item.optional_vars:
            self.bind_target(item.optional_vars, self.unknown_value("entered", entered))
        call = item.context_expr
        return (self.scope.name_of(call.func) or "") if isinstance(call, ast.Call) else ""

    def read_try(self, statement: ast.Try | ast.TryStar) -> bool:
        """Read a `try` statement. An exception may occur anywhere in the body."""
        outer, mark, before = self.region, self.names.mark, self.branch_start
        self.region = (*outer, statement)
        self.branch_depth += 1
        self.branch_start = len(self.graph.values)
        ends = self.read_block([*statement.body, *statement.orelse])
        after, touched = self.changed_names(mark), self.names.changed_since(mark)
        seen: dict[str, list[Value]] = {n: self.names.values_since(n, mark) for n in touched}
        exits = [after] if ends else []
        for handler in statement.handlers:
            self.names.restore(mark)
            for name, values in seen.items():
                self.bind_name(name, self.unknown_value("assigned where an exception may interrupt", *values))
            if handler.type:
                self.value(handler.type)
            if handler.name:
                self.bind_name(handler.name, self.unknown_value("an exception"))
            if self.read_block(handler.body):
                exits.append(self.changed_names(mark))
        self.region = outer
        self.names.restore(mark)
        self._merge(mark, exits, "assigned in a `try` block")
        self.branch_depth -= 1
        self.branch_start = before if ends else len(self.graph.values)
        return self.read_finally(statement.finalbody, seen) and bool(exits)

    def read_finally(self, body: list[ast.stmt], seen: dict[str, list[Value]]) -> bool:
        """Read a `finally` block.

        It may run after any part of the `try` statement. A name that it does not assign keeps its value.

        Args:
            body: The statements.
            seen: Every value that each name holds in the body of the `try` statement.
        """
        mark = self.names.mark
        for name, values in seen.items() if body else ():
            self.bind_name(name, self.unknown_value("assigned where an exception may interrupt", *values))
        start = self.names.mark
        ends = self.read_block(body)
        changed = self.changed_names(start)
        self.names.restore(mark)
        for name, v in changed.items():
            self.names.set(name, v)
        return ends


def _is_heavy(op: str) -> bool:
    """Whether an operation is expensive. Two branches have separate values for equal expensive operations."""
    return op in OPS and OPS[op].heavy


def _names_stored(statement: ast.stmt) -> frozenset[str]:
    """Return the names that a loop may change."""
    fake = ast.FunctionDef(
        name="", args=ast.arguments([], [], None, [], [], None, []), body=[statement], decorator_list=[]
    )
    return bound_names(fake)


def _captured_names(pattern: ast.pattern) -> set[str]:
    names = set()
    for n in ast.walk(pattern):
        names |= {name for name in (getattr(n, "name", None), getattr(n, "rest", None)) if isinstance(name, str)}
    return names
