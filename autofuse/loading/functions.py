"""A rule's `before` and `after` as syntax, as they read for what the rule fixes.

Rules that differ in a choice share one `before`, which asks for it: `F.layer_norm(...) if norm == "layer" else
F.rms_norm(...)`; each fixes its own. Knows syntax; knows nothing of what is chosen.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping

from autofuse.rule import Rule, RuleError, Scalar


def function_of(rule: type[Rule], name: str) -> ast.FunctionDef:
    """The syntax of a rule's `before` or `after`. Raises RuleError where there is none."""
    if not hasattr(rule, name):
        raise RuleError(f"{rule.__name__} has no `{name}`. A rule needs a `before` and an `after`.")
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(getattr(rule, name)))).body
    if not isinstance(node, ast.FunctionDef):
        raise RuleError(f"{rule.__name__}.{name} is not a function. Write it with `def`.")
    return specialised(node, rule.fixed)


def parameters_of(rule: type[Rule]) -> Mapping[str, inspect.Parameter]:
    """What the code may put into `before`: its parameters but for those that the rule fixes."""
    return {n: p for n, p in inspect.signature(rule.before).parameters.items() if n not in rule.fixed}


def specialised(function: ast.FunctionDef, fixed: Mapping[str, Scalar]) -> ast.FunctionDef:
    """`function` with the parameters that are `fixed` taken out, and the branches that they decide taken.

    An argument that is passed on under a name and has the default of its parameter is left out of the call.
    """
    if not fixed:
        return function
    defaults = _defaults(function)
    made = _Specialised(fixed, {n for n, v in fixed.items() if n in defaults and defaults[n] == v}).visit(function)
    assert isinstance(made, ast.FunctionDef), "a function stays one"
    _without(made.args, fixed)
    return ast.fix_missing_locations(made)


def _defaults(function: ast.FunctionDef) -> dict[str, object]:
    """The literal defaults of a function's parameters."""
    positional = [*function.args.posonlyargs, *function.args.args]
    given = [*zip(positional[::-1], function.args.defaults[::-1], strict=False)]
    named = [(a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d]
    return {a.arg: d.value for a, d in (*given, *named) if isinstance(d, ast.Constant)}


def _without(arguments: ast.arguments, names: Iterable[str]) -> None:
    """Take parameters out of a signature, with their defaults."""
    left = len(arguments.args) - len(arguments.defaults)
    pairs = [(a, arguments.defaults[i - left] if i >= left else None) for i, a in enumerate(arguments.args)]
    pairs = [(a, d) for a, d in pairs if a.arg not in names]
    arguments.args, arguments.defaults = [a for a, _ in pairs], [d for _, d in pairs if d is not None]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    kept = [(a, d) for a, d in named if a.arg not in names]
    arguments.kwonlyargs, arguments.kw_defaults = [a for a, _ in kept], [d for _, d in kept]


class _Specialised(ast.NodeTransformer):
    def __init__(self, fixed: Mapping[str, Scalar], left_out: Iterable[str]) -> None:
        self.fixed, self.left_out = fixed, frozenset(left_out)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.fixed and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Constant(self.fixed[node.id]), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [a for a in node.args if not self._left_out(a)]
        node.keywords = [k for k in node.keywords if not self._left_out(k.value)]
        return self.generic_visit(node)

    def _left_out(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.left_out

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        answer = _answer(node.test)
        return node if answer is None else node.body if answer else node.orelse


def _answer(test: ast.expr) -> bool | None:
    """What a test of literals comes to."""
    match test:
        case ast.Constant(value=bool() as value):
            return value
        case ast.Compare(left=ast.Constant(value=left), ops=[ast.Eq()], comparators=[ast.Constant(value=right)]):
            return bool(left == right)
        case ast.Compare(left=ast.Constant(value=left), ops=[ast.NotEq()], comparators=[ast.Constant(value=right)]):
            return bool(left != right)
    return None
