"""`autofuse rules --check`: tests rules by the examples in their files. Works without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from autofuse.display.findings import StyledText
from autofuse.loading.examples import example_source
from autofuse.loading.named_object import resolve_name
from autofuse.match.pattern import LoadedRule
from autofuse.project.project_rules import load_project_rules
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.run import rewrite_text
from autofuse.rule import Example, Fused, Imported, Kept


def own_rules(folders: Sequence[str], permission: RulesPermission) -> tuple[LoadedRule, ...]:
    """Returns the rules in `folders`; without folders, this project's rules that do not come with autofuse.

    Raises:
        RuleError: A rule is malformed.
        ConfigError: The configuration is invalid.
    """
    loaded = permission.rules_in(tuple(map(Path, folders))) if folders else load_project_rules(permission)
    return tuple(r for r in loaded if not r.ships)


def find_failures(rule: LoadedRule) -> Iterator[str]:
    """Yields a sentence for each example that fails, and for each missing part of the rule."""
    name = f"{rule.rule.code} {rule.rule.__name__}"
    if not any(isinstance(e, Kept) for e in rule.rule.examples):
        yield f"{name} has no example of code that it must not change. Add a Kept(why, source) to `examples`."
    for needed in rule.replacement.needs:
        if why := _import_problem(needed):
            yield f"{name}.after uses {needed.name}, which cannot be imported: {why}."
    for example in rule.rule.examples:
        problem = _example_problem(rule, example)
        if problem:
            yield f"{name}, example “{example.why}”: {problem}"


def _import_problem(needed: Imported) -> str:
    """Returns why a name cannot be imported although its package is installed; "" if it can."""
    if find_spec(needed.package) is None:
        return ""
    try:
        resolve_name(needed.name)
    except (ImportError, AttributeError) as error:
        return str(error)
    return ""


def _example_problem(rule: LoadedRule, example: Example) -> str:
    """Returns how the result differs from what the example says; "" if it does not."""
    text = example_source(example)
    result = rewrite_text(text, [rule]) if rule.change is None else text
    if not isinstance(example, Fused):
        return "" if result == text else f"the code must not change, but it becomes\n{result}"
    if result == text and rule.change is None and rule.replacement.expression is not None:
        return "the code does not change; `autofuse check --declined` on it says why"
    return "" if example.after in result or result == text else f"`{example.after}` is not in the result\n{result}"


def summary(rule: LoadedRule) -> Iterator[StyledText]:
    """Yields a line for a rule whose examples pass, and a warning for each package that is not installed."""
    fused = sum(isinstance(e, Fused) for e in rule.rule.examples)
    kept = len(rule.rule.examples) - fused
    yield rule.rule.code, "bold green"
    yield f"  {rule.rule.__name__}: {fused} rewritten, {kept} left alone\n", ""
    for package in dict.fromkeys(n.package for n in rule.replacement.needs):
        if find_spec(package) is None:
            yield f"       {package} cannot be imported here; rewritten files and live models need it\n", "yellow"
