"""Whether what a rule's class says of itself is what the loader, the engine and the reports read: one sentence if not.

Knows the attributes of rule.py; reads neither `before` nor `after`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Container

from autofuse.loading.examples import text_of
from autofuse.loading.functions import function_of, parameters_of
from autofuse.rule import CallRule, Fused, Kept, Rule, RuleError


def check_attributes(rule: type[Rule]) -> None:
    """Raise RuleError, naming the attribute and what to write, where one is not what it must be."""
    code: object = rule.code
    if not isinstance(code, str) or not re.fullmatch(r"[A-Z]+[0-9]+", code):
        raise RuleError(f"{rule.__name__}.code is {code!r}. Write capital letters and digits, such as MY101.")
    if isinstance(rule.benefit, bool) or not isinstance(rule.benefit, (int, float)):
        raise RuleError(f"{rule.__name__}.benefit is {rule.benefit!r}. Write a number.")
    _check_where(rule)
    _check_examples(rule)
    if not issubclass(rule, CallRule):
        _check_parameters(rule)


def check_code_is_free(rule: type[Rule], shipped: Container[str]) -> None:
    """Raise RuleError where a rule of a user's has the code of one that ships."""
    if rule.code in shipped:
        raise RuleError(
            f"{rule.__name__}.code is {rule.code}, the code of a rule that ships with autofuse. Use letters of your "
            "own, such as MY101."
        )


def _check_where(rule: type[Rule]) -> None:
    name = "at" if issubclass(rule, CallRule) else "where"
    asked = getattr(rule, name)
    try:
        inspect.signature(asked).bind(None)
    except (TypeError, ValueError) as error:
        raise RuleError(
            f"{rule.__name__}.{name} does not take one argument. Write `@staticmethod` over it, and one parameter."
        ) from error


def _check_examples(rule: type[Rule]) -> None:
    """Each example is one of the two kinds, and Python."""
    if not isinstance(rule.examples, (tuple, list)):
        raise RuleError(f"{rule.__name__}.examples is no tuple. Write `examples = (Fused(...), Kept(...))`.")
    for example in rule.examples:
        if not isinstance(example, (Fused, Kept)):
            raise RuleError(f"{rule.__name__}.examples holds {example!r}. Write Fused(...) or Kept(...).")
        try:
            ast.parse(text_of(example))
        except SyntaxError as error:
            raise RuleError(
                f"{rule.__name__}, example “{example.why}”: line {error.lineno} is not Python ({error.msg}): "
                f"`{(error.text or '').strip()}`."
            ) from error


def _check_parameters(rule: type[Rule]) -> None:
    """Raise RuleError where `before` takes arguments that have no name of their own, or `after` takes others."""
    for name in ("before", "after"):
        function_of(rule, name)
        for p in inspect.signature(getattr(rule, name)).parameters.values():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise RuleError(f"{rule.__name__}.{name} takes `{p}`. Give each parameter a name of its own.")
    known = {*parameters_of(rule), *rule.fixed}
    for taken in inspect.signature(rule.after).parameters:
        if taken not in known:
            raise RuleError(
                f"{rule.__name__}.after takes `{taken}`, which `before` does not have: nothing says what it is. "
                f"`before` has {', '.join(sorted(known))}."
            )
