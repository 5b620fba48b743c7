"""Checks the examples of a rule: the rule must find each Fused example, and no Kept example.

The source of an example is checked like the content of a file. No code of it runs.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import replace

from autofuse.canonical import View
from autofuse.ir.facts import Facts
from autofuse.match.engine import sites
from autofuse.match.pattern import LoadedRule
from autofuse.match.site import Site
from autofuse.rule import Example, Fails, Fused, Rule, RuleError
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import file_scope, functions
from autofuse.source.find.call_rules import call_sites


def check_examples(loaded: LoadedRule) -> None:
    """Raise RuleError if an example does not behave as it says, or if no example is fused."""
    rule = loaded.rule
    if not any(isinstance(e, Fused) for e in rule.examples):
        raise RuleError(f"{rule.__name__} has no example that it rewrites. Add a Fused(why, before=...) to `examples`.")
    for example in rule.examples:
        found = finds_example(loaded, example)
        if found != isinstance(example, Fused):
            verb = "finds" if found else "does not find"
            raise RuleError(f"{rule.__name__} {verb} its example “{example.why}”. {_advice(loaded, example, found)}")


def _advice(loaded: LoadedRule, example: Example, found: bool) -> str:
    """Return what to correct. If `before` matches without the `where` of the rule, then `where` declines the code."""
    if found or loaded.change is not None:
        return "Correct the example or `before`."
    for site in _sites_in(replace(loaded, rule=_without_where(loaded.rule)), example):
        if not isinstance(site.verdict, Fails):
            return "`before` matches the code, but `where` declines it: correct the example or `where`."
        return f"It declines it: {site.verdict.reason}. Correct the example or `before`."
    return "Correct the example or `before`."


def _without_where(rule: type[Rule]) -> type[Rule]:
    """Return the same rule with the `where` of the base class."""
    return type(rule.__name__, (rule,), {"where": staticmethod(Rule.where)})


def finds_example(loaded: LoadedRule, example: Example) -> bool:
    """Whether the rule has a site in the source of an example that its `where` accepts."""
    if loaded.change is not None:
        scope = file_scope(ast.parse(example_source(example)))
        return any(not isinstance(site.verdict, Fails) for site in call_sites(scope, (loaded,)))
    return any(not isinstance(site.verdict, Fails) for site in _sites_in(loaded, example))


def _sites_in(loaded: LoadedRule, example: Example) -> Iterator[Site]:
    for defined in functions(file_scope(ast.parse(example_source(example)))):
        captured = capture(defined.function, defined.scope, defined.owner, defined.instance_name)
        yield from sites(captured.graph, View(Facts(captured.known)), (loaded,))


def example_source(example: Example) -> str:
    """Return the source of an example without indentation."""
    return textwrap.dedent(example.before if isinstance(example, Fused) else example.source).strip() + "\n"
