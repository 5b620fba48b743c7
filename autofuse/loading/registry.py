"""Finds, reads and checks rules.

Rules come from three places: autofuse itself, the folders that a project names, and installed packages with an entry
point in the group `autofuse.rules`. This module imports the files of rules, but it does not run a rule.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from autofuse.canonical import View
from autofuse.ir.facts import Facts
from autofuse.loading.after import read_replacement
from autofuse.loading.attributes import check_attributes, check_code_is_unused
from autofuse.loading.before import read_pattern
from autofuse.loading.examples import check_examples
from autofuse.loading.functions import function_of
from autofuse.match.engine import every_site
from autofuse.match.pattern import LoadedRule, Pattern
from autofuse.rule import CallChange, CallRule, Fails, Replacement, Rule, RuleError
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import FileScope, file_scope

_SHIPPED = "autofuse.rules"
_GROUP = "autofuse.rules"  # the group of entry points


@cache
def load_rules(folders: tuple[Path, ...] = ()) -> tuple[LoadedRule, ...]:
    """Return all rules, sorted by code: those of autofuse, of installed packages, and of `folders`.

    Raises:
        RuleError: A rule is not valid. The message names the rule and what to change.
    """
    shipped = [r for m in _shipped_modules() for r in _rules_of(m)]
    in_folders = (_import_file(path) for folder in folders for path in rule_files(folder))
    others = [r for m in (*_announced_modules(), *in_folders) for r in _rules_of(m)]
    codes = {r.code for r in shipped}
    for rule in others:  # autofuse's own tests check the examples of the rules that it ships
        loaded = load_rule(rule)
        check_code_is_unused(rule, codes)
        check_examples(loaded)
    return tuple(load_rule(r) for r in sorted([*shipped, *others], key=lambda r: r.code))


def load_rule(rule: type[Rule]) -> LoadedRule:
    """Read and check one rule. Raises RuleError if it is not valid."""
    check_attributes(rule)
    if issubclass(rule, CallRule):
        return LoadedRule(rule, Pattern((), {}), Replacement("", ()), read_call_change(rule))
    scope = _scope_of(rule)
    replacement = read_replacement(rule, function_of(rule, "after"), scope)
    loaded = LoadedRule(
        rule, read_pattern(rule, function_of(rule, "before"), scope), replacement, assumes=_assumption(rule)
    )
    if replacement.expression is not None:
        _check_is_final(loaded, scope)
    return loaded


def _check_is_final(loaded: LoadedRule, scope: FileScope) -> None:
    """Raise RuleError if the rule matches its own `after`. Its result would be rewritten again without end."""
    captured = capture(function_of(loaded.rule, "after"), scope)
    if any(
        not isinstance(s.verdict, Fails) for s in every_site(captured.graph, View(Facts(captured.known)), (loaded,))
    ):
        raise RuleError(
            f"{loaded.rule.__name__}.after contains code that `before` matches, so it would be rewritten again. Write "
            "in `before` only the code to replace."
        )


def _assumption(rule: type[Rule]) -> str:
    """Return what a rule without a `where` assumes; "" for autofuse's own rules, which are correct at every match."""
    is_complete = rule.where is not Rule.where or rule.__module__.startswith(_SHIPPED + ".")
    return "" if is_complete else f"{rule.__name__} does not say where it holds: it has no `where`"


def _shipped_modules() -> Iterator[ModuleType]:
    rules = importlib.import_module(_SHIPPED)
    for m in pkgutil.iter_modules(rules.__path__):
        yield importlib.import_module(f"{rules.__name__}.{m.name}")


def announced_rules() -> tuple[str, ...]:
    """Return the entry points of installed packages that `load_rules` executes, such as `my = package.module`."""
    return tuple(f"{p.name} = {p.value} (an entry point)" for p in entry_points(group=_GROUP))


def _announced_modules() -> Iterator[ModuleType]:
    """Yield the modules that installed packages announce as entry points. Raises RuleError if an import fails."""
    for point in entry_points(group=_GROUP):
        try:
            loaded = point.load()
        except (Exception, SystemExit) as error:  # code of the user may raise any exception
            raise RuleError(
                f"The rules of the entry point `{point.name} = {point.value}` could not be imported: "
                f"{type(error).__name__}: {error}"
            ) from error
        yield loaded if isinstance(loaded, ModuleType) else sys.modules[loaded.__module__]


def rule_files(folder: Path) -> Iterable[Path]:
    """Return the files in a folder that `load_rules` executes. Raises RuleError if there is no such folder."""
    if not folder.is_dir():
        raise RuleError(
            f"The rules folder {folder} does not exist. Correct its name, or `rules` under [tool.autofuse]."
        )
    return sorted(p for p in folder.glob("*.py") if not p.name.startswith("_") and p.is_file())


def _import_file(path: Path) -> ModuleType:
    """Import the file of a rule under a unique module name. Raises RuleError if the import fails."""
    name = f"autofuse_user_rules_{abs(hash(str(path.resolve())))}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuleError(f"{path} cannot be imported as a Python module.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # code of the user may raise any exception
        raise RuleError(f"The rule file {path} could not be imported: {type(error).__name__}: {error}") from error
    return module


def _rules_of(module: ModuleType) -> list[type[Rule]]:
    """Return the rules that a module defines. A class without a code is a base class of rules.

    Raises:
        RuleError: A class has examples, but no code.
    """
    classes = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    rules = [c for c in classes if issubclass(c, Rule)]
    for rule in rules:
        if not hasattr(rule, "code") and "examples" in vars(rule):
            raise RuleError(
                f'{rule.__name__} has no code, so it cannot be selected. Write one, such as `code = "MY101"`.'
            )
    return [c for c in rules if "code" in vars(c)]


def read_call_change(rule: type[CallRule]) -> CallChange:
    """Return the keyword arguments that `after` adds to the call in `before`, and those that it removes."""
    before, after = (_constant_keywords(function_of(rule, name)) for name in ("before", "after"))
    return CallChange(
        tuple((k, v) for k, v in after.items() if k not in before),
        tuple((k, v) for k, v in before.items() if k not in after),
    )


def _constant_keywords(function: ast.FunctionDef) -> dict[str, str]:
    """Return the keyword arguments with constant values of the call that a function returns, as text."""
    last = function.body[-1]
    call = last.value if isinstance(last, ast.Return) else None
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return {k.arg: ast.unparse(k.value) for k in keywords if k.arg and isinstance(k.value, ast.Constant)}


def _scope_of(rule: type[Rule]) -> FileScope:
    """Return the scope of the file that defines a rule."""
    return _scope_of_text(Path(inspect.getfile(rule)).read_text())


@lru_cache(maxsize=16)  # one file may define many rules
def _scope_of_text(text: str) -> FileScope:
    return file_scope(ast.parse(text))
