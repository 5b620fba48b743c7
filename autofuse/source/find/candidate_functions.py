"""Finds the functions of a file that may contain a match, by their words. Most functions cannot, and are not captured.

Every spelling of a pattern contains a hint: a word such as `softmax` or `norm`. The hint is in the function itself, or
in the text of a name that the function uses: a helper, an alias, a layer of the module. A name counts wherever it is
bound, so no match is missed. This module compares words; the capture decides what they mean.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.scope import ClassScope, DefinedFunction, FileScope, module_bindings
from autofuse.source.capture.syntax import walk
from autofuse.source.find.word_hints import WordHints
from autofuse.source.targets.printing import SourceText

_WORD = re.compile(rb"[A-Za-z_\x80-\xff][\w\x80-\xff]*")
_PLAIN_NAME = re.compile(rb"(?<![.\w\x80-\xff])[A-Za-z_\x80-\xff][\w\x80-\xff]*")
_QUOTE = re.compile(rb"[\"']")
_ATTRIBUTE_NAME = re.compile(rb"\.\s*([A-Za-z_\x80-\xff][\w\x80-\xff]*)|[\"']([A-Za-z_\x80-\xff][\w\x80-\xff]*)")
# A layer is called, read whole, or asked for its `forward`. Other attributes of it do not compute what it computes.
_LAYER_NAME = re.compile(
    rb"\.\s*([A-Za-z_\x80-\xff][\w\x80-\xff]*)(?![\w\x80-\xff])(?!\s*\.(?!\s*(?:forward|__call__)\b))|[\"']([A-Za-z_\x80-\xff][\w\x80-\xff]*)"
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NEVER_LAYERS = (ast.Constant, ast.BinOp, ast.Compare, ast.JoinedStr)
_MANY = 100  # names; to list the words of a text is faster than to search for so many
_LIBRARIES = ("torch", "einops", "typing", "functools", "collections", "dataclasses", "math", "numpy")


_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Definition:
    """A name, and the text that defines it.

    Attributes:
        is_value: whether the text becomes a part of the code that uses the name. Such a text needs only a hint. The
            text of a function needs its accompanying text, too.
        is_attribute: whether an object has the name, as a method or an attribute. Code then writes the name after a dot
            or in quotes.
    """

    name: bytes
    text: bytes
    is_value: bool = True
    is_attribute: bool = False

    @cached_property
    def plain_names(self) -> set[bytes]:
        """The words of the text that may be names on their own."""
        return set(_WORD.findall(self.text) if self.is_value else _PLAIN_NAME.findall(self.text))

    @cached_property
    def attributes(self) -> set[bytes]:
        """The words of the text that may be attributes. In a value any word may, as it may be in a class body."""
        return self.plain_names if self.is_value else _names_in(_ATTRIBUTE_NAME, self.text)

    @cached_property
    def layers(self) -> set[bytes]:
        """The words of the text that may be attributes whose value is called."""
        return self.plain_names if self.is_value else _names_in(_LAYER_NAME, self.text)


def _names_in(pattern: re.Pattern[bytes], text: bytes) -> set[bytes]:
    return {first or second for first, second in pattern.findall(text)}


def defines_classes(source: bytes) -> bool:
    """Whether a file may define a class. The layers of a class may come from other files, with words of their own."""
    return b"class " in source


class CandidateFunctions:
    """The names in one file that may lead to a match, with the hints for which they count."""

    def __init__(
        self, scope: FileScope, text: SourceText, defined: Sequence[DefinedFunction], hints: WordHints
    ) -> None:
        self.hints = hints
        self.lines = _without_prose(scope.tree, text)
        self._searched: dict[bytes, frozenset[int]] = {}
        self._may_match: dict[Function, bool] = {}
        project_names = _imported_from_project(scope)
        self.plain_names = {n: found for old, n in _import_aliases(scope) if (found := hints.of_name(old))}
        self.attribute_names: dict[bytes, frozenset[int]] = {}
        self.layer_names = {name.encode() for o in _owners(defined) for name in _project_layers(o, project_names)}
        self._add_names(list(self._definitions(scope, defined)))

    def is_candidate(self, function: Function) -> bool:
        """Whether a function other than `__init__` may contain a match."""
        return function.name != "__init__" and self.may_match(function)  # `__init__` only makes what other methods use

    def may_match(self, function: Function) -> bool:
        """Whether the text of a function, including the names it uses, contains the words of a rule."""
        if function not in self._may_match:
            definition = _Definition(b"", self._body_text(function), is_value=False)
            found = self._own_hints(definition)
            for is_attribute, hinted in ((False, self.plain_names), (True, self.attribute_names)):
                if _may_mention(hinted, definition.text):
                    words = definition.attributes if is_attribute else definition.plain_names
                    found = found.union(*(hinted[word] for word in hinted.keys() & words))
            self._may_match[function] = self.hints.suffice(self.hints.complete(found, definition.text))
        return self._may_match[function]

    def _own_hints(self, definition: _Definition) -> frozenset[int]:
        """The hints in the text of a definition. A layer with a class of another file may add any."""
        words = self._words_in(definition.text)
        named = _may_mention(self.layer_names, definition.text)
        return words | self.hints.all if named and not self.layer_names.isdisjoint(definition.layers) else words

    def _words_in(self, text: bytes) -> frozenset[int]:
        """The hints in a text. Cached, because many names may have the same text."""
        if text not in self._searched:
            self._searched[text] = self.hints.words_in(text)
        return self._searched[text]

    def _add_names(self, definitions: Sequence[_Definition]) -> None:
        """Adds every name that leads to a hint, directly or through other names."""
        users = _users_of_names(definitions, self.plain_names)
        found = list(map(self._own_hints, definitions))
        for name, hints in self.plain_names.items():
            for user in users.get((False, name), ()):
                found[user] |= hints
        todo = dict.fromkeys(i for i, hints in enumerate(found) if hints)
        while todo:
            i, _ = todo.popitem()
            definition = definitions[i]
            hinted = self.attribute_names if definition.is_attribute else self.plain_names
            leads = found[i] if definition.is_value else self.hints.complete(found[i], definition.text)
            known = hinted.get(definition.name, _NONE)
            if not leads <= known:
                hinted[definition.name] = known | leads
                for user in users.get((definition.is_attribute, definition.name), ()):
                    if not leads <= found[user]:
                        found[user] |= leads
                        todo[user] = None

    def _definitions(self, scope: FileScope, defined: Sequence[DefinedFunction]) -> Iterator[_Definition]:
        """Yields the definitions in the file: helpers, attributes, module-level names and imports."""
        for d in defined:
            if scope.can_inline(d.function):  # calls of other functions are not inlined
                method = d.owner is not None and d.instance_name is None
                body = self._body_text(d.function)
                yield _Definition(d.function.name.encode(), body, is_value=False, is_attribute=method)
                if d.owner is not None and d.function.name == "forward":  # a child of this class may be inlined too
                    yield _Definition(d.owner.node.name.encode(), body, is_value=False)
        for owner in _owners(defined):
            for kind in (owner.attributes, owner.defaults, owner.buffers):
                for name, values in kind.items():
                    for value in values:
                        if value is not None and not isinstance(value, _NEVER_LAYERS):
                            text = self._lines_of(value) + self._constructor_text(owner, value, scope)
                            yield _Definition(name.encode(), text, is_attribute=True)
        for name, nodes in scope.index(module_bindings).items():
            for node in nodes:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    imported = [a.name for a in node.names if name in (a.asname, a.name, a.name.partition(".")[0])]
                    yield _Definition(name.encode(), b" ".join(n.encode() + b"(" for n in imported))
                elif isinstance(node, ast.stmt) and not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                    yield _Definition(name.encode(), self._lines_of(node))

    def _constructor_text(self, owner: ClassScope, value: ast.expr, scope: FileScope) -> bytes:
        """The parts of `__init__` about the names that make a layer: the default of `act_layer`, assignments to it."""
        init = owner.methods.get("__init__")
        maker = value.func if isinstance(value, ast.Call) else value
        names = {n.id for n in walk(maker) if isinstance(n, ast.Name) and n.id not in scope.bound}
        if init is None or not names:
            return b""
        arguments = [*init.args.posonlyargs, *init.args.args]
        with_defaults: list[tuple[ast.arg, ast.expr | None]] = [
            *zip(arguments[::-1], init.args.defaults[::-1], strict=False)
        ]
        with_defaults += zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
        defaults = [ast.unparse(d).encode() for a, d in with_defaults if d is not None and a.arg in names]
        statements = (n for n in walk(init) if isinstance(n, (ast.Assign, ast.AnnAssign)))
        assigned = [self._lines_of(n) for n in statements if _binds(n, names)]
        return b"\n".join([b"", *defaults, *assigned])

    def _body_text(self, function: Function) -> bytes:
        """The lines of a function's arguments and body, without its own name."""
        if function.end_lineno is None:  # the module body, captured like a function
            own = [s for s in function.body if not isinstance(s, (*_FUNCTIONS, ast.ClassDef))]
            return b"\n".join(map(self._lines_of, own))
        lines = self.lines[function.lineno - 1 : function.end_lineno]
        lines = [line.partition(b"#")[0] if b"#" in line and not _QUOTE.search(line) else line for line in lines]
        return b"\n".join(lines).replace(b"def " + function.name.encode(), b"", 1)

    def _lines_of(self, node: ast.stmt | ast.expr) -> bytes:
        """The complete lines that contain `node`."""
        return b"\n".join(self.lines[node.lineno - 1 : node.end_lineno])


def _may_mention(names: Collection[bytes], text: bytes) -> bool:
    """Whether a text may contain one of `names`: a fast test before its words are listed. Many names take too long."""
    return len(names) > _MANY or any(name in text for name in names)


def _without_prose(tree: ast.Module, text: SourceText) -> list[bytes]:
    """The lines of a file, with blanks for each string that contains a space. Such a string names no operation."""
    lines, index = list(text.lines), node_index(tree)
    parts = {id(part) for joined in index.of(ast.JoinedStr) for part in joined.values}  # they have no own place
    for node in index.of(ast.Constant):
        if node.value.__class__ is str and (" " in node.value or "\n" in node.value) and id(node) not in parts:
            first, last = node.lineno - 1, (node.end_lineno or 0) - 1
            for i in range(first, last + 1):
                start = node.col_offset if i == first else 0
                end = node.end_col_offset or 0 if i == last else len(lines[i])
                lines[i] = lines[i][:start] + b" " * (end - start) + lines[i][end:]
    return lines


def _users_of_names(
    definitions: Sequence[_Definition], aliases: Collection[bytes]
) -> dict[tuple[bool, bytes], list[int]]:
    """For each name, as a plain name or an attribute, the indexes of the definitions whose text contains it."""
    names: tuple[set[bytes], set[bytes]] = set(aliases), set()
    for d in definitions:
        names[d.is_attribute].add(d.name)
    users: dict[tuple[bool, bytes], list[int]] = {}
    for i, d in enumerate(definitions):
        for is_attribute, words in ((False, d.plain_names), (True, d.attributes)):
            for name in names[is_attribute] & words:
                users.setdefault((is_attribute, name), []).append(i)
    return users


def _import_aliases(scope: FileScope) -> Iterator[tuple[bytes, bytes]]:
    """Yields each imported name that gets an alias, with the alias."""
    for a in node_index(scope.tree).of(ast.alias):
        if a.asname is not None:
            yield a.name.rpartition(".")[2].encode(), a.asname.encode()


def _binds(statement: ast.Assign | ast.AnnAssign, names: set[str]) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(isinstance(n, ast.Name) and n.id in names for t in targets for n in walk(t))


def _owners(defined: Sequence[DefinedFunction]) -> list[ClassScope]:
    return list({id(d.owner): d.owner for d in defined if d.owner is not None}.values())


def _project_layers(owner: ClassScope, project_names: frozenset[str]) -> Iterator[str]:
    """Yields the attributes that may be instances of a class in another file of the project."""
    for name, values in owner.attributes.items():
        functions = [v.func for v in values if isinstance(v, ast.Call)]
        if any(isinstance(f, ast.Name) and f.id in project_names for f in functions):
            yield name


def _imported_from_project(scope: FileScope) -> frozenset[str]:
    """The names that may be imported from another file of the project."""
    return frozenset(name for name, nodes in scope.index(module_bindings).items() if any(map(_may_be_own, nodes)))


def _may_be_own(node: ast.AST) -> bool:
    if not isinstance(node, ast.ImportFrom):
        return False
    return bool(node.level) or (node.module or "").partition(".")[0] not in _LIBRARIES
