"""Rules about one call, wherever it stands: what is to be added to it or left out, or what to write instead.

Such a rule names the functions in `calls` and looks at one call at a time, in its surroundings. It says nothing about
dataflow, so module-level code counts too. Knows syntax and names only.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autofuse.match.answers import answer_of
from autofuse.match.pattern import LoadedRule
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.rule import CallRule, Fails, Holds, Verdict
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import FileScope, functions
from autofuse.source.capture.syntax import parts, walk
from autofuse.source.find.call_context import Surroundings
from autofuse.source.find.iterations import is_iterated_once
from autofuse.source.find.shown_settings import line_that_shows
from autofuse.source.find.training_loops import NUMBERS, read_on_device

_LONG = 60  # of a call in a message


@dataclass(frozen=True)
class CallSite:
    """A call that a rule has something to say about; `added` and `omitted` are the edit, if there is one."""

    rule: LoadedRule
    symbol: str
    call: ast.Call
    verdict: Verdict
    added: tuple[tuple[str, str], ...] = ()  # (keyword, text)
    omitted: tuple[ast.expr, ...] = ()  # values of arguments


@dataclass(frozen=True)
class PlacedCall:
    """One call of a file: the answers to what a rule asks (autofuse.rule.Call)."""

    name: str
    node: ast.Call
    scope: FileScope
    around: Surroundings
    parameters: tuple[str, ...] = field(default=())

    @property
    def text(self) -> str:
        text = ast.unparse(self.node)
        return text if len(text) <= _LONG else f"{text[: _LONG - 4].rstrip()} ...)"

    @property
    def starred(self) -> str:
        """`*arguments` or `**options`, whose contents the text does not show."""
        found = [a for a in self.node.args if isinstance(a, ast.Starred)]
        return next((f"**{ast.unparse(k.value)}" for k in self.node.keywords if k.arg is None), "") or next(
            map(ast.unparse, found), ""
        )

    def value(self, name: str) -> ast.expr | None:
        by_keyword = {k.arg: k.value for k in self.node.keywords}
        return by_keyword.get(name) or dict(zip(self.parameters, self.node.args, strict=False)).get(name)

    def given(self, name: str) -> str | None:
        value = self.value(name)
        return None if value is None else ast.unparse(value)

    def literal(self, name: str) -> object:
        value = self.value(name)
        return value.value if isinstance(value, ast.Constant) else None

    def made_by(self, name: str) -> str:
        value = self.value(name)
        values = self.around.assigned(value.id) if isinstance(value, ast.Name) else [value]
        made = {"list" if isinstance(v, (ast.List, ast.ListComp)) else self._maker(v) for v in values}
        return made.pop() if len(made) == 1 else ""

    def _maker(self, value: ast.expr | None) -> str:
        return _name_of(value, self.scope) if isinstance(value, ast.Call) else ""

    @property
    def each_step(self) -> bool:
        return self.around.loops.around(self.node) is not None

    @property
    def reads_device(self) -> bool:
        loop = self.around.loops.around(self.node)
        if loop is None:
            return False
        function = self.node.func
        if isinstance(function, ast.Attribute) and function.attr in NUMBERS:
            return not loop.device.isdisjoint(read_on_device(function.value))
        given = [*self.node.args, *(k.value for k in self.node.keywords)]
        return any(not loop.tensors.isdisjoint(read_on_device(a)) for a in given)

    @property
    def deferred(self) -> str:
        outer = (parent for _, parent in self.around.nesting.around(self.node))
        statement = next((p for p in outer if not isinstance(p, (ast.BinOp, ast.UnaryOp))), None)
        if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
            return ""
        return ast.unparse(_Detached(self.node).visit(copy.deepcopy(statement)))

    @property
    def iterated_once(self) -> bool:
        return is_iterated_once(self.node, self.around.nesting)

    @property
    def accelerator(self) -> bool | None:
        return self.around.accelerator

    def mentions(self, *words: str) -> int:
        return self.around.first_line(*words)

    def mentions_word(self, *words: str) -> int:
        return self.around.first_line_of_word(*words)

    def reads(self, attribute: str) -> int:
        return self.around.first_read(attribute)


class _Detached(ast.NodeTransformer):
    """`loss.detach()` in place of the call that makes a number of `loss`."""

    def __init__(self, call: ast.Call) -> None:
        self.position = call.lineno, call.col_offset, call.end_lineno, call.end_col_offset

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) != self.position:
            return self.generic_visit(node)
        tensor = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0]
        if isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute) and tensor.func.attr == "detach":
            return tensor
        return ast.Call(ast.Attribute(tensor, "detach", ast.Load()), [], [])


def call_sites(scope: FileScope, rules: Sequence[LoadedRule]) -> Iterator[CallSite]:
    """Every call of a file that a rule about calls has something to say about, in the order of the file."""
    by_name: dict[str, list[tuple[LoadedRule, type[CallRule]]]] = {}
    for loaded in rules:
        if issubclass(loaded.rule, CallRule):
            for name in called_by(loaded):
                by_name.setdefault(name, []).append((loaded, loaded.rule))
    around = Surroundings(scope)
    said = set[tuple[type[CallRule], ast.AST | None]]()
    for symbol, call, seen in _calls(scope, _written(scope, {n.rpartition(".")[2] for n in by_name})):
        for name in (_name_of(call, seen), _method(call)):
            for loaded, rule in by_name.get(name, ()):
                at = {"": call, "file": None, "statement": around.nesting.statement_of(call)}[rule.once]
                placed = PlacedCall(name, call, seen, around, rule.parameters)
                if (rule, at) not in said and (site := _site(loaded, rule, symbol, placed)) is not None:
                    said.add((rule, at))
                    yield site


def _written(scope: FileScope, names: set[str]) -> set[str]:
    """The last parts of names, also as the file calls them: `from torch.optim import AdamW as Optimizer`."""
    imported = [a for n in walk(scope.tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
    aliases = {a.asname for a in imported if a.asname and a.name.rpartition(".")[2] in names}
    return names | aliases | {name for name, means in scope.qualified.items() if means.rpartition(".")[2] in names}


def may_concern(loaded: LoadedRule, source: bytes) -> bool:
    """Whether a file's bytes may hold a call that a rule is about; False for rules that are not about calls."""
    if not issubclass(loaded.rule, CallRule) or loaded.rule.hint.encode() not in source:
        return False
    return any(name.rpartition(".")[2].encode() in source for name in loaded.rule.calls)


def called_by(loaded: LoadedRule) -> tuple[str, ...]:
    """The functions a rule names, also by the module that torch defines each in: torch.optim.adamw.AdamW."""
    names: tuple[str, ...] = loaded.rule.calls if issubclass(loaded.rule, CallRule) else ()
    classes = [n.rpartition(".") for n in names if n.startswith("torch.")]
    return (*names, *(f"{owner}.{name.lower()}.{name}" for owner, _, name in classes if name[0].isupper()))


def _site(loaded: LoadedRule, rule: type[CallRule], symbol: str, call: PlacedCall) -> CallSite | None:
    change = loaded.change
    assert change is not None, "every rule about calls is loaded with what it changes"
    gone = tuple(v for name, text in change.removed if (v := call.value(name)) is not None and ast.unparse(v) == text)
    if len(gone) != len(change.removed) or any(call.given(n) is not None for n in rule.unless):
        return None
    verdict = answer_of(rule, rule.at, call)
    if change.added and call.starred and verdict is not None:
        verdict = Fails(because(matches.ARGUMENTS_STARRED, starred=call.starred, added=_spelled(change.added)))
    if verdict is None or call.around.is_test and not (isinstance(verdict, Holds) and verdict.safety == "safe"):
        return None
    edited = isinstance(verdict, Holds)
    if isinstance(verdict, Holds) and (line := _line_that_shows(call, change.added)):
        shown = f"assumes that nobody minds what line {line} shows of its settings"
        verdict = Holds("unsafe", f"{verdict.why}; {shown}" if verdict.safety == "unsafe" else shown)
    return CallSite(loaded, symbol, call.node, verdict, change.added if edited else (), gone if edited else ())


def _line_that_shows(call: PlacedCall, added: tuple[tuple[str, str], ...]) -> int:
    return line_that_shows(call.node, call.name, {name for name, _ in added}, call.scope, call.around.nesting)


def _spelled(added: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"`{name}={text}`" for name, text in added)


def _name_of(call: ast.Call, seen: FileScope) -> str:
    """The function that is called: its qualified name, or that of a builtin that nothing hides."""
    builtin = call.func.id if isinstance(call.func, ast.Name) and call.func.id not in seen.bound else ""
    return seen.name_of(call.func) or builtin


def _method(call: ast.Call) -> str:
    return f".{call.func.attr}" if isinstance(call.func, ast.Attribute) else ""


def _calls(scope: FileScope, names: set[str]) -> list[tuple[str, ast.Call, FileScope]]:
    """Every call of something with one of the `names`, the function it stands in, and what names mean there."""
    found = [("<module>", c, scope) for c in _own_calls(scope.tree.body, names)]
    for d in functions(scope):
        own = list(_own_calls(d.function.body, names))
        inner = d.scope.within(d.function) if own else d.scope
        found += [(d.symbol, c, inner) for c in own]
    return sorted(found, key=lambda f: (f[1].lineno, f[1].col_offset, f[1].end_col_offset or 0))


def _own_calls(body: Sequence[ast.AST], names: set[str]) -> Iterator[ast.Call]:
    """Calls in a body, not in the functions defined there."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call) and _last(node.func) in names:
            yield node
        if not isinstance(node, Function):
            todo += parts(node)


def _last(function: ast.expr) -> str:
    """The last part of a dotted name."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
