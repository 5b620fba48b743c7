"""Whether a rule's examples are what it says of them.

Reads each example as a file would be read and looks whether the rule finds it, or leaves it alone. Runs no code.
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
    """Raise RuleError where an example is not fused that should be, is that should not, or where none is fused."""
    rule = loaded.rule
    if not any(isinstance(e, Fused) for e in rule.examples):
        raise RuleError(f"{rule.__name__} has no example that it rewrites. Add a Fused(why, before=...) to `examples`.")
    for example in rule.examples:
        found = is_found(loaded, example)
        if found != isinstance(example, Fused):
            said = "finds" if found else "does not find"
            raise RuleError(f"{rule.__name__} {said} its example “{example.why}”. {_remedy(loaded, example, found)}")


def _remedy(loaded: LoadedRule, example: Example, found: bool) -> str:
    """What to correct: where the code is what `before` says, it is `where` that leaves it alone."""
    if found or loaded.change is not None:
        return "Correct the example or `before`."
    for site in _sites_in(replace(loaded, rule=_asked_nothing(loaded.rule)), example):
        if not isinstance(site.verdict, Fails):
            return "The code is what `before` says, and `where` declines it: correct the example or `where`."
        return f"It declines it: {site.verdict.reason}. Correct the example or `before`."
    return "Correct the example or `before`."


def _asked_nothing(rule: type[Rule]) -> type[Rule]:
    """The same rule without its `where`."""
    return type(rule.__name__, (rule,), {"where": staticmethod(Rule.where)})


def is_found(loaded: LoadedRule, example: Example) -> bool:
    """Whether the rule applies somewhere in the example's source."""
    if loaded.change is not None:
        scope = file_scope(ast.parse(text_of(example)))
        return any(not isinstance(site.verdict, Fails) for site in call_sites(scope, (loaded,)))
    return any(not isinstance(site.verdict, Fails) for site in _sites_in(loaded, example))


def _sites_in(loaded: LoadedRule, example: Example) -> Iterator[Site]:
    for defined in functions(file_scope(ast.parse(text_of(example)))):
        captured = capture(defined.function, defined.scope, defined.owner, defined.me)
        yield from sites(captured.graph, View(Facts(captured.known)), (loaded,))


def text_of(example: Example) -> str:
    """The example's source, not indented."""
    return textwrap.dedent(example.before if isinstance(example, Fused) else example.source).strip() + "\n"
