"""Inlines helpers and submodules: the body of the called function becomes part of the graph.

This class decides which function a call runs and binds its arguments. Its body is read like any other code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from autofuse.ir.graph import ATTRIBUTE, Value
from autofuse.ir.steps import spend
from autofuse.source.capture.bindings import Function, bound_names, free_names
from autofuse.source.capture.capture_state import CaptureState
from autofuse.source.capture.children import Child
from autofuse.source.capture.helpers import bind_arguments


class Inlining(CaptureState):
    """Reads the bodies of called functions."""

    def is_self(self, node: ast.expr) -> bool:
        """Whether an expression is the name of the instance."""
        return isinstance(node, ast.Name) and node.id == self.instance_name

    def find_helper(self, function: ast.expr) -> Function | None:
        """Return the function or method of this file that the expression `function` names."""
        match function:
            case ast.Name(id=name) if (held := self.names.get(name)) in self.nested_functions and held is not None:
                return self.nested_functions[held]
            case ast.Name(id=name) if name not in self.local_names:
                return self.scope.functions.get(name)
            case ast.Attribute(value=value, attr=name) if self.is_self(value):
                return self.scope.method(self.owner, name)
        return None

    def inline_helper(
        self, helper: Function, function: Value, arguments: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """Return the result of a helper, such as `exists(x)`, `max_neg_value(t)` or `self._norm(x)`.

        Returns:
            The result, or None if the helper cannot be inlined.
        """
        if len(self.inline_stack) > 3 or helper in self.inline_stack or not self.scope.can_inline(helper):
            return None
        is_method = function.op == ATTRIBUTE and not any(
            isinstance(d, ast.Name) and d.id == "staticmethod" for d in helper.decorator_list
        )
        positional = [function.inputs[0], *arguments] if is_method else arguments
        bound = bind_arguments(helper, positional, named, self.graph.const)
        if bound is None:
            return None
        inner = type(self)(self.scope, self.owner if is_method else None, self.captured, in_helper=True)
        inner.instance_value, inner.in_other_file = self.instance_value if is_method else None, self.in_other_file
        return self.read_inlined_body(inner, helper, bound)

    def inline_child(
        self, child: Child, module: Value, arguments: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """Return the result of a submodule with a class of the project; None if it cannot be inlined.

        Args:
            child: The class of the submodule.
            module: The submodule.
            arguments: The positional arguments of the call.
            named: The keyword arguments of the call.
        """
        if len(self.inline_stack) > 3 or child.forward in self.inline_stack:
            return None
        bound = bind_arguments(child.forward, [module, *arguments], named, self.graph.const)
        if bound is None:
            return None
        inner = type(self)(child.scope, child.owner, self.captured, in_helper=True)
        in_other_file = self.in_other_file or child.scope.tree is not self.scope.tree
        inner.instance_value, inner.in_other_file = module, in_other_file
        return self.read_inlined_body(inner, child.forward, bound)

    def read_inlined_body(self, inner: Inlining, helper: Function, bound: dict[str, Value]) -> Value | None:
        """Read the body of `helper` with `inner`, and return the value that it returns.

        Args:
            inner: The state for the body.
            helper: The called function.
            bound: The value of each parameter.
        """
        spend(10)
        inner.instance_name = helper.args.args[0].arg if inner.instance_value is not None else None
        inner.inline_stack, inner.facts = (*self.inline_stack, helper), self.facts
        inner.local_names = bound_names(helper)
        inner.region, inner.statement, inner.before = self.region, self.statement, self.before
        inner.branch_start, inner.current_call = self.branch_start, self.current_call
        if helper in self.local_helpers:
            self.share_enclosing_names(inner, helper)
        for name, v in bound.items():
            inner.bind_name(name, v)
        written = len(self.graph.writes)
        result = inner.read_body(helper.body)
        self.apply_helper_writes(written)
        return result

    def share_enclosing_names(self, inner: Inlining, helper: Function) -> None:
        """Give a nested function the current values of the names that it reads from this function."""
        inner.local_helpers, inner.nested_functions = self.local_helpers, self.nested_functions
        for name in sorted(free_names(helper) & {*self.local_names, *(n for n, _ in self.names.items())}):
            inner.bind_name(name, self.lookup(name) or self.unknown_value("unbound"))
        if self.instance_name in free_names(helper):
            inner.instance_name, inner.owner = self.instance_name, self.owner

    def read_body(self, body: Iterable[ast.stmt]) -> Value | None:
        """Read statements, and return the value that they return."""
        raise NotImplementedError
