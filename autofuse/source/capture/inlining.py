"""Helpers and children that are read as if written where they are called.

Knows which functions a call may name, and what they are given. What their bodies compute is read as any text is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from autofuse.ir.graph import ATTRIBUTE, Value
from autofuse.ir.steps import spend
from autofuse.source.capture.bindings import Function, bound_names, free_names
from autofuse.source.capture.capture_state import CaptureState
from autofuse.source.capture.children import Child
from autofuse.source.capture.helpers import arguments_of


class Inlining(CaptureState):
    """Reads the bodies of functions that are called."""

    def is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.me

    def helper(self, function: ast.expr) -> Function | None:
        """The function or method of this file that `function` names."""
        match function:
            case ast.Name(id=name) if (held := self.names.get(name)) in self.inner_functions and held is not None:
                return self.inner_functions[held]
            case ast.Name(id=name) if name not in self.local:
                return self.scope.functions.get(name)
            case ast.Attribute(value=value, attr=name) if self.is_self(value):
                return self.scope.method(self.owner, name)
        return None

    def inline(
        self, helper: Function, function: Value, arguments: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """What a helper that is straight-line code computes: `exists(x)`, `max_neg_value(t)`, `self._norm(x)`."""
        if len(self.inlining) > 3 or helper in self.inlining or not self.scope.helper(helper):
            return None
        is_method = function.op == ATTRIBUTE and not any(
            isinstance(d, ast.Name) and d.id == "staticmethod" for d in helper.decorator_list
        )
        given = [function.inputs[0], *arguments] if is_method else arguments
        bound = arguments_of(helper, given, named, self.graph.const)
        if bound is None:
            return None
        inner = type(self)(self.scope, self.owner if is_method else None, self.out, quiet=True)
        inner.instance, inner.abroad = self.instance if is_method else None, self.abroad
        return self.run(inner, helper, bound)

    def enter_child(self, child: Child, module: Value, arguments: list[Value], named: dict[str, Value]) -> Value | None:
        """What a child of one of the project's own classes computes; `module` is the child."""
        if len(self.inlining) > 3 or child.forward in self.inlining:
            return None
        bound = arguments_of(child.forward, [module, *arguments], named, self.graph.const)
        if bound is None:
            return None
        inner = type(self)(child.scope, child.owner, self.out, quiet=True)
        inner.instance, inner.abroad = module, self.abroad or child.scope.tree is not self.scope.tree
        return self.run(inner, child.forward, bound)

    def run(self, inner: Inlining, helper: Function, bound: dict[str, Value]) -> Value | None:
        """The value that the body of `helper` returns, given its arguments, as `inner` reads it."""
        spend(10)
        inner.me = helper.args.args[0].arg if inner.instance is not None else None
        inner.inlining, inner.facts = (*self.inlining, helper), self.facts
        inner.local = bound_names(helper)
        inner.region, inner.statement, inner.before = self.region, self.statement, self.before
        inner.horizon, inner.calling = self.horizon, self.calling
        if helper in self.only_called:
            self.enclose(inner, helper)
        for name, v in bound.items():
            inner.hold(name, v)
        written = len(self.graph.writes)
        result = inner.result_of(helper.body)
        self.written_inside(written)
        return result

    def enclose(self, inner: Inlining, helper: Function) -> None:
        """Let a nested function see what it takes from around it, as it is now."""
        inner.only_called, inner.inner_functions = self.only_called, self.inner_functions
        for name in sorted(free_names(helper) & {*self.local, *(n for n, _ in self.names.held())}):
            inner.hold(name, self._held(name) or self.unknown("unbound"))
        if self.me in free_names(helper):
            inner.me, inner.owner = self.me, self.owner

    def result_of(self, body: Iterable[ast.stmt]) -> Value | None:
        raise NotImplementedError
