"""Which functions of a file can hold a match at all, told by their words; most cannot, and are read no further.

A match needs a landmark: a word such as softmax or norm, of which every spelling of a pattern contains one. It stands
in the function itself, or in what the function names: a helper, an alias, a layer of the module. Names count wherever
they are bound, so that nothing is missed. Knows words; what they mean is the business of the capture.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import ClassScope, Defined, FileScope, module_bindings
from autofuse.source.capture.syntax import walk
from autofuse.source.targets.printing import SourceText

_WORD = re.compile(rb"[A-Za-z_\x80-\xff][\w\x80-\xff]*")
_PLAIN = re.compile(rb"(?<![.\w\x80-\xff])[A-Za-z_\x80-\xff][\w\x80-\xff]*")
_QUOTE = re.compile(rb"[\"']")
_HELD = re.compile(rb"\.\s*([A-Za-z_\x80-\xff][\w\x80-\xff]*)|[\"']([A-Za-z_\x80-\xff][\w\x80-\xff]*)")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_LAYERS = (ast.Constant, ast.BinOp, ast.Compare, ast.JoinedStr)
_LIBRARIES = ("torch", "einops", "typing", "functools", "collections", "dataclasses", "math", "numpy")


class Hints:
    """Pairs of a word and of what must stand beside it, both as patterns; one pair suffices."""

    def __init__(self, *pairs: tuple[bytes, bytes]) -> None:
        self._words = [[_with_literal(each) for each in word.split(b"|")] for word, _ in pairs]
        self._beside = [re.compile(beside) for _, beside in pairs]
        self.all = frozenset(range(len(pairs)))

    def words_in(self, text: bytes) -> frozenset[int]:
        """The pairs whose word is in `text`, whatever stands beside it."""
        return frozenset(
            i
            for i, words in enumerate(self._words)
            if any(literal in text and (word is None or word.search(text)) for literal, word in words)
        )

    def beside(self, pairs: Iterable[int], text: bytes) -> bool:
        """Whether for one of `pairs`, whose word is there, what must stand beside it is in `text`."""
        return any(i == _WHOLE or self._beside[i].search(text) for i in pairs)

    def search(self, text: bytes) -> bool:
        """Whether `text` has a word with what must stand beside it."""
        return self.beside(self.words_in(text), text)


def _with_literal(word: bytes) -> tuple[bytes, re.Pattern[bytes] | None]:
    """The longest text that a word has for certain, which is found far sooner, and its pattern; None if that is all."""
    plain = re.sub(rb"\\([^\w\s])", lambda m: m[1], word)
    if re.escape(plain) == word:
        return plain, None
    runs = re.findall(rb"(?:(?<!\\)\w(?![?*+{]))+", re.sub(rb"\[[^]]*\][?*+]?|\{[^}]*\}", b" ", word))
    return max(runs, key=len, default=b""), re.compile(word)


_NONE: frozenset[int] = frozenset()
_WHOLE = -1  # the pair of a helper that has both parts itself


@dataclass(frozen=True)
class _Definition:
    """A name and the words of what it stands for. A `value` is a part of what uses it, and needs nothing beside it.

    `held`: by an object, as a method or an attribute is, so that code names it after a dot, or as a text.
    """

    name: bytes
    text: bytes
    value: bool = True
    held: bool = False

    @cached_property
    def plain(self) -> set[bytes]:
        """The words that may be names by themselves."""
        return set(_WORD.findall(self.text) if self.value else _PLAIN.findall(self.text))

    @cached_property
    def attributes(self) -> set[bytes]:
        """The words that may name what an object holds; all in what is assigned, which may stand in a class's body."""
        return self.plain if self.value else {first or second for first, second in _HELD.findall(self.text)}


class Landmarks:
    """The words of one file that may lead to a match, and by which pairs of `hints` they do."""

    def __init__(self, scope: FileScope, text: SourceText, defined: Sequence[Defined], hints: Hints) -> None:
        self.hints = hints
        self.text = text
        self._searched: dict[bytes, frozenset[int]] = {}
        self._mentioned: dict[Function, bool] = {}
        elsewhere = _imported_from_project(scope)
        self.plain = {n: found for old, n in _renamed(scope) if (found := hints.words_in(old + b"("))}
        self.held = {name.encode(): hints.all for o in _owners(defined) for name in _layers_of_project(o, elsewhere)}
        self._follow(list(self._definitions(scope, defined)))

    def near(self, function: Function) -> bool:
        """Whether a function mentions a landmark, or a name that stands for one, with what must stand beside it."""
        return function.name != "__init__" and self.mentioned(function)  # what is made there is used elsewhere

    def mentioned(self, function: Function) -> bool:
        """The same, of what is inside `__init__`, too."""
        if function not in self._mentioned:
            self._mentioned[function] = bool(self._leads(_Definition(b"", self._body(function), value=False)))
        return self._mentioned[function]

    def _words_in(self, text: bytes) -> frozenset[int]:
        """The pairs whose word is in a text: each is searched once, though many names may stand for it."""
        if text not in self._searched:
            self._searched[text] = self.hints.words_in(text)
        return self._searched[text]

    def _leads(self, definition: _Definition) -> frozenset[int]:
        """The pairs that what a name stands for is a part of. A function's must be complete."""
        pairs = self._words_in(definition.text)
        for named, words in ((self.plain, definition.plain), (self.held, definition.attributes)):
            for word in named.keys() & words:
                pairs |= named[word]
        if definition.value:
            return pairs
        return frozenset({_WHOLE}) if self.hints.beside(pairs, definition.text) else _NONE

    def _follow(self, definitions: list[_Definition]) -> None:
        """Adds every name that stands for a landmark, directly or through others."""
        while found := [(d, pairs) for d in definitions if (pairs := self._leads(d))]:
            for d, pairs in found:
                named = self.held if d.held else self.plain
                named[d.name] = named.get(d.name, _NONE) | pairs
            definitions = [d for d in definitions if d.name not in (self.held if d.held else self.plain)]

    def _definitions(self, scope: FileScope, defined: Sequence[Defined]) -> Iterator[_Definition]:
        for d in defined:
            if scope.helper(d.function):  # what is no helper is not read where it is called
                method = d.owner is not None and d.me is None
                body = self._body(d.function)
                yield _Definition(d.function.name.encode(), body, value=False, held=method)
                if d.owner is not None and d.function.name == "forward":  # a child of that class may be, too
                    yield _Definition(d.owner.node.name.encode(), body, value=False)
        for owner in _owners(defined):
            for kind in (owner.attributes, owner.defaults, owner.buffers):
                for name, values in kind.items():
                    for value in values:
                        if value is not None and not isinstance(value, _NO_LAYERS):
                            text = self._lines(value) + self._constructor(owner, value, scope)
                            yield _Definition(name.encode(), text, held=True)
        for name, nodes in scope.index(module_bindings).items():
            for node in nodes:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    told = [a.name for a in node.names if name in (a.asname, a.name, a.name.partition(".")[0])]
                    yield _Definition(name.encode(), b" ".join(n.encode() + b"(" for n in told))
                elif isinstance(node, ast.stmt) and not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                    yield _Definition(name.encode(), self._lines(node))

    def _constructor(self, owner: ClassScope, value: ast.expr, scope: FileScope) -> bytes:
        """What `__init__` says of the names that make a layer: the default of `act_layer`, what it is assigned."""
        init = owner.methods.get("__init__")
        maker = value.func if isinstance(value, ast.Call) else value
        names = {n.id for n in walk(maker) if isinstance(n, ast.Name) and n.id not in scope.bound}
        if init is None or not names:
            return b""
        arguments = [*init.args.posonlyargs, *init.args.args]
        given: list[tuple[ast.arg, ast.expr | None]] = [*zip(arguments[::-1], init.args.defaults[::-1], strict=False)]
        given += zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
        defaults = [ast.unparse(d).encode() for a, d in given if d is not None and a.arg in names]
        statements = (n for n in walk(init) if isinstance(n, (ast.Assign, ast.AnnAssign)))
        assigned = [self._lines(n) for n in statements if _binds(n, names)]
        return b"\n".join([b"", *defaults, *assigned])

    def _body(self, function: Function) -> bytes:
        """The lines of a function's body and arguments, without its own name."""
        if function.end_lineno is None:  # the top level, read as a function
            own = [s for s in function.body if not isinstance(s, (*_FUNCTIONS, ast.ClassDef))]
            return b"\n".join(map(self._lines, own))
        lines = self.text.lines[function.lineno - 1 : function.end_lineno]
        if told := _lines_of_docstring(function):
            lines[told[0] - function.lineno : told[1] - function.lineno] = []
        lines = [line.partition(b"#")[0] if b"#" in line and not _QUOTE.search(line) else line for line in lines]
        return b"\n".join(lines).replace(b"def " + function.name.encode(), b"", 1)

    def _lines(self, node: ast.stmt | ast.expr) -> bytes:
        """The lines on which `node` stands, what else stands on them included."""
        return b"\n".join(self.text.lines[node.lineno - 1 : node.end_lineno])


def _lines_of_docstring(function: Function) -> tuple[int, int] | None:
    """The first line of a docstring that has whole lines for itself, and the line after the last."""
    first = function.body[0]
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant) or len(function.body) == 1:
        return None
    begin, end = first.lineno, (first.end_lineno or first.lineno) + 1
    return (begin, end) if function.lineno < begin and end <= function.body[1].lineno else None


def _renamed(scope: FileScope) -> Iterator[tuple[bytes, bytes]]:
    """What the file imports by another name, and that name."""
    for node in walk(scope.tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for a in node.names:
                if a.asname is not None:
                    yield a.name.rpartition(".")[2].encode(), a.asname.encode()


def _binds(statement: ast.Assign | ast.AnnAssign, names: set[str]) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(isinstance(n, ast.Name) and n.id in names for t in targets for n in walk(t))


def _owners(defined: Sequence[Defined]) -> list[ClassScope]:
    return list({id(d.owner): d.owner for d in defined if d.owner is not None}.values())


def _layers_of_project(owner: ClassScope, elsewhere: frozenset[str]) -> Iterator[str]:
    """Attributes that are instances of a class which another file of the project may define."""
    for name, values in owner.attributes.items():
        functions = [v.func for v in values if isinstance(v, ast.Call)]
        if any(isinstance(f, ast.Name) and f.id in elsewhere for f in functions):
            yield name


def _imported_from_project(scope: FileScope) -> frozenset[str]:
    """Names that may be the project's own, in another file."""
    return frozenset(name for name, nodes in scope.index(module_bindings).items() if any(map(_may_be_own, nodes)))


def _may_be_own(node: ast.AST) -> bool:
    if not isinstance(node, ast.ImportFrom):
        return False
    return bool(node.level) or (node.module or "").partition(".")[0] not in _LIBRARIES
