"""`autofuse rules --check`: whether rules do to a file what their examples say. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from autofuse.display.findings import StyledText
from autofuse.loading.examples import text_of
from autofuse.loading.named_object import resolved
from autofuse.match.pattern import LoadedRule
from autofuse.project.rules_here import rules_here
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.run import rewritten
from autofuse.rule import Example, Fused, Imported, Kept


def own_rules(folders: Sequence[str], permission: RulesPermission) -> tuple[LoadedRule, ...]:
    """The rules in `folders`, or, where none is named, those that hold here and are not autofuse's own.

    Raises RuleError where one is malformed, and ConfigError.
    """
    found = permission.rules_in(tuple(map(Path, folders))) if folders else rules_here(permission)
    return tuple(r for r in found if not r.ships)


def failures(rule: LoadedRule) -> Iterator[str]:
    """A sentence for each example whose file does not become what it says, and for what a rule lacks."""
    name = f"{rule.rule.code} {rule.rule.__name__}"
    if not any(isinstance(e, Kept) for e in rule.rule.examples):
        yield f"{name} has no example that it leaves alone. Add a Kept(why, source) to `examples`."
    for needed in rule.replacement.needs:
        if why := _not_there(needed):
            yield f"{name}.after uses {needed.name}, which cannot be had: {why}."
    for example in rule.rule.examples:
        told = _told(rule, example)
        if told:
            yield f"{name}, example “{example.why}”: {told}"


def _not_there(needed: Imported) -> str:
    """Why a name is nothing, though its package is here; "" where that is not known."""
    if find_spec(needed.package) is None:
        return ""
    try:
        resolved(needed.name)
    except (ImportError, AttributeError) as error:
        return str(error)
    return ""


def _told(rule: LoadedRule, example: Example) -> str:
    text = text_of(example)
    result = rewritten(text, [rule]) if rule.change is None else text
    if not isinstance(example, Fused):
        return "" if result == text else f"it is to be left alone, and becomes\n{result}"
    if result == text and rule.change is None and rule.replacement.expression is not None:
        return "nothing is written in a file; `autofuse check --declined` on it says why"
    return "" if example.after in result or result == text else f"`{example.after}` is not in what it becomes\n{result}"


def summary(rule: LoadedRule) -> Iterator[StyledText]:
    """A line for a rule whose examples are as they say, and one for a package that live models will miss."""
    fused = sum(isinstance(e, Fused) for e in rule.rule.examples)
    kept = len(rule.rule.examples) - fused
    yield rule.rule.code, "bold green"
    yield f"  {rule.rule.__name__}: {fused} rewritten, {kept} left alone\n", ""
    for package in dict.fromkeys(n.package for n in rule.replacement.needs):
        if find_spec(package) is None:
            yield f"       {package} cannot be imported here; rewritten files and live models need it\n", "yellow"
