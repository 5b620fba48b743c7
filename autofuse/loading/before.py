"""Reads a rule's `before`: a canonical pattern, or a sentence on what in it cannot be looked for.

Knows what a pattern must have so that it can ever match; runs nothing.
"""

from __future__ import annotations

import ast
import inspect
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
from autofuse.loading.functions import parameters_of
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
    return Pattern(results, defaults, steps)


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
        if name.startswith(".") and name[1:] in OPS or name in OPS or _spelled(name):
            return f"{name} with arguments that the vocabulary does not give it"
        return f"{name}, which is not in the vocabulary"
    if v.op == GLOBAL:
        return f"{v.data}, which its file neither imports nor assigns a number"
    if v.op == OPAQUE:
        return f"what cannot be followed ({v.data})"
    return f"an expression that cannot be looked for ({v.data if v.op == SYNTAX else v.op})"


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


def _is_computed(v: Value) -> bool:
    return v.op in OPS and OPS[v.op].effect in ("pure", "random")
