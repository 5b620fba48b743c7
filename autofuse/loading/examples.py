"""Whether a rule's examples are what it says of them.

Reads each example as a file would be read and looks whether the rule finds it, or leaves it alone. Runs no code.
"""

from __future__ import annotations

import ast
import textwrap

from autofuse.canonical import View
from autofuse.ir.facts import Facts
from autofuse.match.engine import sites
from autofuse.match.pattern import LoadedRule
from autofuse.rule import Example, Fails, Fused, RuleError
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
            raise RuleError(f"{rule.__name__} {said} its example “{example.why}”. Correct the example or `before`.")


def is_found(loaded: LoadedRule, example: Example) -> bool:
    """Whether the rule applies somewhere in the example's source."""
    scope = file_scope(ast.parse(text_of(example)))
    if loaded.change is not None:
        return any(not isinstance(site.verdict, Fails) for site in call_sites(scope, (loaded,)))
    for defined in functions(scope):
        captured = capture(defined.function, defined.scope, defined.owner, defined.me)
        found = sites(captured.graph, View(Facts(captured.known)), (loaded,))
        if any(not isinstance(site.verdict, Fails) for site in found):
            return True
    return False


def text_of(example: Example) -> str:
    """The example's source, not indented."""
    return textwrap.dedent(example.before if isinstance(example, Fused) else example.source).strip() + "\n"
