"""Checks that no dynamic code rebinds the names that an edit reads: `exec(text)`, `globals().update(table)`.

If the executed text is in the file, it is parsed. It may change the names that it binds or declares global, the
attributes that it sets, and the base classes of its classes. A text that is not in the file may change anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from autofuse.reasons import code_that_runs
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.bindings import bindings
from autofuse.source.capture.scope import DefinedFunction
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.names_read import NamesRead, find_names_read

_EXECUTING_FUNCTIONS = frozenset({"exec", "eval"})
_SETTING_FUNCTIONS = frozenset("setattr __setattr__ patch object update __setitem__ register_forward_hook".split())
_MAX_SHOWN = 60  # characters of the code that a message repeats
_MAX_PARSED = 1 << 16  # characters of an executed text that is parsed


def names_are_not_bound_dynamically(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails if executed text rebinds a name that the edit reads; reports executed text that the file does not show."""
    bindings = claim.defined.scope.index(_find_dynamic_bindings)
    if not bindings:
        return
    names_read_here = find_names_read(claim.defined)
    for binding in bindings:
        if binding.names is None:
            yield Missing(f"assumes that `{binding.text}` in line {binding.line} binds no name that is read here")
        elif name := _find_read_name(binding.names, claim, names_read_here):
            why = because(code_that_runs.OTHER_CODE_RUNS, name=name, how="may replace")
            yield Fails(why, enables=False, text=binding.text, line=binding.line)


@dataclass(frozen=True)
class _DynamicBinding:
    """An expression that binds names dynamically, and what it may change; None if the file does not show it."""

    node: ast.expr
    names: _ChangedNames | None

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def text(self) -> str:
        text = ast.unparse(self.node).splitlines()[0]
        return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


@dataclass(frozen=True)
class _ChangedNames:
    """The names that executed text may change: the file's names, attributes of any object, and base classes."""

    bound: frozenset[str]
    attributes: frozenset[str] = frozenset()
    bases: frozenset[str] = frozenset()


def _find_read_name(changed: _ChangedNames, claim: Claim, names_read_here: NamesRead) -> str:
    """Returns a changed name that the edit reads; "" if there is none."""
    d = claim.defined
    names = _loaded_names(d) | {claim.edit.becomes.partition(".")[0]}
    uses = {r.name for r in names_read_here.names}
    members = uses | names_read_here.methods | {n.rpartition(".")[2] for n in names_read_here.torch}
    # The new call counts as read: `F.gelu = f` replaces the function that the edit calls.
    members |= {claim.edit.becomes.rpartition(".")[2], d.function.name}
    classes = {c.node.name for c in d.scope.lineage(d.owner)} if d.owner is not None else set[str]()
    changed_and_read = (changed.bound & (names | uses)) | (changed.attributes & members) | (changed.bases & classes)
    return min(changed_and_read, default="")


def _loaded_names(d: DefinedFunction) -> set[str]:
    """Returns all names that the function loads."""
    return {n.id for n in walk(d.function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _find_dynamic_bindings(tree: ast.Module) -> tuple[_DynamicBinding, ...]:
    texts = _AssignedStrings(tree)
    return tuple(
        sorted(
            (b for n in texts.nodes if isinstance(n, (ast.Call, ast.Assign)) for b in _dynamic_bindings_of(n, texts)),
            key=lambda b: b.line,
        )
    )


def _dynamic_bindings_of(n: ast.Call | ast.Assign, texts: _AssignedStrings) -> Iterator[_DynamicBinding]:
    match n:
        case ast.Call(func=ast.Name(id=name), args=[code, *_]) if name in _EXECUTING_FUNCTIONS:
            if (name == "exec" or not _is_lookup(code)) and not _is_not_python(code):
                strings = texts.strings_of(code)
                yield _DynamicBinding(n, None if strings is None else _changes_of_texts(strings))
        case ast.Call(func=ast.Attribute(value=table, attr="update"), args=args, keywords=named) if _is_globals(table):
            # The capture itself reads keywords and literal keys as bindings.
            if any(k.arg is None for k in named) or not all(_is_plain_dict(a) for a in args):
                names = texts.table_keys([*args, *(k.value for k in named if k.arg is None)])
                yield _DynamicBinding(n, None if names is None else _ChangedNames(names))
        case ast.Call(func=ast.Attribute(value=table, attr="__setitem__"), args=[key, _]) if _is_globals(table):
            yield _DynamicBinding(n, _change_of_key(key))
        case ast.Call(func=ast.Name(id="setattr"), args=[owner, key, _]) if _is_own_module(owner):
            yield _DynamicBinding(n, _change_of_key(key))
        case ast.Assign(targets=targets):
            for t in targets:
                if isinstance(t, ast.Subscript) and _is_globals(t.value) and not isinstance(t.slice, ast.Constant):
                    yield _DynamicBinding(t, None)


def _is_not_python(code: ast.expr) -> bool:
    """Whether the executed text is a literal that is no Python: a notebook magic is read as such a call."""
    if not _is_string(code) or len(code.value) > _MAX_PARSED:
        return False
    try:
        ast.parse(code.value.strip("\n"))
    except SyntaxError:
        return True
    except (ValueError, RecursionError, MemoryError):
        return False
    return False


def _change_of_key(key: ast.expr) -> _ChangedNames | None:
    return _ChangedNames(frozenset({key.value})) if _is_string(key) else None


class _StringConstant(ast.Constant):
    value: str


def _is_string(node: ast.AST | None) -> TypeGuard[_StringConstant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_globals(table: ast.expr) -> bool:
    """Whether an expression is the global namespace of the file."""
    match table:
        case ast.Call(func=ast.Name(id="globals")) | ast.Call(func=ast.Name(id="vars"), args=[]):
            return True
        case ast.Call(func=ast.Name(id="vars"), args=[owner]) | ast.Attribute(value=owner, attr="__dict__"):
            return _is_own_module(owner)
    return False


def _is_own_module(owner: ast.expr) -> bool:
    """Whether an expression is the module itself: `sys.modules[__name__]`, `importlib.import_module(__name__)`."""
    match owner:
        case ast.Subscript(value=ast.Attribute(attr="modules") | ast.Name(id="modules"), slice=ast.Name("__name__")):
            return True
        case ast.Call(args=[ast.Name("__name__")]):
            return True
    return False


def _is_plain_dict(node: ast.expr) -> bool:
    """Whether an expression is a dict display with string literals as keys."""
    return isinstance(node, ast.Dict) and all(map(_is_string, node.keys))


def _is_lookup(code: ast.expr) -> bool:
    """Whether `eval` only looks up a name, as configurations do: `eval(f"nn.{name}")`, `eval(name)`."""
    return not _is_string(code) and not any(_is_string(n) and "(" in n.value for n in walk(code))


class _AssignedStrings:
    """The strings and tables that a file assigns to names."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(walk(tree))
        self._values: dict[str, list[ast.expr | None]] | None = None

    def _assigned(self, name: str) -> list[ast.expr | None]:
        if self._values is None:
            self._values = {}
            for n in self.nodes:
                if isinstance(n, ast.Assign):
                    for t in n.targets:
                        if isinstance(t, ast.Name):
                            self._values.setdefault(t.id, []).append(n.value)
                elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                    self._values.setdefault(n.id, [])
        return self._values.get(name, [])

    def strings_of(self, code: ast.expr) -> list[str] | None:
        """Returns the strings that an expression is made of; None if one of them is not in the file."""
        match code:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Name(id=name):
                values = self._assigned(name)
                return self._strings_of_all(values) if values else None
            case ast.JoinedStr(values=values):
                return self._strings_of_all([v.value if isinstance(v, ast.FormattedValue) else v for v in values])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._strings_of_all([left, right])
            case ast.Call(func=ast.Name(id="compile") | ast.Attribute(attr="dedent"), args=[text, *_]):
                return self.strings_of(text)
        return None

    def _strings_of_all(self, parts: list[ast.expr | None]) -> list[str] | None:
        strings: list[str] = []
        for part in parts[:8]:
            text = self.strings_of(part) if part is not None and not isinstance(part, ast.Name) else None
            if isinstance(part, ast.Name):
                assigned = self._assigned(part.id)
                text = (
                    [v.value for v in assigned if _is_string(v)]
                    if assigned and all(map(_is_string, assigned))
                    else None
                )
            if text is None:
                return None
            strings += text
        return strings

    def table_keys(self, tables: list[ast.expr]) -> frozenset[str] | None:
        """Returns the string keys of tables; None if a key is computed."""
        names = set[str]()
        for table in tables:
            assigned = self._assigned(table.id) if isinstance(table, ast.Name) else [table]
            for value in assigned or [None]:
                table_keys = _string_keys(value)
                if table_keys is None:
                    return None
                names |= table_keys
        return frozenset(names)


def _string_keys(table: ast.expr | None) -> set[str] | None:
    match table:
        case ast.Dict(keys=table_keys) if all(map(_is_string, table_keys)):
            return {k.value for k in table_keys if _is_string(k)}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(k.arg for k in keywords):
            return {k.arg for k in keywords if k.arg}
        case ast.List(elts=pairs) | ast.Tuple(elts=pairs):
            firsts = [p.elts[0] if isinstance(p, (ast.Tuple, ast.List)) and p.elts else None for p in pairs]
            return {f.value for f in firsts if _is_string(f)} if all(map(_is_string, firsts)) else None
    return None


def _changes_of_texts(texts: list[str]) -> _ChangedNames | None:
    """Returns what executed texts change; None if one of them cannot be parsed, or executes another text."""
    bound, attributes, bases = set[str](), set[str](), set[str]()
    for text in texts:
        if len(text) > _MAX_PARSED:
            return None
        try:
            tree = ast.parse(text.strip("\n"))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        bound |= {name for name, _ in bindings(tree.body)}
        for n in walk(tree):
            match n:
                case ast.Global(names=global_names):
                    bound.update(global_names)
                case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
                    attributes.add(name)
                case ast.ClassDef(bases=inherited):
                    bases |= {p.id for b in inherited for p in walk(b) if isinstance(p, ast.Name)}
                    bases |= {p.attr for b in inherited for p in walk(b) if isinstance(p, ast.Attribute)}
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=keywords) if (
                    name in _SETTING_FUNCTIONS
                ):
                    strings = [a.value for a in args if _is_string(a)]
                    names = {w for t in strings for w in str(t).split(".")} | {k.arg for k in keywords if k.arg}
                    bound |= names
                    attributes |= names
                case ast.Call(func=ast.Name(id="exec" | "eval")):
                    return None
    return _ChangedNames(frozenset(bound), frozenset(attributes), frozenset(bases))
