"""Reads the syntax of a rule's `before` and `after`, specialised for the parameters that the rule fixes.

Several rules can share one `before` with a parameter for the choice between them, such as
`F.layer_norm(...) if norm == "layer" else F.rms_norm(...)`. Each of these rules fixes the value of the parameter.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping

from autofuse.rule import Rule, RuleError, Scalar


def function_of(rule: type[Rule], name: str) -> ast.FunctionDef:
    """Return the syntax of a rule's `before` or `after`. Raises RuleError if the rule has no such function."""
    if not hasattr(rule, name):
        raise RuleError(f"{rule.__name__} has no `{name}`. A rule needs a `before` and an `after`.")
    # The source of a method is indented, which does not parse.
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(getattr(rule, name)))).body
    if not isinstance(node, ast.FunctionDef):
        raise RuleError(f"{rule.__name__}.{name} is not a function. Write it with `def`.")
    return specialise(node, rule.fixed)


def parameters_of(rule: type[Rule]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `before` that the rule does not fix. A match binds each of them."""
    return {n: p for n, p in inspect.signature(rule.before).parameters.items() if n not in rule.fixed}


def specialise(function: ast.FunctionDef, fixed: Mapping[str, Scalar]) -> ast.FunctionDef:
    """Return `function` with the parameters in `fixed` replaced by their values.

    Conditional expressions that depend only on these values are replaced by the selected branch. If such a value equals
    the default of its parameter, calls that pass the parameter on leave the argument out.
    """
    if not fixed:
        return function
    defaults = _defaults(function)
    at_default = {n for n, v in fixed.items() if n in defaults and defaults[n] == v}
    specialised = _Specialiser(fixed, at_default).visit(function)
    assert isinstance(specialised, ast.FunctionDef), "the transformer keeps the function"
    _remove_parameters(specialised.args, fixed)
    return ast.fix_missing_locations(specialised)


def _defaults(function: ast.FunctionDef) -> dict[str, object]:
    """Return the literal defaults of a function's parameters."""
    positional = [*function.args.posonlyargs, *function.args.args]
    # Defaults belong to the last parameters, so both lists are read from their ends.
    of_positional = [*zip(positional[::-1], function.args.defaults[::-1], strict=False)]
    of_keywords = [(a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d]
    return {a.arg: d.value for a, d in (*of_positional, *of_keywords) if isinstance(d, ast.Constant)}


def _remove_parameters(arguments: ast.arguments, names: Iterable[str]) -> None:
    """Remove parameters and their defaults from a signature in place."""
    first_default = len(arguments.args) - len(arguments.defaults)
    pairs = [
        (a, arguments.defaults[i - first_default] if i >= first_default else None) for i, a in enumerate(arguments.args)
    ]
    pairs = [(a, d) for a, d in pairs if a.arg not in names]
    arguments.args, arguments.defaults = [a for a, _ in pairs], [d for _, d in pairs if d is not None]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    kept = [(a, d) for a, d in keywords if a.arg not in names]
    arguments.kwonlyargs, arguments.kw_defaults = [a for a, _ in kept], [d for _, d in kept]


class _Specialiser(ast.NodeTransformer):
    """Replaces fixed parameters by their values.

    Args:
        fixed: The values by parameter.
        left_out: The parameters that calls leave out.
    """

    def __init__(self, fixed: Mapping[str, Scalar], left_out: Iterable[str]) -> None:
        self.fixed, self.left_out = fixed, frozenset(left_out)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.fixed and isinstance(node.ctx, ast.Load):  # a number cannot be assigned to
            return ast.copy_location(ast.Constant(self.fixed[node.id]), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [a for a in node.args if not self._is_left_out(a)]
        node.keywords = [k for k in node.keywords if not self._is_left_out(k.value)]
        return self.generic_visit(node)

    def _is_left_out(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.left_out

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        result = _evaluate_test(node.test)
        return node if result is None else node.body if result else node.orelse


def _evaluate_test(test: ast.expr) -> bool | None:
    """Return the value of a test of literals; None for any other test."""
    match test:
        case ast.Constant(value=bool() as value):
            return value
        case ast.Compare(left=ast.Constant(value=left), ops=[ast.Eq()], comparators=[ast.Constant(value=right)]):
            return bool(left == right)
        case ast.Compare(left=ast.Constant(value=left), ops=[ast.NotEq()], comparators=[ast.Constant(value=right)]):
            return bool(left != right)
    return None
