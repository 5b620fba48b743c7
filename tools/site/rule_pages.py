"""The page of a rule: what it finds, why, its pattern, and its examples as they are rewritten now."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from autofuse.cli.rules_text import side_of, title, why
from autofuse.loading.examples import example_source
from autofuse.match.pattern import LoadedRule
from autofuse.project.run import rewrite_text
from autofuse.rule import Kept


def rule_page(loaded: LoadedRule) -> str:
    """The page of one rule as Markdown. Every example is rewritten by the rule while the page is made."""
    return "\n".join(_parts(loaded))


def _parts(loaded: LoadedRule) -> Iterator[str]:
    rule = loaded.rule
    yield f"# {rule.code} {rule.__name__}\n"
    yield f"{title(rule)}\n"
    if why(rule):
        yield f"{why(rule)}\n"
    yield "## Pattern\n"
    yield _code(side_of(rule, "before"))
    yield _code(side_of(rule, "after"))
    yield "## Examples\n"
    for example in rule.examples:
        text = example_source(example)
        if isinstance(example, Kept):
            continue
        yield f"**{_sentence(example.why)}**\n"
        result = rewrite_text(text, [loaded])
        if result != text:
            yield _diff(text, result)
        else:
            yield _code(text)
            yield "It is reported.\n" if loaded.change else "It is reported in files, and fused in live models.\n"
    kept = [e for e in rule.examples if isinstance(e, Kept)]
    if kept:
        yield "## Not changed\n"
    for example in kept:
        yield f"**{_sentence(example.why)}**\n"
        yield _code(example_source(example))
    yield "## Switch it off\n"
    yield f"Write `# autofuse: ignore[{rule.code}]` on the line, or `ignore` in `[tool.autofuse]`"
    yield "([configuration](../configuration.md)).\n"


def _sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _code(source: str) -> str:
    return f"```python\n{source.rstrip()}\n```\n"


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1000)
    return "```diff\n" + "\n".join(line for line in list(lines)[3:]) + "\n```\n"
