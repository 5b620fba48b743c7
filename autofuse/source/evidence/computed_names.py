"""Does code that the text does not show bind the names that an edit reads? `exec(text)`, `globals().update(table)`.

A text that stands in the file is read for what it may change: the names that it binds or declares global, the
attributes that it sets, and the classes that it inherits from. One that does not may change anything. Knows syntax.
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
from autofuse.source.capture.scope import Defined
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.names_read import NamesRead, names_read

_RUNS_TEXT = frozenset({"exec", "eval"})
_SETS = frozenset("setattr __setattr__ patch object update __setitem__ register_forward_hook".split())
_LONGEST = 60  # characters of the code that a message repeats
_LARGEST = 1 << 16  # characters of a text that is read


def names_are_not_computed(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails where a text that the file runs changes what the edit reads; Missing where it may, and is not shown."""
    found = claim.defined.scope.index(_computed)
    if not found:
        return
    read = names_read(claim.defined)
    for each in found:
        if each.names is None:
            yield Missing(f"assumes that `{each.text}` in line {each.line} binds no name that is read here")
        elif name := _read(each.names, claim, read):
            why = because(code_that_runs.OTHER_CODE_RUNS, name=name, how="may replace")
            yield Fails(why, enables=False, text=each.text, line=each.line)


@dataclass(frozen=True)
class _Computed:
    """Code that binds names by their text: all that it may change; None where the text is not shown."""

    node: ast.expr
    names: _Changed | None

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def text(self) -> str:
        text = ast.unparse(self.node).splitlines()[0]
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@dataclass(frozen=True)
class _Changed:
    """What a text may change: names of the file, attributes of anything, and classes by a subclass."""

    bound: frozenset[str]
    attributes: frozenset[str] = frozenset()
    bases: frozenset[str] = frozenset()


def _read(changed: _Changed, claim: Claim, read: NamesRead) -> str:
    """What the edit reads of what a text changes; "" for nothing."""
    d = claim.defined
    names = _names_of(d) | {claim.edit.becomes.partition(".")[0]}
    uses = {r.name for r in read.names}
    members = uses | read.methods | {n.rpartition(".")[2] for n in read.torch}
    members |= {claim.edit.becomes.rpartition(".")[2], d.function.name}
    classes = {c.node.name for c in d.scope.lineage(d.owner)} if d.owner is not None else set[str]()
    found = (changed.bound & (names | uses)) | (changed.attributes & members) | (changed.bases & classes)
    return min(found, default="")


def _names_of(d: Defined) -> set[str]:
    """The names of the file that a function reads."""
    return {n.id for n in walk(d.function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _computed(tree: ast.Module) -> tuple[_Computed, ...]:
    texts = _Texts(tree)
    return tuple(
        sorted((c for n in texts.nodes if isinstance(n, (ast.Call, ast.Assign)) for c in _made(n, texts)),
               key=lambda c: c.line)
    )  # fmt: skip


def _made(n: ast.Call | ast.Assign, texts: _Texts) -> Iterator[_Computed]:
    match n:
        case ast.Call(func=ast.Name(id=name), args=[code, *_]) if name in _RUNS_TEXT:
            if (name == "exec" or not _is_lookup(code)) and not _is_no_python(code):
                found = texts.of(code)
                yield _Computed(n, None if found is None else _changed(found))
        case ast.Call(func=ast.Attribute(value=table, attr="update"), args=args, keywords=given) if _is_names(table):
            if any(k.arg is None for k in given) or not all(_is_plain_dict(a) for a in args):
                names = texts.keys([*args, *(k.value for k in given if k.arg is None)])
                yield _Computed(n, None if names is None else _Changed(names))
        case ast.Call(func=ast.Attribute(value=table, attr="__setitem__"), args=[key, _]) if _is_names(table):
            yield _Computed(n, _of_key(key))
        case ast.Call(func=ast.Name(id="setattr"), args=[owner, key, _]) if _is_module_here(owner):
            yield _Computed(n, _of_key(key))
        case ast.Assign(targets=targets):
            for t in targets:
                if isinstance(t, ast.Subscript) and _is_names(t.value) and not isinstance(t.slice, ast.Constant):
                    yield _Computed(t, None)


def _is_no_python(code: ast.expr) -> bool:
    """Whether a text is written out that runs nothing: a magic of a notebook, which is read as such a call."""
    if not _is_text(code) or len(code.value) > _LARGEST:
        return False
    try:
        ast.parse(code.value.strip("\n"))
    except SyntaxError:
        return True
    except (ValueError, RecursionError, MemoryError):
        return False
    return False


def _of_key(key: ast.expr) -> _Changed | None:
    return _Changed(frozenset({key.value})) if _is_text(key) else None


class _Text(ast.Constant):
    value: str


def _is_text(node: ast.AST | None) -> TypeGuard[_Text]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_names(table: ast.expr) -> bool:
    """Whether an expression is the namespace of the file."""
    match table:
        case ast.Call(func=ast.Name(id="globals")) | ast.Call(func=ast.Name(id="vars"), args=[]):
            return True
        case ast.Call(func=ast.Name(id="vars"), args=[owner]) | ast.Attribute(value=owner, attr="__dict__"):
            return _is_module_here(owner)
    return False


def _is_module_here(owner: ast.expr) -> bool:
    """`sys.modules[__name__]`, or the same by `importlib`."""
    match owner:
        case ast.Subscript(value=ast.Attribute(attr="modules") | ast.Name(id="modules"), slice=ast.Name("__name__")):
            return True
        case ast.Call(args=[ast.Name("__name__")]):
            return True
    return False


def _is_plain_dict(node: ast.expr) -> bool:
    """A display whose keys are all texts, which bound_by_name reads."""
    return isinstance(node, ast.Dict) and all(map(_is_text, node.keys))


def _is_lookup(code: ast.expr) -> bool:
    """Whether a text that is evaluated is put together of a name: `eval(f"nn.{name}")`, `eval(name)`, as configs do."""
    return not _is_text(code) and not any(_is_text(n) and "(" in n.value for n in walk(code))


class _Texts:
    """The texts and tables that the names of a file hold."""

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

    def of(self, code: ast.expr) -> list[str] | None:
        """The texts that an expression is made of; None where one is not in the file."""
        match code:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Name(id=name):
                values = self._assigned(name)
                return self._all(values) if values else None
            case ast.JoinedStr(values=values):
                return self._all([v.value if isinstance(v, ast.FormattedValue) else v for v in values])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._all([left, right])
            case ast.Call(func=ast.Name(id="compile") | ast.Attribute(attr="dedent"), args=[text, *_]):
                return self.of(text)
        return None

    def _all(self, parts: list[ast.expr | None]) -> list[str] | None:
        found: list[str] = []
        for part in parts[:8]:
            text = self.of(part) if part is not None and not isinstance(part, ast.Name) else None
            if isinstance(part, ast.Name):
                held = self._assigned(part.id)
                text = [v.value for v in held if _is_text(v)] if held and all(map(_is_text, held)) else None
            if text is None:
                return None
            found += text
        return found

    def keys(self, tables: list[ast.expr]) -> frozenset[str] | None:
        """The names in tables; None where one is computed."""
        found = set[str]()
        for table in tables:
            held = self._assigned(table.id) if isinstance(table, ast.Name) else [table]
            for value in held or [None]:
                names = _keys_of(value)
                if names is None:
                    return None
                found |= names
        return frozenset(found)


def _keys_of(table: ast.expr | None) -> set[str] | None:
    match table:
        case ast.Dict(keys=keys) if all(map(_is_text, keys)):
            return {k.value for k in keys if _is_text(k)}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=given) if all(k.arg for k in given):
            return {k.arg for k in given if k.arg}
        case ast.List(elts=pairs) | ast.Tuple(elts=pairs):
            firsts = [p.elts[0] if isinstance(p, (ast.Tuple, ast.List)) and p.elts else None for p in pairs]
            return {f.value for f in firsts if _is_text(f)} if all(map(_is_text, firsts)) else None
    return None


def _changed(texts: list[str]) -> _Changed | None:
    """What texts that are run change; None where they are no Python."""
    bound, attributes, bases = set[str](), set[str](), set[str]()
    for text in texts:
        if len(text) > _LARGEST:
            return None
        try:
            tree = ast.parse(text.strip("\n"))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        bound |= {name for name, _ in bindings(tree.body)}
        for n in walk(tree):
            match n:
                case ast.Global(names=names):
                    bound.update(names)
                case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
                    attributes.add(name)
                case ast.ClassDef(bases=inherited):
                    bases |= {p.id for b in inherited for p in walk(b) if isinstance(p, ast.Name)}
                    bases |= {p.attr for b in inherited for p in walk(b) if isinstance(p, ast.Attribute)}
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=given) if (
                    name in _SETS
                ):
                    told = [a.value for a in args if _is_text(a)]
                    words = {w for t in told for w in str(t).split(".")} | {k.arg for k in given if k.arg}
                    bound |= words
                    attributes |= words
                case ast.Call(func=ast.Name(id="exec" | "eval")):
                    return None
    return _Changed(frozenset(bound), frozenset(attributes), frozenset(bases))
