"""Checks the attributes of a rule's class: code, benefit, `where`, parameters and examples.

A wrong attribute is reported in one sentence. This module reads neither `before` nor `after`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Container

from autofuse.loading.examples import example_source
from autofuse.loading.functions import function_of, parameters_of
from autofuse.rule import CallRule, Fused, Kept, Rule, RuleError


def check_attributes(rule: type[Rule]) -> None:
    """Raise RuleError if an attribute of a rule is not valid. The message says what to write."""
    code: object = rule.code  # a user may have assigned any object
    if not isinstance(code, str) or not re.fullmatch(r"[A-Z]+[0-9]+", code):
        raise RuleError(f"{rule.__name__}.code is {code!r}. Write capital letters and digits, such as MY101.")
    # bool is a subclass of int.
    if isinstance(rule.benefit, bool) or not isinstance(rule.benefit, (int, float)):
        raise RuleError(f"{rule.__name__}.benefit is {rule.benefit!r}. Write a number.")
    _check_where(rule)
    _check_examples(rule)
    if not issubclass(rule, CallRule):
        _check_parameters(rule)


def check_code_is_unused(rule: type[Rule], shipped: Container[str]) -> None:
    """Raise RuleError if a user's rule has a code that is in `shipped`, the codes of autofuse's own rules."""
    if rule.code in shipped:
        raise RuleError(
            f"{rule.__name__}.code is {rule.code}, the code of a rule that ships with autofuse. Use letters of your "
            "own, such as MY101."
        )


def _check_where(rule: type[Rule]) -> None:
    name = "at" if issubclass(rule, CallRule) else "where"
    condition = getattr(rule, name)
    try:
        inspect.signature(condition).bind(None)
    except (TypeError, ValueError) as error:
        raise RuleError(
            f"{rule.__name__}.{name} does not take one argument. Write `@staticmethod` over it, and one parameter."
        ) from error


def _check_examples(rule: type[Rule]) -> None:
    """Raise RuleError unless each example is a Fused or a Kept with valid Python code."""
    if not isinstance(rule.examples, (tuple, list)):
        raise RuleError(f"{rule.__name__}.examples is not a tuple. Write `examples = (Fused(...), Kept(...))`.")
    for example in rule.examples:
        if not isinstance(example, (Fused, Kept)):
            raise RuleError(f"{rule.__name__}.examples contains {example!r}. Write Fused(...) or Kept(...).")
        try:
            ast.parse(example_source(example))
        except SyntaxError as error:
            raise RuleError(
                f"{rule.__name__}, example “{example.why}”: line {error.lineno} is not Python ({error.msg}): "
                f"`{(error.text or '').strip()}`."
            ) from error


def _check_parameters(rule: type[Rule]) -> None:
    """Raise RuleError if `before` or `after` has a starred parameter, or if `after` has one that `before` lacks."""
    for name in ("before", "after"):
        function_of(rule, name)
        for p in inspect.signature(getattr(rule, name)).parameters.values():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise RuleError(f"{rule.__name__}.{name} takes `{p}`. Give each parameter a name of its own.")
    known = {*parameters_of(rule), *rule.fixed}
    for name in inspect.signature(rule.after).parameters:
        if name not in known:
            raise RuleError(
                f"{rule.__name__}.after takes `{name}`, which `before` does not have, so its value is not known. "
                f"`before` has {', '.join(sorted(known))}."
            )
