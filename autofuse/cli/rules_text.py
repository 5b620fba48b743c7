"""The text of rules for `autofuse rules` and `autofuse explain`.

All of it comes from the rule's own file: its docstrings, `before`, `after` and examples.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from autofuse.display.findings import StyledText
from autofuse.loading.examples import example_source
from autofuse.loading.functions import function_of
from autofuse.rule import Fused, Kept, Rule

if TYPE_CHECKING:
    from autofuse.match.pattern import LoadedRule


def list_rules(rules: Sequence[LoadedRule]) -> Iterator[StyledText]:
    """Yields a line for each rule."""
    width = max((len(r.rule.__name__) for r in rules), default=0)
    for rule in (r.rule for r in rules):
        yield rule.code, "bold red"
        yield f"  {rule.__name__:{width}}  {title(rule)}\n", ""


def as_json(rules: Sequence[LoadedRule]) -> dict[str, object]:
    """Returns the object that `autofuse rules --format json` prints."""
    return {"version": 1, "rules": [_facts(r.rule) for r in rules]}


def explain_rule(loaded: LoadedRule, rewritten: Callable[[str, Sequence[LoadedRule]], str]) -> Iterator[StyledText]:
    """Yields the explanation of a rule: purpose, reason, `before`, `after`, and its examples before and after."""
    rule = loaded.rule
    yield f"{rule.code} {rule.__name__}\n", "bold"
    yield f"{title(rule)}\n\n", ""
    if why(rule):
        yield why(rule) + "\n\n", ""
    yield from _code(side_of(rule, "before"))
    yield from _code(side_of(rule, "after"))
    for example in rule.examples:
        text = example_source(example)
        if isinstance(example, Kept):
            yield f"Left alone: {example.why}\n\n", "yellow"
            yield from _code(text)
            continue
        yield f"Fused: {example.why}\n\n", "green"
        yield from _code(text)
        result = rewritten(text, [loaded])
        unedited = "is reported" if loaded.change else "is reported in files, and fused in live models"
        yield ("becomes" if result != text else unedited) + "\n\n", ""
        yield from _code(result) if result != text else ()
    yield f"Switch it off with `# autofuse: ignore[{rule.code}]`, or in [tool.autofuse] of pyproject.toml.\n\n", "dim"


def title(rule: type[Rule]) -> str:
    """Returns the first line of the rule's docstring."""
    return (inspect.getdoc(rule) or rule.__name__).splitlines()[0]


def why(rule: type[Rule]) -> str:
    """Returns the docstring of the rule's file without its first line. It says why the fused operation is better."""
    text = inspect.cleandoc(sys.modules[rule.__module__].__doc__ or "")
    return text.partition("\n")[2].strip()


def side_of(rule: type[Rule], name: str) -> str:
    """Returns the source of `before` or `after`. If the rule fixes a choice, the source shows the result of it."""
    if not rule.fixed:
        return source_of(getattr(rule, name))
    function = function_of(rule, name)
    function.decorator_list = []
    return ast.unparse(function)


def source_of(function: Callable[..., object]) -> str:
    """Returns the source of a function without decorators."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return "\n".join(lines[start:])


def _facts(rule: type[Rule]) -> dict[str, object]:
    return {
        "code": rule.code,
        "rule": rule.__name__,
        "title": title(rule),
        "why": why(rule),
        "before": side_of(rule, "before"),
        "after": side_of(rule, "after"),
        "fused": [{"why": e.why, "source": example_source(e)} for e in rule.examples if isinstance(e, Fused)],
        "kept": [{"why": e.why, "source": example_source(e)} for e in rule.examples if isinstance(e, Kept)],
    }


def _code(source: str) -> Iterator[StyledText]:
    yield textwrap.indent(source.rstrip(), "    ") + "\n\n", "cyan"
