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
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from autofuse.canonical import View
from autofuse.ir.facts import Facts
from autofuse.ir.graph import TUPLE
from autofuse.loading.examples import check_examples
from autofuse.match.matcher import LoadedRule, Pattern
from autofuse.rule import CallChange, CallRule, Constant, Replacement, Rule, RuleError
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import FileScope, file_scope


@cache
def load_rules(folders: tuple[Path, ...] = ()) -> tuple[LoadedRule, ...]:
    """Every rule: built-in, announced by installed packages, and in `folders`; in the order of their codes.

    Raises RuleError, naming the rule and what to change, where one is malformed.
    """
    shipped = [r for m in _shipped() for r in _rules_in(m)]
    others = [r for m in (*_announced(), *(_module_at(p) for f in folders for p in _files_in(f))) for r in _rules_in(m)]
    for rule in others:  # the examples of those that ship are tried by the tests
        check_examples(loaded(rule))
    return tuple(loaded(r) for r in sorted([*shipped, *others], key=lambda r: r.code))


def loaded(rule: type[Rule]) -> LoadedRule:
    """One rule, read and checked."""
    if not re.fullmatch(r"[A-Z]+[0-9]+", rule.code):
        raise RuleError(f"{rule.__name__}.code is {rule.code!r}. Write capital letters and digits, such as MY101.")
    if issubclass(rule, CallRule):
        return LoadedRule(rule, Pattern((), {}), Replacement("", ()), change_of(rule))
    return LoadedRule(rule, pattern_of(rule), replacement_of(rule))


def _shipped() -> Iterator[ModuleType]:
    rules = importlib.import_module("autofuse.rules")
    for m in pkgutil.iter_modules(rules.__path__):
        yield importlib.import_module(f"{rules.__name__}.{m.name}")


def _announced() -> Iterator[ModuleType]:
    """Modules that installed packages name under the entry point group."""
    for point in entry_points(group="autofuse.rules"):
        found = point.load()
        yield found if isinstance(found, ModuleType) else sys.modules[found.__module__]


def _files_in(folder: Path) -> Iterable[Path]:
    if not folder.is_dir():
        raise RuleError(f"The rules folder {folder} does not exist. Correct `rules` under [tool.autofuse].")
    return sorted(p for p in folder.glob("*.py") if not p.name.startswith("_"))


def _module_at(path: Path) -> ModuleType:
    name = f"autofuse_user_rules_{abs(hash(str(path.resolve())))}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuleError(f"{path} cannot be imported as a Python module.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's: anything may be raised
        raise RuleError(f"The rule file {path} could not be imported: {type(error).__name__}: {error}") from error
    return module


def _rules_in(module: ModuleType) -> list[type[Rule]]:
    own = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    return [c for c in own if issubclass(c, Rule) and "code" in vars(c)]


def pattern_of(rule: type[Rule]) -> Pattern:
    """`before` as a canonical pattern, its names resolved by the imports of the rule's own file."""
    captured = capture(_function_of(rule, "before"), _scope_of(rule))
    if captured.returned is None:
        raise RuleError(f"{rule.__name__}.before returns nothing. End it with `return`.")
    view = View(Facts(captured.known))
    for v in captured.graph.values:
        view.of(v)
    returned = view.of(captured.returned)
    defaults = {
        n: view.const(p.default)
        for n, p in inspect.signature(rule.before).parameters.items()
        if p.default is not inspect.Parameter.empty
    }
    return Pattern(returned.inputs if returned.op == TUPLE else (returned,), defaults)


def replacement_of(rule: type[Rule]) -> Replacement:
    """`after`, which must return one call on names and literals: of autofuse.ops, or of a function that is imported."""
    node = _function_of(rule, "after")
    call = node.body[-1].value if isinstance(node.body[-1], ast.Return) else None
    operation = _scope_of(rule).name_of(call.func) if isinstance(call, ast.Call) else None
    if not isinstance(call, ast.Call) or operation is None:
        raise RuleError(
            f"{rule.__name__}.after must end in a call: `return ops.<operation>(...)`, or of an imported function."
        )
    known = set(inspect.signature(rule.before).parameters)
    arguments = [("", a) for a in call.args] + [(k.arg or "", k.value) for k in call.keywords]
    return Replacement(
        operation.removeprefix("autofuse.ops."), tuple((name, _argument(rule, a, known)) for name, a in arguments)
    )


def change_of(rule: type[CallRule]) -> CallChange:
    """What `after` adds to the call that `before` ends in, and what it takes out."""
    before, after = (_constants_of(_function_of(rule, name)) for name in ("before", "after"))
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


def _argument(rule: type[Rule], node: ast.expr, known: set[str]) -> str | Constant:
    if isinstance(node, ast.Name) and node.id in known:
        return node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str, type(None))):
        return Constant(node.value)
    raise RuleError(
        f"{rule.__name__}.after uses `{ast.unparse(node)}`. It may use only literals and the parameters of `before`: "
        f"{', '.join(sorted(known))}."
    )


def _scope_of(rule: type[Rule]) -> FileScope:
    """What the names in a rule's own file mean."""
    return file_scope(ast.parse(Path(inspect.getfile(rule)).read_text()))


def _function_of(rule: type[Rule], name: str) -> ast.FunctionDef:
    """The syntax of a rule's `before` or `after`."""
    if not hasattr(rule, name):
        raise RuleError(f"{rule.__name__} has no `{name}`. A rule needs a `before` and an `after`.")
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(getattr(rule, name)))).body
    if not isinstance(node, ast.FunctionDef):
        raise RuleError(f"{rule.__name__}.{name} is not a function. Write it with `def`.")
    return node
