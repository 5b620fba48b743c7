"""Finds rules and reads them: one file each, the module's name is the rule's.

Looks in the rules that ship with autofuse, in the folders a project names, and in packages that announce rules under
the entry point group `autofuse.rules`. Reading a rule checks it. Knows how rules are written; runs none of them.
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
from autofuse.loading.after import replacement_of
from autofuse.loading.attributes import check_attributes, check_code_is_free
from autofuse.loading.before import pattern_of
from autofuse.loading.examples import check_examples
from autofuse.loading.functions import function_of
from autofuse.match.engine import every_site
from autofuse.match.pattern import LoadedRule, Pattern
from autofuse.rule import CallChange, CallRule, Fails, Replacement, Rule, RuleError
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import FileScope, file_scope

_SHIPPED = "autofuse.rules"
_GROUP = "autofuse.rules"  # of entry points


@cache
def load_rules(folders: tuple[Path, ...] = ()) -> tuple[LoadedRule, ...]:
    """Every rule: built-in, announced by installed packages, and in `folders`; in the order of their codes.

    Raises RuleError, naming the rule and what to change, where one is malformed.
    """
    shipped = [r for m in _shipped() for r in _rules_in(m)]
    own = (_module_at(path) for folder in folders for path in rule_files(folder))
    others = [r for m in (*_announced(), *own) for r in _rules_in(m)]
    codes = {r.code for r in shipped}
    for rule in others:  # the examples of those that ship are tried by the tests
        read = loaded(rule)
        check_code_is_free(rule, codes)
        check_examples(read)
    return tuple(loaded(r) for r in sorted([*shipped, *others], key=lambda r: r.code))


def loaded(rule: type[Rule]) -> LoadedRule:
    """One rule, read and checked."""
    check_attributes(rule)
    if issubclass(rule, CallRule):
        return LoadedRule(rule, Pattern((), {}), Replacement("", ()), change_of(rule))
    scope = _scope_of(rule)
    replacement = replacement_of(rule, function_of(rule, "after"), scope)
    read = LoadedRule(rule, pattern_of(rule, function_of(rule, "before"), scope), replacement, assumes=_assumed(rule))
    if replacement.expression is not None:
        _check_settles(read, scope)
    return read


def _check_settles(read: LoadedRule, scope: FileScope) -> None:
    """Raise RuleError where what a rule writes is what it looks for: it would be rewritten for ever."""
    captured = capture(function_of(read.rule, "after"), scope)
    if any(not isinstance(s.verdict, Fails) for s in every_site(captured.graph, View(Facts(captured.known)), (read,))):
        raise RuleError(
            f"{read.rule.__name__}.after holds what `before` looks for, so what is written would be rewritten again. "
            "Write in `before` only what is to go."
        )


def _assumed(rule: type[Rule]) -> str:
    """What a rule that has no `where` leaves unsaid; those that ship are known to hold wherever they match."""
    said = rule.where is not Rule.where or rule.__module__.startswith(_SHIPPED + ".")
    return "" if said else f"{rule.__name__} does not say where it holds: it has no `where`"


def _shipped() -> Iterator[ModuleType]:
    rules = importlib.import_module(_SHIPPED)
    for m in pkgutil.iter_modules(rules.__path__):
        yield importlib.import_module(f"{rules.__name__}.{m.name}")


def announced_rules() -> tuple[str, ...]:
    """What installed packages name under the entry point group, and load_rules executes: `my = package.module`."""
    return tuple(f"{p.name} = {p.value} (an entry point)" for p in entry_points(group=_GROUP))


def _announced() -> Iterator[ModuleType]:
    """Modules that installed packages name under the entry point group."""
    for point in entry_points(group=_GROUP):
        try:
            found = point.load()
        except (Exception, SystemExit) as error:  # the package is the user's: anything may be raised
            raise RuleError(
                f"The rules of the entry point `{point.name} = {point.value}` could not be imported: "
                f"{type(error).__name__}: {error}"
            ) from error
        yield found if isinstance(found, ModuleType) else sys.modules[found.__module__]


def rule_files(folder: Path) -> Iterable[Path]:
    """The files of a folder that load_rules executes. Raises RuleError where there is no such folder."""
    if not folder.is_dir():
        raise RuleError(f"The rules folder {folder} does not exist. Correct `rules` under [tool.autofuse].")
    return sorted(p for p in folder.glob("*.py") if not p.name.startswith("_") and p.is_file())


def _module_at(path: Path) -> ModuleType:
    name = f"autofuse_user_rules_{abs(hash(str(path.resolve())))}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuleError(f"{path} cannot be imported as a Python module.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file is the user's: anything may be raised
        raise RuleError(f"The rule file {path} could not be imported: {type(error).__name__}: {error}") from error
    return module


def _rules_in(module: ModuleType) -> list[type[Rule]]:
    """The rules of a module; a class without a code is what they share. Raises RuleError where one lacks its code."""
    own = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    found = [c for c in own if issubclass(c, Rule)]
    for rule in found:
        if not hasattr(rule, "code") and "examples" in vars(rule):
            raise RuleError(
                f'{rule.__name__} has no code, so nothing can select it. Write one, such as `code = "MY101"`.'
            )
    return [c for c in found if "code" in vars(c)]


def change_of(rule: type[CallRule]) -> CallChange:
    """What `after` adds to the call that `before` ends in, and what it takes out."""
    before, after = (_constants_of(function_of(rule, name)) for name in ("before", "after"))
    return CallChange(
        tuple((k, v) for k, v in after.items() if k not in before),
        tuple((k, v) for k, v in before.items() if k not in after),
    )


def _constants_of(function: ast.FunctionDef) -> dict[str, str]:
    """The keywords with constants of the call that a function returns, and their text; none if it returns no call."""
    last = function.body[-1]
    call = last.value if isinstance(last, ast.Return) else None
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return {k.arg: ast.unparse(k.value) for k in keywords if k.arg and isinstance(k.value, ast.Constant)}


def _scope_of(rule: type[Rule]) -> FileScope:
    """What the names in a rule's own file mean."""
    return _scope_of_text(Path(inspect.getfile(rule)).read_text())


@lru_cache(maxsize=16)  # a file may hold many rules
def _scope_of_text(text: str) -> FileScope:
    return file_scope(ast.parse(text))
