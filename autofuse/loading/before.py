"""Reads the `before` of a rule as a canonical pattern, and rejects patterns that can never match.

The code of `before` is captured and does not run.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Hashable

from autofuse.canonical import CAST, LEAF, PERMUTE, View
from autofuse.ir.facts import Facts
from autofuse.ir.graph import (
    ATTRIBUTE,
    CALL,
    CONST,
    GLOBAL,
    ITEM,
    MODULE,
    OPAQUE,
    PARAMETER,
    SYNTAX,
    TUPLE,
    Value,
    ancestors,
)
from autofuse.ir.vocabulary import OPS
from autofuse.loading.functions import function_of, parameters_of
from autofuse.match.pattern import Pattern
from autofuse.rule import Rule, RuleError
from autofuse.source.capture.capture_state import qualified_name
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import FileScope

_TABLE = (
    "Write it with operations of the vocabulary (autofuse/ir/vocabulary.py), or add a row there with the names and "
    "parameters of the operation"
)


def read_pattern(rule: type[Rule], function: ast.FunctionDef, scope: FileScope) -> Pattern:
    """Read the `before` of a rule.

    Args:
        rule: The rule.
        function: The syntax of its `before`.
        scope: The names of the file that defines the rule.

    Raises:
        RuleError: The pattern can never match. The message says what to change.
    """
    _check_statements(rule, function)
    captured = capture(function, scope)
    if captured.returned is None:
        raise RuleError(f"{rule.__name__}.before returns nothing. End it with `return`.")
    view = View(Facts(captured.known))
    for v in captured.graph.values:
        view.of(v)
    returned = view.of(captured.returned)
    results = returned.inputs if returned.op == TUPLE else (returned,)
    defaults = {
        name: view.const(_check_default(rule, name, p.default))
        for name, p in parameters_of(rule).items()
        if p.default is not inspect.Parameter.empty
    }
    steps = sum(map(_is_computed, ancestors(captured.returned)))
    _check_known(rule, results)
    _check_computes(rule, results[-1], steps)
    _check_used(rule, results)
    _check_nested(rule, results)
    _check_sizes(rule, results)
    return Pattern(results, defaults, steps, _names_for_where(rule))


def _names_for_where(rule: type[Rule]) -> frozenset[str]:
    """Return the parameters that a `where` may ask about.

    Rules of one file may share a `where`. So the parameters of all rules in the file are included.
    """
    rules_of_module = (
        c for c in vars(sys.modules[rule.__module__]).values() if inspect.isclass(c) and issubclass(c, Rule)
    )
    rules = [r for r in (rule, *rules_of_module) if hasattr(r, "before")]
    return frozenset(name for r in rules for name in inspect.signature(r.before).parameters)


def _check_statements(rule: type[Rule], function: ast.FunctionDef) -> None:
    """Raise RuleError if `before` has a statement that cannot be part of a pattern, such as a loop."""
    has_docstring = ast.get_docstring(function) is not None
    for statement in function.body[has_docstring:]:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Pass)):
            first = ast.unparse(statement).partition("\n")[0]
            raise RuleError(
                f"{rule.__name__}.before has the statement `{first}`. It may contain assignments and one `return`. For "
                "code with branches, write one rule for each branch."
            )
        if isinstance(statement, ast.Return) and statement is not function.body[-1]:
            raise RuleError(f"{rule.__name__}.before has statements after its first `return`. Remove them.")


def _check_nested(rule: type[Rule], results: tuple[Value, ...]) -> None:
    """Raise RuleError if a result is not used to compute the last result. A match is searched from the last result."""
    steps = set(ancestors(results[-1]))
    for number, result in enumerate(results[:-1], 1):
        if result not in steps or result is results[-1]:
            raise RuleError(
                f"{rule.__name__}.before returns several values, and the last value is not computed from value "
                f"{number}. A match must compute its last value from all others. Change the order of the values, or "
                "write one rule for each."
            )


def _check_default(rule: type[Rule], name: str, default: object) -> Hashable:
    """Return the default of a parameter. Raises RuleError if it is not hashable."""
    if not isinstance(default, Hashable):
        raise RuleError(
            f"{rule.__name__}.before has the default {default!r} for `{name}`. Write a number, a string, a tuple, a "
            "bool or None."
        )
    return default


def _check_known(rule: type[Rule], results: tuple[Value, ...]) -> None:
    """Raise RuleError if `before` uses an operation that is not in the vocabulary, so that it would never match."""
    for v in (v for r in results for v in ancestors(r)):
        leaf = v.inputs[0] if v.op == ATTRIBUTE and v.inputs[0].op == LEAF else v
        if leaf.op != LEAF:
            continue
        assert isinstance(leaf.data, Value), "a leaf represents a value of the program"
        name = f"{qualified_name(leaf.data)}.{v.data}" if leaf is not v else ""
        description = (
            f"{name} as a value, which cannot be matched" if leaf.data.op == MODULE else _describe_unknown(leaf.data)
        )
        raise RuleError(f"{rule.__name__}.before uses {description}. {_TABLE}.")


def _describe_unknown(v: Value) -> str:
    """Return the name of a value that cannot be matched, and what is wrong with it."""
    if v.op == CALL and isinstance(v.data, tuple):
        name = str(v.data[0])
        if (unbound := _missing_import(v)) is not None:
            return f"{unbound}{name}, and its file does not import {unbound}"
        if name.startswith(".") and name[1:] in OPS or name in OPS or _is_operation_name(name):
            return f"{name} with arguments that the vocabulary does not list"
        return f"{name}, which is not in the vocabulary"
    if v.op == GLOBAL:
        return f"{v.data}, which its file neither imports nor assigns a number"
    if v.op == OPAQUE:
        return f"code that autofuse does not understand ({v.data})"
    return f"an expression that cannot be matched ({v.data if v.op == SYNTAX else v.op})"


def _missing_import(call: Value) -> object:
    """Return the first name of a called function, such as `torch` of `torch.tanh(x)`, if the file does not bind it."""
    owner = call.inputs[0] if call.inputs else call
    while owner.op == ATTRIBUTE:
        owner = owner.inputs[0]
    return owner.data if owner.op == GLOBAL else None


def _is_operation_name(name: str) -> bool:
    return any(name in op.names for op in OPS.values())


# Operations that only select or arrange values.
_COMPUTE_NOTHING = frozenset({PERMUTE, CAST, PARAMETER, CONST, ATTRIBUTE, ITEM, TUPLE})


def _check_computes(rule: type[Rule], root: Value, steps: int) -> None:
    """Raise RuleError if a match would replace no computation."""
    if root.op in _COMPUTE_NOTHING or not steps:
        raise RuleError(
            f"{rule.__name__}.before returns a value that is not computed, such as a transposed tensor, a cast or a "
            f"parameter ({root.op}). Let it return the result of a computation."
        )


def _check_used(rule: type[Rule], results: tuple[Value, ...]) -> None:
    """Raise RuleError if a match does not determine the value of a parameter."""
    used = {v.data for r in results for v in ancestors(r) if v.op == PARAMETER}
    for name in parameters_of(rule):
        if name not in used:
            raise RuleError(
                f"{rule.__name__}.before does not use its parameter `{name}`, so a match does not determine its value. "
                "Use it, or remove it."
            )


def _check_sizes(rule: type[Rule], results: tuple[Value, ...]) -> None:
    """Raise RuleError if `after` uses the sizes of a norm. A match determines only the number of these sizes."""
    passed_on = {n.id for n in ast.walk(function_of(rule, "after")) if isinstance(n, ast.Name)}
    for v in (v for r in results for v in ancestors(r)):
        if v.op in ("layer_norm", "rms_norm") and v.inputs[1].op == PARAMETER and v.inputs[1].data in passed_on:
            raise RuleError(
                f"{rule.__name__}.before takes the normalized_shape of a norm as `{v.inputs[1].data}`, but a match "
                "determines only the number of its dimensions. Write `x.shape[-1:]` instead, in `before` and in "
                "`after`, where x is the normalized tensor."
            )


def _is_computed(v: Value) -> bool:
    return v.op in OPS and OPS[v.op].effect in ("pure", "random")
