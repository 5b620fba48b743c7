"""Python source -> dataflow graph, by reading its syntax tree.

Walks one function in program order, keeping what each name holds; branches join in choices, and what a loop changes is
unknown at its head. Remembers where each value stands and what every name held there, which is all that writing back
needs. What is not understood is never dropped: the values it reads escape, or flow into what it gives.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from autofuse.ir.graph import ATTRIBUTE, CONST, PARAMETER, Value
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.source.capture.bindings import Function, bound_names, called_only, declared, free_names, nested_scopes
from autofuse.source.capture.blocks import Blocks
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.held_names import HeldNames
from autofuse.source.capture.module_numbers import argument_number
from autofuse.source.capture.scope import ClassScope, FileScope, self_name
from autofuse.source.capture.syntax import walk
from autofuse.source.capture.toplevel import SYMBOL, exported, global_names


def capture(
    function: Function, scope: FileScope, owner: ClassScope | None = None, me: str | None = None,
    given: Iterable[tuple[str, ast.expr]] = (),
) -> CapturedFunction:  # fmt: skip
    """The graph of `function`, whose names mean what `scope` says; `owner` is the class it is a method of.

    A function inside a method takes the instance from around it, under the name `me`. `given`: parameters
    that are modules, and what makes them.
    """
    walk = _Statements(scope, owner, CapturedFunction(function))
    walk.given = dict(given)
    walk.enter(function, me)
    walk.block(function.body)
    walk.leave_behind(function)
    return walk.out


class _Statements(Blocks):
    """Reads statements. `block` says whether control can leave by the end."""

    returned: Value | None = None

    def enter(self, function: Function, me: str | None) -> None:
        arguments = function.args
        self.me = me or (self_name(function) if self.owner else None)
        self.local, self.declared = bound_names(function), declared(function)
        if me and me in self.local:
            self.me = self.owner = None
        elif me:
            self.hold(me, self.graph.value(PARAMETER, data=me))
        inside = called_only(function) if function.name != SYMBOL else ()  # those of a file others may call
        self.only_called = frozenset(f for f in inside if self.scope.helper(f))
        for inner in nested_scopes(function.body):
            if inner in self.only_called:
                continue
            self.closed_over |= free_names(inner)
            if isinstance(inner, Function):
                self.rebound_inside |= {n for s in walk(inner) if isinstance(s, ast.Nonlocal) for n in s.names}
        everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        required = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
        given = everything[:required]
        for a in [*everything, *filter(None, (arguments.vararg, arguments.kwarg))]:
            value = self.graph.value(PARAMETER, data=a.arg)
            self.hold(a.arg, value)
            number = argument_number(arguments, a.arg)
            if number is None and self.me and function.name == "forward" and a in given:
                number = False  # what a module must be called with is data
            if a.arg == self.me:
                self.instance = value
            elif number is not None:
                self.know(value, number=number)

        if function.name == SYMBOL:
            self.local -= {*self.scope.functions, *self.scope.classes}
            self.rebound_inside |= global_names(function.body)

    def leave_behind(self, function: Function) -> None:
        """What the top level of a file leaves in names that others may import."""
        if function.name == SYMBOL:
            held = (self.names.get(name) for name in sorted(exported(function.body)))
            self.sink(because(matches.VALUE_EXPORTED), *filter(None, held))

    def result_of(self, body: Iterable[ast.stmt]) -> Value | None:
        self.block(body)
        return self.returned

    def block(self, body: Iterable[ast.stmt]) -> bool:
        return all(self.step(statement) for statement in body)

    def step(self, statement: ast.stmt) -> bool:
        if not self.quiet:
            self.statement, self.before = statement, HeldNames(self.names, self.names.mark)
            self.out.before[statement] = self.before
        match statement:
            case ast.Assign(targets=targets, value=value):
                self.assign(targets, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign([target], value)
            case ast.AugAssign(target=target, op=op, value=value):
                self.augment(target, op, value)
            case ast.Expr(value=value):
                self.expression(value)
            case ast.If():
                return self.branch(statement)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self.loop(statement)
            case ast.With() | ast.AsyncWith():
                return self.context(statement)
            case ast.Try() | ast.TryStar():
                return self.attempt(statement)
            case ast.Match():
                return self.cases(statement)
            case ast.Return(value=value):
                self.leave(value)
                return False
            case ast.Raise(exc=raised, cause=cause):
                self.sink(because(matches.VALUE_TESTED, how="raised"), *(self.value(e) for e in (raised, cause) if e))
                return False
            case ast.Continue() | ast.Break():
                self.jump(statement)
                return False
            case ast.Assert(test=test, msg=message):
                asserted = [self.value(e) for e in (test, message) if e]
                self.sink(because(matches.VALUE_TESTED, how="asserted"), *asserted)
                self.learn(asserted[0])
                self.effect()
            case ast.Delete(targets=targets):
                self.delete(statement, targets)
            case ast.Import() | ast.ImportFrom():
                self.imports(statement)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.define(statement)
            case ast.Pass() | ast.Global() | ast.Nonlocal() | ast.AnnAssign():
                pass
            case _:
                self.sink(because(matches.VALUE_READ_BY_STATEMENT), *(v for _, v in self.names.held()))
        return True

    def learn(self, asserted: Value) -> None:
        """`assert x.ndim == 4` tells how many dimensions there are from there on."""
        if asserted.op != "eq" or self.depth:
            return
        for asked, answer in (asserted.inputs, asserted.inputs[::-1]):
            counts = asked.op == "dim" or asked.op == ATTRIBUTE and asked.data == "ndim"
            if counts and answer.op == CONST and type(answer.data) is int:
                self.know(asked.inputs[0], rank=answer.data, number=False)

    # Leaving.

    def leave(self, node: ast.expr | None) -> None:
        result = self.value(node) if node else self.graph.const(None)
        self.returned = result
        if not self.inlining:
            self.out.returned = result
            self.sink(because(matches.VALUE_RETURNED), result)

    def jump(self, statement: ast.stmt) -> None:
        if self.loops:
            loop = self.loops[-1]
            exits = loop.continues if isinstance(statement, ast.Continue) else loop.breaks
            exits.append(self.changed(loop.mark))


__all__ = ["CapturedFunction", "capture"]
