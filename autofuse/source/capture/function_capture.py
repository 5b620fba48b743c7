"""Captures the dataflow graph of a function from its syntax tree.

The capture reads the statements in program order and tracks the value of each name:

- After a branch, a name that the branch changes holds a CHOICE of both values.
- At the start of a loop, a name that the loop changes holds an opaque value.
- For each value, the capture records its positions in the text, and the values of all names there. The codemod needs
  this to write code.

Code that the capture does not understand is never dropped. The values that it reads escape, or become inputs of its
result.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from autofuse.ir.graph import ATTRIBUTE, CONST, PARAMETER, Value
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.source.capture.bindings import (
    Function,
    bound_names,
    declared_names,
    free_names,
    functions_only_called,
    nested_scopes,
)
from autofuse.source.capture.blocks import Blocks
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.module_attributes import is_number_argument
from autofuse.source.capture.name_table import NameSnapshot
from autofuse.source.capture.scope import ClassScope, FileScope, self_name
from autofuse.source.capture.syntax import walk
from autofuse.source.capture.toplevel import SYMBOL, exported_names, global_names


def capture(
    function: Function, scope: FileScope, owner: ClassScope | None = None, instance_name: str | None = None,
    module_parameters: Iterable[tuple[str, ast.expr]] = (),
) -> CapturedFunction:  # fmt: skip
    """Return the graph of a function and the positions of its values.

    Args:
        function: The function.
        scope: The names that the function sees.
        owner: The class, if the function is a method or is nested in a method.
        instance_name: For a function nested in a method, the name of the instance in the method.
        module_parameters: Parameters that are modules, each with the expression that constructs the module.
    """
    statements = _Statements(scope, owner, CapturedFunction(function))
    statements.module_parameters = dict(module_parameters)
    statements.bind_parameters(function, instance_name)
    statements.read_block(function.body)
    statements.escape_exported_names(function)
    return statements.captured


class _Statements(Blocks):
    """Reads statements. Methods that return a bool say whether execution can continue after the statement."""

    returned: Value | None = None

    def bind_parameters(self, function: Function, outer_instance: str | None) -> None:
        """Bind the parameters of the function, and find the names that nested functions share with it.

        Args:
            function: The function.
            outer_instance: For a function nested in a method, the name of the instance in the method.
        """
        arguments = function.args
        self.instance_name = outer_instance or (self_name(function) if self.owner else None)
        self.local_names, self.declared_names = bound_names(function), declared_names(function)
        if outer_instance and outer_instance in self.local_names:
            self.instance_name = self.owner = None  # the function rebinds the name, so it cannot see the instance
        elif outer_instance:
            self.bind_name(outer_instance, self.graph.value(PARAMETER, data=outer_instance))
        # Other files may call the functions of a module, so these are not local helpers.
        nested = functions_only_called(function) if function.name != SYMBOL else ()
        self.local_helpers = frozenset(f for f in nested if self.scope.can_inline(f))
        for inner in nested_scopes(function.body):
            if inner in self.local_helpers:
                continue
            self.closure_names |= free_names(inner)
            if isinstance(inner, Function):
                self.names_rebound_by_nested |= {n for s in walk(inner) if isinstance(s, ast.Nonlocal) for n in s.names}
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        count = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
        required = named[:count]
        for a in [*named, *filter(None, (arguments.vararg, arguments.kwarg))]:
            value = self.graph.value(PARAMETER, data=a.arg)
            self.bind_name(a.arg, value)
            number = is_number_argument(arguments, a.arg)
            if number is None and self.instance_name and function.name == "forward" and a in required:
                number = False  # the required arguments of a module are tensors
            if a.arg == self.instance_name:
                self.instance_value = value
            elif number is not None:
                self.add_facts(value, number=number)

        if function.name == SYMBOL:
            self.local_names -= {*self.scope.functions, *self.scope.classes}
            self.names_rebound_by_nested |= global_names(function.body)

    def escape_exported_names(self, function: Function) -> None:
        """At the top level of a file, let the values escape that other files may import."""
        if function.name == SYMBOL:
            exported = (self.names.get(name) for name in sorted(exported_names(function.body)))
            self.add_escape(because(matches.VALUE_EXPORTED), *filter(None, exported))

    def read_body(self, body: Iterable[ast.stmt]) -> Value | None:
        """Read statements, and return the value that they return."""
        self.read_block(body)
        return self.returned

    def read_block(self, body: Iterable[ast.stmt]) -> bool:
        """Read statements in order, up to one that leaves the block."""
        return all(self.read_statement(statement) for statement in body)

    def read_statement(self, statement: ast.stmt) -> bool:
        """Read one statement of any kind."""
        if not self.in_helper:
            self.statement, self.before = statement, NameSnapshot(self.names, self.names.mark)
            self.captured.before[statement] = self.before
        match statement:
            case ast.Assign(targets=targets, value=value):
                self.read_assignment(targets, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.read_assignment([target], value)
            case ast.AugAssign(target=target, op=op, value=value):
                self.read_augmented_assignment(target, op, value)
            case ast.Expr(value=value):
                self.read_expression_statement(value)
            case ast.If():
                return self.read_if(statement)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self.read_loop(statement)
            case ast.With() | ast.AsyncWith():
                return self.read_with(statement)
            case ast.Try() | ast.TryStar():
                return self.read_try(statement)
            case ast.Match():
                return self.read_match(statement)
            case ast.Return(value=value):
                self.read_return(value)
                return False
            case ast.Raise(exc=raised, cause=cause):
                self.add_escape(
                    because(matches.VALUE_TESTED, how="raised"), *(self.value(e) for e in (raised, cause) if e)
                )
                return False
            case ast.Continue() | ast.Break():
                self.read_jump(statement)
                return False
            case ast.Assert(test=test, msg=message):
                asserted = [self.value(e) for e in (test, message) if e]
                self.add_escape(because(matches.VALUE_TESTED, how="asserted"), *asserted)
                self.learn_from_assertion(asserted[0])
                self.record_effect()
            case ast.Delete(targets=targets):
                self.read_delete(statement, targets)
            case ast.Import() | ast.ImportFrom():
                self.read_import(statement)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.read_definition(statement)
            case ast.Pass() | ast.Global() | ast.Nonlocal() | ast.AnnAssign():
                pass
            case _:
                self.add_escape(because(matches.VALUE_READ_BY_STATEMENT), *(v for _, v in self.names.items()))
        return True

    def learn_from_assertion(self, asserted: Value) -> None:
        """Record the rank of `x` after `assert x.ndim == 4`."""
        if asserted.op != "eq" or self.branch_depth:
            return
        for left, right in (asserted.inputs, asserted.inputs[::-1]):
            is_rank = left.op == "dim" or left.op == ATTRIBUTE and left.data == "ndim"
            if is_rank and right.op == CONST and type(right.data) is int:
                self.add_facts(left.inputs[0], rank=right.data, number=False)

    # Statements that leave a block.

    def read_return(self, node: ast.expr | None) -> None:
        result = self.value(node) if node else self.graph.const(None)
        self.returned = result
        if not self.inline_stack:
            self.captured.returned = result
            self.add_escape(because(matches.VALUE_RETURNED), result)

    def read_jump(self, statement: ast.stmt) -> None:
        if self.loops:
            loop = self.loops[-1]
            exits = loop.continues if isinstance(statement, ast.Continue) else loop.breaks
            exits.append(self.changed_names(loop.mark))


__all__ = ["CapturedFunction", "capture"]
