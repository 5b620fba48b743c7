"""Reads a rule's `before`: a canonical pattern, or a sentence on what in it cannot be looked for.

Knows what a pattern must have so that it can ever match; runs nothing.
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
from autofuse.source.capture.capture_state import qualified
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import FileScope

_TABLE = (
    "Write it with operations that are in the table of autofuse/ir/vocabulary.py, or add a row there: one line says "
    "what the operation is called and what it takes"
)


def pattern_of(rule: type[Rule], function: ast.FunctionDef, scope: FileScope) -> Pattern:
    """`before` as a canonical pattern, its names resolved by the imports of the rule's own file."""
    _check_straight(rule, function)
    captured = capture(function, scope)
    if captured.returned is None:
        raise RuleError(f"{rule.__name__}.before returns nothing. End it with `return`.")
    view = View(Facts(captured.known))
    for v in captured.graph.values:
        view.of(v)
    returned = view.of(captured.returned)
    results = returned.inputs if returned.op == TUPLE else (returned,)
    defaults = {
        name: view.const(_default(rule, name, p.default))
        for name, p in parameters_of(rule).items()
        if p.default is not inspect.Parameter.empty
    }
    steps = sum(map(_is_computed, ancestors(captured.returned)))
    _check_known(rule, results)
    _check_computes(rule, results[-1], steps)
    _check_used(rule, results)
    _check_nested(rule, results)
    _check_sizes(rule, results)
    return Pattern(results, defaults, steps, _askable(rule))


def _askable(rule: type[Rule]) -> frozenset[str]:
    """The parameters that a `where` may ask about: the rule's own, and those of rules that may share it."""
    beside = (c for c in vars(sys.modules[rule.__module__]).values() if inspect.isclass(c) and issubclass(c, Rule))
    read = [r for r in (rule, *beside) if hasattr(r, "before")]
    return frozenset(name for r in read for name in inspect.signature(r.before).parameters)


def _check_straight(rule: type[Rule], function: ast.FunctionDef) -> None:
    """Raise RuleError at a statement that a pattern cannot hold: it would be read as if it were not there."""
    documented = ast.get_docstring(function) is not None
    for statement in function.body[documented:]:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Pass)):
            first = ast.unparse(statement).partition("\n")[0]
            raise RuleError(
                f"{rule.__name__}.before has the statement `{first}`. It may hold assignments and one `return`: code "
                "that branches or loops is looked for in a rule for each way through it."
            )
        if isinstance(statement, ast.Return) and statement is not function.body[-1]:
            raise RuleError(f"{rule.__name__}.before goes on after its first `return`. Take out what follows.")


def _check_nested(rule: type[Rule], results: tuple[Value, ...]) -> None:
    """Raise RuleError where a result is no step towards the last one: a match is found by what it ends in."""
    steps = set(ancestors(results[-1]))
    for number, result in enumerate(results[:-1], 1):
        if result not in steps or result is results[-1]:
            raise RuleError(
                f"{rule.__name__}.before returns several values, and the last one is not computed from number "
                f"{number}, as a norm is from the sum that is returned with it. Only such are found: return the others "
                "first, or write a rule for each."
            )


def _default(rule: type[Rule], name: str, default: object) -> Hashable:
    if not isinstance(default, Hashable):
        raise RuleError(
            f"{rule.__name__}.before gives `{name}` the default {default!r}. Write a number, a string, a tuple, a bool "
            "or None."
        )
    return default


def _check_known(rule: type[Rule], results: tuple[Value, ...]) -> None:
    """Raise RuleError where a step is nothing that the vocabulary names: it would never be found."""
    for v in (v for r in results for v in ancestors(r)):
        leaf = v.inputs[0] if v.op == ATTRIBUTE and v.inputs[0].op == LEAF else v
        if leaf.op != LEAF:
            continue
        assert isinstance(leaf.data, Value), "a leaf stands for a value of the program"
        name = f"{qualified(leaf.data)}.{v.data}" if leaf is not v else ""
        told = f"{name} as a value, which no match can tell" if leaf.data.op == MODULE else _unknown(leaf.data)
        raise RuleError(f"{rule.__name__}.before uses {told}. {_TABLE}.")


def _unknown(v: Value) -> str:
    """What a value that the canonical form does not look into is called, and what is wrong with it."""
    if v.op == CALL and isinstance(v.data, tuple):
        name = str(v.data[0])
        if (unbound := _unbound(v)) is not None:
            return f"{unbound}{name}, and its file does not import {unbound}"
        if name.startswith(".") and name[1:] in OPS or name in OPS or _spelled(name):
            return f"{name} with arguments that the vocabulary does not give it"
        return f"{name}, which is not in the vocabulary"
    if v.op == GLOBAL:
        return f"{v.data}, which its file neither imports nor assigns a number"
    if v.op == OPAQUE:
        return f"what cannot be followed ({v.data})"
    return f"an expression that cannot be looked for ({v.data if v.op == SYNTAX else v.op})"


def _unbound(call: Value) -> object:
    """The name that a function is called by, `torch` of `torch.tanh(x)`, where the file says nothing of it."""
    owner = call.inputs[0] if call.inputs else call
    while owner.op == ATTRIBUTE:
        owner = owner.inputs[0]
    return owner.data if owner.op == GLOBAL else None


def _spelled(name: str) -> bool:
    return any(name in op.names for op in OPS.values())


_LAYS_OUT = frozenset({PERMUTE, CAST, PARAMETER, CONST, ATTRIBUTE, ITEM, TUPLE})


def _check_computes(rule: type[Rule], root: Value, steps: int) -> None:
    """Raise RuleError where a match would replace nothing that is computed."""
    if root.op in _LAYS_OUT or not steps:
        raise RuleError(
            f"{rule.__name__}.before ends in what computes nothing, such as a transposition, a cast, or what it was "
            f"given ({root.op}). Let it return the result of a computation."
        )


def _check_used(rule: type[Rule], results: tuple[Value, ...]) -> None:
    """Raise RuleError where a parameter cannot be told from a match."""
    used = {v.data for r in results for v in ancestors(r) if v.op == PARAMETER}
    for name in parameters_of(rule):
        if name not in used:
            raise RuleError(
                f"{rule.__name__}.before does not compute with its parameter `{name}`, so no match says what it is. "
                "Use it, or leave it out."
            )


def _check_sizes(rule: type[Rule], results: tuple[Value, ...]) -> None:
    """Raise RuleError where `after` passes on the sizes of a norm: a match keeps only how many dimensions they are."""
    passed_on = {n.id for n in ast.walk(function_of(rule, "after")) if isinstance(n, ast.Name)}
    for v in (v for r in results for v in ancestors(r)):
        if v.op in ("layer_norm", "rms_norm") and v.inputs[1].op == PARAMETER and v.inputs[1].data in passed_on:
            raise RuleError(
                f"{rule.__name__}.before takes the normalized_shape of a norm as `{v.inputs[1].data}`, and a match "
                "says only how many dimensions that has. Write `x.shape[-1:]` for it, in `before` and in `after`, "
                "where x is what is normalised."
            )


def _is_computed(v: Value) -> bool:
    return v.op in OPS and OPS[v.op].effect in ("pure", "random")
