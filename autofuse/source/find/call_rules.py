"""Applies rules about single calls: arguments to add, arguments to remove, or advice.

Such a rule names functions in `calls` and looks at one call at a time, with its context in the file. It does not use
dataflow, so module-level code is included.
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
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.scope import FileScope, functions
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.call_context import CallContext
from autofuse.source.find.iterations import is_iterated_once
from autofuse.source.find.project_words import first_file_with_word
from autofuse.source.find.settings_reads import first_settings_read
from autofuse.source.find.training_loops import NUMBERS, names_on_device

_MAX_TEXT = 60  # characters of a call in a message


@dataclass(frozen=True)
class CallSite:
    """A call for which a rule has a verdict. `added` and `omitted` are the edit, if there is one."""

    rule: LoadedRule
    symbol: str
    call: ast.Call
    verdict: Verdict
    added: tuple[tuple[str, str], ...] = ()  # (keyword, text)
    omitted: tuple[ast.expr, ...] = ()  # values of arguments


@dataclass(frozen=True)
class PlacedCall:
    """One call in a file, with the properties that a rule reads. autofuse.rule.Call documents them."""

    name: str
    node: ast.Call
    scope: FileScope
    context: CallContext
    parameters: tuple[str, ...] = field(default=())
    files: ProjectFiles | None = None

    @property
    def text(self) -> str:
        text = ast.unparse(self.node)
        return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 4].rstrip()} ...)"

    @property
    def starred(self) -> str:
        """`*arguments` or `**options` if the call has one; its contents are unknown."""
        positional = [a for a in self.node.args if isinstance(a, ast.Starred)]
        return next((f"**{ast.unparse(k.value)}" for k in self.node.keywords if k.arg is None), "") or next(
            map(ast.unparse, positional), ""
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
        values = self.context.assigned_values(value.id) if isinstance(value, ast.Name) else [value]
        makers = {"list" if isinstance(v, (ast.List, ast.ListComp)) else self._maker(v) for v in values}
        return makers.pop() if len(makers) == 1 else ""

    def _maker(self, value: ast.expr | None) -> str:
        return _name_of(value, self.scope) if isinstance(value, ast.Call) else ""

    @property
    def each_step(self) -> bool:
        return self.context.loops.around(self.node) is not None

    @property
    def reads_device(self) -> bool:
        loop = self.context.loops.around(self.node)
        if loop is None:
            return False
        function = self.node.func
        if isinstance(function, ast.Attribute) and function.attr in NUMBERS:
            return not loop.device.isdisjoint(names_on_device(function.value))
        arguments = [*self.node.args, *(k.value for k in self.node.keywords)]
        return any(not loop.tensors.isdisjoint(names_on_device(a)) for a in arguments)

    @property
    def deferred(self) -> str:
        outer = (parent for _, parent in self.context.nesting.around(self.node))
        statement = next((p for p in outer if not isinstance(p, (ast.BinOp, ast.UnaryOp))), None)
        if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
            return ""
        return ast.unparse(_DetachInstead(self.node).visit(copy.deepcopy(statement)))

    @property
    def iterated_once(self) -> bool:
        return is_iterated_once(self.node, self.context.nesting)

    @property
    def accelerator(self) -> bool | None:
        return self.context.accelerator

    def mentions(self, *words: str) -> int:
        return self.context.first_line(*words)

    def mentions_word(self, *words: str) -> int:
        return self.context.first_line_of_word(*words)

    def reads(self, attribute: str) -> int:
        return self.context.first_read(attribute)

    def other_file_mentions(self, *words: str, stored_by: tuple[str, ...] = ()) -> str:
        return first_file_with_word(self.files, self.scope, words, stored_by) if self.files is not None else ""


class _DetachInstead(ast.NodeTransformer):
    """Replaces the call, such as `loss.item()`, by `loss.detach()`."""

    def __init__(self, call: ast.Call) -> None:
        self.position = call.lineno, call.col_offset, call.end_lineno, call.end_col_offset

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) != self.position:
            return self.generic_visit(node)
        tensor = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0]
        if isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute) and tensor.func.attr == "detach":
            return tensor
        return ast.Call(ast.Attribute(tensor, "detach", ast.Load()), [], [])


def call_sites(scope: FileScope, rules: Sequence[LoadedRule], files: ProjectFiles | None = None) -> Iterator[CallSite]:
    """Yields each call in a file for which a rule has a verdict, in the order of the text.

    Args:
        scope: the file.
        rules: the rules to apply.
        files: the files of the command, if rules may ask about them.
    """
    by_name: dict[str, list[tuple[LoadedRule, type[CallRule]]]] = {}
    for loaded in rules:
        if issubclass(loaded.rule, CallRule):
            for name in called_names(loaded):
                by_name.setdefault(name, []).append((loaded, loaded.rule))
    names = _with_aliases(scope, {n.rpartition(".")[2] for n in by_name})
    if not any(_last_part(call.func) in names for call in node_index(scope.tree).of(ast.Call)):
        return
    context = CallContext(scope)
    reported = set[tuple[type[CallRule], ast.AST | None]]()
    for symbol, call, inner_scope in _calls(scope, names):
        for name in (_name_of(call, inner_scope), _method(call)):
            for loaded, rule in by_name.get(name, ()):
                once_in = _part_of_one_report(rule, call, context)
                placed = PlacedCall(name, call, inner_scope, context, rule.parameters, files)
                site = _site(loaded, rule, symbol, placed) if (rule, once_in) not in reported else None
                if site is not None:
                    reported.add((rule, once_in))
                    yield site


def _part_of_one_report(rule: type[CallRule], call: ast.Call, context: CallContext) -> ast.AST | None:
    """The part of the file in which a rule reports one call only; None for the whole file."""
    if rule.once == "statement":
        return context.nesting.statement_of(call)
    return None if rule.once == "file" else call


def _with_aliases(scope: FileScope, names: set[str]) -> set[str]:
    """Adds the aliases that the file uses to the last parts of qualified names: `import AdamW as Optimizer`."""
    nodes = node_index(scope.tree)
    aliases = {a.asname for a in nodes.of(ast.alias) if a.asname and a.name.rpartition(".")[2] in names}
    qualified = {name for name, full_name in scope.qualified_names.items() if full_name.rpartition(".")[2] in names}
    return names | aliases | qualified


def may_apply(loaded: LoadedRule, source: bytes) -> bool:
    """Whether a rule about calls may apply to a file with these bytes."""
    if not issubclass(loaded.rule, CallRule) or loaded.rule.hint.encode() not in source:
        return False
    return any(name.rpartition(".")[2].encode() in source for name in loaded.rule.calls)


def called_names(loaded: LoadedRule) -> tuple[str, ...]:
    """The functions that a rule names, and where torch defines each class: `torch.optim.adamw.AdamW`."""
    names: tuple[str, ...] = loaded.rule.calls if issubclass(loaded.rule, CallRule) else ()
    classes = [n.rpartition(".") for n in names if n.startswith("torch.")]
    return (*names, *(f"{owner}.{name.lower()}.{name}" for owner, _, name in classes if name[0].isupper()))


def _site(loaded: LoadedRule, rule: type[CallRule], symbol: str, call: PlacedCall) -> CallSite | None:
    change = loaded.change
    assert change is not None, "the loader sets `change` for every rule about calls"
    omitted = tuple(
        v for name, text in change.removed if (v := call.value(name)) is not None and ast.unparse(v) == text
    )
    if len(omitted) != len(change.removed) or any(call.given(n) is not None for n in rule.unless):
        return None
    verdict = answer_of(rule, rule.at, call)
    if change.added and call.starred and verdict is not None:
        verdict = Fails(because(matches.ARGUMENTS_STARRED, starred=call.starred, added=_format_arguments(change.added)))
    if verdict is None or call.context.is_test and not (isinstance(verdict, Holds) and verdict.safety == "safe"):
        return None
    is_edited = isinstance(verdict, Holds)
    if isinstance(verdict, Holds) and (line := _settings_read(call, change.added)):
        assumption = f"assumes that the settings that line {line} shows may change"
        verdict = Holds("unsafe", f"{verdict.why}; {assumption}" if verdict.safety == "unsafe" else assumption)
    return CallSite(loaded, symbol, call.node, verdict, change.added if is_edited else (), omitted if is_edited else ())


def _settings_read(call: PlacedCall, added: tuple[tuple[str, str], ...]) -> int:
    return first_settings_read(call.node, call.name, {name for name, _ in added}, call.scope, call.context.nesting)


def _format_arguments(added: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"`{name}={text}`" for name, text in added)


def _name_of(call: ast.Call, scope: FileScope) -> str:
    """The qualified name of the called function, or of a builtin that the file does not redefine."""
    builtin = call.func.id if isinstance(call.func, ast.Name) and call.func.id not in scope.bound else ""
    return scope.name_of(call.func) or builtin


def _method(call: ast.Call) -> str:
    return f".{call.func.attr}" if isinstance(call.func, ast.Attribute) else ""


def _calls(scope: FileScope, names: set[str]) -> list[tuple[str, ast.Call, FileScope]]:
    """The calls of functions with one of these names. Each has the function around it and the scope there."""
    own_calls: dict[ast.AST, list[ast.Call]] = {}
    index = node_index(scope.tree)
    for i, call in index.placed(ast.Call):
        if _last_part(call.func) in names and _is_in_body(call, around := index.scopes(i)[-1]):
            own_calls.setdefault(around, []).append(call)
    calls = [("<module>", c, scope) for c in own_calls.pop(scope.tree, ())]
    for defined in functions(scope) if own_calls else ():
        if defined.function in own_calls:
            inner = defined.scope.nested_scope(defined.function)
            calls += [(defined.symbol, c, inner) for c in own_calls[defined.function]]
    return sorted(calls, key=lambda f: (f[1].lineno, f[1].col_offset, f[1].end_col_offset or 0))


def _is_in_body(call: ast.Call, around: ast.AST) -> bool:
    """Whether a call is in the body of the function around it, and not in its decorators or defaults."""
    if not isinstance(around, Function):
        return True
    first = around.body[0]
    return (call.lineno, call.col_offset) >= (first.lineno, first.col_offset)


def _last_part(function: ast.expr) -> str:
    """The last part of a dotted name."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
