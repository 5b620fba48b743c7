"""Statements that hold others: branches, loops, contexts, exceptions.

Branches join in choices. What a loop changes is unknown at its head, and what it leaves for the next round escapes if
that round reads it. What is computed under a context manager is not what the same code computes outside it.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from autofuse.ir.graph import CHOICE, OPAQUE, Value
from autofuse.ir.vocabulary import OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.source.capture.assignments import Assignments
from autofuse.source.capture.bindings import bound_names

Bound = dict[str, Value | None]  # what names hold at an exit of a block; None: unbound
_NEUTRAL_CONTEXTS = {
    "torch.profiler.record_function",
    "torch.autograd.profiler.record_function",
    "contextlib.nullcontext",
}


@dataclass
class Loop:
    """Where control leaves a loop's body: the names it changed, at each `continue` and `break`."""

    mark: int
    continues: list[Bound] = field(default_factory=list)
    breaks: list[Bound] = field(default_factory=list)


class Blocks(Assignments):
    """Reads statements that hold others. Each reader says whether control can leave by the end."""

    loops: tuple[Loop, ...] = ()

    @abstractmethod
    def block(self, body: Iterable[ast.stmt]) -> bool: ...

    def changed(self, mark: int) -> Bound:
        return {n: self.names.get(n) for n in self.names.changed(mark)}

    # Branches.

    def branch(self, statement: ast.If) -> bool:
        test = self.value(statement.test)
        self.sink(because(matches.VALUE_TESTED, how="tested"), test)
        if not self.quiet:
            self.out.tests[statement] = test
        mark = self.names.mark
        self.depth += 1
        outer, self.horizon = self.horizon, len(self.graph.values)
        since = len(self.graph.values)
        ends = self.block(statement.body)
        then = self.changed(mark)
        self.names.restore(mark)
        mark = self.names.mark
        if statement.orelse or not ends:
            self.graph.part_ways(since, _computes)
        self.horizon = len(self.graph.values)
        ends_else = self.block(statement.orelse)
        self.depth -= 1
        self.horizon = outer if ends and ends_else else len(self.graph.values)
        otherwise = self.changed(mark)
        if ends and ends_else:
            for n in dict.fromkeys((*then, *otherwise)):
                before = self.names.at(n, mark)
                self._join(n, test, then.get(n, before), otherwise.get(n, before))
        elif ends:
            self.names.restore(mark)
            for n, v in then.items():
                self.names.set(n, v)
        return ends or ends_else

    def _join(self, name: str, test: Value, yes: Value | None, no: Value | None) -> None:
        if yes is None and no is None:
            self.names.set(name, None)
            return
        joined = self.choice(test, yes, no)
        self.hold(name, joined)
        numbers = {None if v is None else self.facts.number(v) for v in (yes, no)}
        if numbers == {True}:
            self.know(joined, number=True)

    def cases(self, statement: ast.Match) -> bool:
        subject = self.value(statement.subject)
        self.sink(because(matches.VALUE_TESTED, how="matched"), subject)
        mark = self.names.mark
        exits: list[Bound] = [{}]  # no case may apply
        self.depth += 1
        for case in statement.cases:
            self.horizon = len(self.graph.values)
            self.names.restore(mark)
            for name in _captured_names(case.pattern):
                self.hold(name, self.unknown("matched", subject))
            if case.guard:
                self.sink(because(matches.VALUE_TESTED, how="tested"), self.value(case.guard))
            if self.block(case.body):
                exits.append(self.changed(mark))
        self.depth -= 1
        self.names.restore(mark)
        self.horizon = len(self.graph.values)
        self._merge(mark, exits, "one of several cases")
        return True

    def _merge(self, mark: int, exits: list[Bound], why: str) -> None:
        """Let every name that some exit changed hold one of what it held at the exits."""
        for name in dict.fromkeys(n for e in exits for n in e):
            before = self.names.at(name, mark)
            values = dict.fromkeys(v for e in exits if (v := e.get(name, before)) is not None)
            if len(values) == 1 and all(e.get(name, before) is not None for e in exits):
                self.hold(name, next(iter(values)))
            elif values:
                self.hold(name, self.some_of(why, list(values)))
            else:
                self.names.set(name, None)

    # Loops.

    def loop(self, statement: ast.For | ast.AsyncFor | ast.While) -> bool:
        """What the body changes is unknown at its head; what it leaves for the next round is used there."""
        source = self.value(statement.iter) if not isinstance(statement, ast.While) else None
        mark, outer = self.names.mark, self.region
        heads = {n: self._head(n) for n in sorted(_stored(statement))}
        loop = Loop(self.names.mark)
        before, self.horizon = self.horizon, len(self.graph.values)
        self.loops, self.region, self.depth = (*self.loops, loop), (*outer, statement), self.depth + 1
        if isinstance(statement, ast.While):
            self.sink(because(matches.VALUE_TESTED, how="tested"), self.value(statement.test))
        elif source is not None:
            self.bind(statement.target, self.unknown("an element", source))
        if self.block(statement.body):
            loop.continues.append(self.changed(loop.mark))
        self.loops, self.region, self.depth = self.loops[:-1], outer, self.depth - 1
        self.horizon = before
        self._carry(heads, loop)
        self.names.restore(loop.mark)
        self._merge(loop.mark, [{}, *loop.continues], "assigned in a loop")
        self._opaque_since(mark, "assigned in a loop")
        mark = self.names.mark
        ends = self.block(statement.orelse)
        exits = [*([self.changed(mark)] if ends else []), *loop.breaks]
        self.names.restore(mark)
        self._merge(mark, exits, "assigned in a loop")
        if loop.breaks:
            self._opaque_since(mark, "assigned in a loop")
        forever = isinstance(statement, ast.While) and isinstance(statement.test, ast.Constant) and statement.test.value
        return bool(loop.breaks) or ends and not forever

    def _head(self, name: str) -> Value | None:
        before = self.names.get(name)
        if before is None:
            return None
        head = self.some_of("changed by the loop", [before])
        if self.facts.number(before):
            self.know(head, number=True)
        self.hold(name, head)
        return head

    def _carry(self, heads: dict[str, Value | None], loop: Loop) -> None:
        """What a round leaves in a name escapes if the next round reads it."""
        for name, head in heads.items():
            if head is not None and self._read(head):
                left = [v for e in loop.continues if (v := e.get(name)) is not None and v is not head]
                self.sink(because(matches.VALUE_CARRIED), *dict.fromkeys(left))

    def _read(self, head: Value) -> bool:
        """Whether anything but a join uses `head`."""
        todo, seen = [head], {head}
        while todo:
            for user in self.graph.users[todo.pop()]:
                if user.op not in (CHOICE, OPAQUE):
                    return True
                if user not in seen:
                    seen.add(user)
                    todo.append(user)
        return False

    def _opaque_since(self, mark: int, why: str) -> None:
        """No name changed since `mark` holds a value of the block that just ended."""
        for name in self.names.changed(mark):
            if (held := self.names.get(name)) is not None and held is not self.names.at(name, mark):
                self.hold(name, self.some_of(why, [held]))

    # Contexts and exceptions.

    def context(self, statement: ast.With | ast.AsyncWith) -> bool:
        """What is computed under `no_grad` or `autocast` is not what is computed outside."""
        outer, mark = self.region, self.names.mark
        managers = {self._manager(item) for item in statement.items}
        self.effect()
        if managers <= _NEUTRAL_CONTEXTS:
            return self.block(statement.body)
        self.region = (*outer, statement)
        ends = self.block(statement.body)
        self.region = outer
        if all(m.startswith("torch.") for m in managers):
            self._opaque_since(mark, "computed in a `with` block")
            return ends
        for name in self.names.changed(mark):  # it may swallow an exception halfway
            self.hold(name, self.some_of("computed in a `with` block", self.names.held_since(name, mark)))
        return True

    def _manager(self, item: ast.withitem) -> str:
        """Enters a context; the name of what makes it, "" where that is not known."""
        entered = self.value(item.context_expr)
        if item.optional_vars:
            self.bind(item.optional_vars, self.unknown("entered", entered))
        call = item.context_expr
        return (self.scope.name_of(call.func) or "") if isinstance(call, ast.Call) else ""

    def attempt(self, statement: ast.Try | ast.TryStar) -> bool:
        outer, mark, before = self.region, self.names.mark, self.horizon
        self.region = (*outer, statement)
        self.depth += 1
        self.horizon = len(self.graph.values)
        ends = self.block([*statement.body, *statement.orelse])
        after, touched = self.changed(mark), self.names.changed(mark)
        seen: dict[str, list[Value]] = {n: self.names.held_since(n, mark) for n in touched}
        exits = [after] if ends else []
        for handler in statement.handlers:
            self.names.restore(mark)
            for name, values in seen.items():
                self.hold(name, self.unknown("assigned where an exception may interrupt", *values))
            if handler.type:
                self.value(handler.type)
            if handler.name:
                self.hold(handler.name, self.unknown("an exception"))
            if self.block(handler.body):
                exits.append(self.changed(mark))
        self.region = outer
        self.names.restore(mark)
        self._merge(mark, exits, "assigned in a `try` block")
        self.depth -= 1
        self.horizon = before if ends else len(self.graph.values)
        return self.finish(statement.finalbody, seen) and bool(exits)

    def finish(self, body: list[ast.stmt], seen: dict[str, list[Value]]) -> bool:
        """`finally` runs wherever the block was left; what it does not assign is afterwards what it was before."""
        mark = self.names.mark
        for name, values in seen.items() if body else ():
            self.hold(name, self.unknown("assigned where an exception may interrupt", *values))
        start = self.names.mark
        ends = self.block(body)
        changed = self.changed(start)
        self.names.restore(mark)
        for name, v in changed.items():
            self.names.set(name, v)
        return ends


def _computes(op: str) -> bool:
    """Whether an operation is worth computing once: another one is read where it stands."""
    return op in OPS and OPS[op].heavy


def _stored(statement: ast.stmt) -> frozenset[str]:
    """Names that a loop may change."""
    fake = ast.FunctionDef(
        name="", args=ast.arguments([], [], None, [], [], None, []), body=[statement], decorator_list=[]
    )
    return bound_names(fake)


def _captured_names(pattern: ast.pattern) -> set[str]:
    found = set()
    for n in ast.walk(pattern):
        found |= {name for name in (getattr(n, "name", None), getattr(n, "rest", None)) if isinstance(name, str)}
    return found
