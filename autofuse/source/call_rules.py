"""Rules about one call, wherever it stands: a constructor that lacks an argument.

Such a rule names the functions in `calls`, and its `after` gives what its `before` does not. It says nothing about
dataflow, so module-level code counts too. Knows syntax and names only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autofuse.match import LoadedRule
from autofuse.rule import Constant, Holds
from autofuse.source.bindings import Function, bound_names
from autofuse.source.scope import FileScope, functions


@dataclass(frozen=True)
class CallSite:
    """A call that a rule adds arguments to. `verdict` is what the rule says of every such call."""

    rule: LoadedRule
    symbol: str
    call: ast.Call
    added: tuple[tuple[str, str], ...]  # (keyword, text)
    verdict: Holds


def is_call_rule(rule: LoadedRule) -> bool:
    """Whether a rule is about one call, not about dataflow."""
    return bool(rule.rule.calls)


def call_sites(scope: FileScope, rules: Sequence[LoadedRule]) -> Iterator[CallSite]:
    """Every call of a file that lacks what a call rule adds."""
    for symbol, call, seen in _calls(scope) if rules else ():
        name = seen.name_of(call.func) or ""
        for rule in rules:
            verdict = rule.rule.where(_Nothing())
            if name in called_by(rule) and _lacks(rule, call) and isinstance(verdict, Holds):
                yield CallSite(rule, symbol, call, _added(rule), verdict)


def called_by(rule: LoadedRule) -> tuple[str, ...]:
    """The functions a rule names, also by the module that each of torch's optimizers is defined in."""
    names = rule.rule.calls
    modules = [n.rpartition(".") for n in names]
    return (*names, *(f"{owner}.{name.lower()}.{name}" for owner, _, name in modules))


def _lacks(rule: LoadedRule, call: ast.Call) -> bool:
    given = {k.arg for k in call.keywords}
    starred = any(isinstance(a, ast.Starred) for a in call.args)
    return bool(call.args or given) and None not in given and not starred and not given & {*rule.rule.unless}


def _added(rule: LoadedRule) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(a.value)) for name, a in rule.replacement.arguments if name and isinstance(a, Constant))


def _calls(scope: FileScope) -> Iterator[tuple[str, ast.Call, FileScope]]:
    """Every call with the name of the function it stands in, and what names mean there."""
    yield from (("<module>", c, scope) for c in _own_calls(scope.tree.body))
    for d in functions(scope):
        hidden = bound_names(d.function)
        if any(n in d.scope.qualified for n in hidden):
            yield from ((d.symbol, c, d.scope.within(d.function)) for c in _own_calls(d.function.body))
        else:
            yield from ((d.symbol, c, d.scope) for c in _own_calls(d.function.body))


def _own_calls(body: Sequence[ast.AST]) -> Iterator[ast.Call]:
    """Calls in a body, not in the functions defined there."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, Function):
            todo += ast.iter_child_nodes(node)


class _Nothing:
    """A call rule captures nothing that could be asked about."""

    def absent(self, name: str) -> bool:
        return True

    def literal(self, name: str) -> object:
        return None

    def number(self, name: str) -> bool | None:
        return None

    def rank(self, name: str) -> int | None:
        return None

    def attribute(self, name: str) -> bool:
        return False

    def approximation(self, name: str) -> str:
        return ""
