"""Which functions of a file can hold a match at all, told by their words; most cannot, and are read no further.

A match needs a landmark: a word such as softmax or norm, of which every spelling of a pattern contains one. It stands
in the function itself, or in what the function names: a helper, an alias, a layer of the module. Names count wherever
they are bound, so that nothing is missed. Knows words; what they mean is the business of the capture.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autofuse.source.bindings import Function, bindings
from autofuse.source.printing import SourceText
from autofuse.source.scope import ClassScope, Defined, FileScope
from autofuse.source.syntax import walk

_WORD = re.compile(rb"[A-Za-z_\x80-\xff][\w\x80-\xff]*")
_RENAMED = re.compile(rb"\b(\w+)\s+as\s+(\w+)")  # from a word's start: a line may be one long word
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_LAYERS = (ast.Constant, ast.BinOp, ast.Compare, ast.JoinedStr)
_LIBRARIES = ("torch", "einops", "typing", "functools", "collections", "dataclasses", "math", "numpy")


@dataclass(frozen=True)
class _Definition:
    """A name and the words of what it stands for."""

    name: bytes
    text: bytes

    @property
    def words(self) -> set[bytes]:
        return set(_WORD.findall(self.text))


class Landmarks:
    """The words of one file that may lead to a match: `landmark` finds those that do by themselves."""

    def __init__(
        self, scope: FileScope, text: SourceText, defined: Sequence[Defined], landmark: re.Pattern[bytes]
    ) -> None:
        self.landmark = landmark
        self.text = text
        self.named = {new for old, new in _RENAMED.findall(text.source) if landmark.search(old + b"(")}
        elsewhere = _imported_from_project(scope)
        self.named |= {name.encode() for owner in _owners(defined) for name in _layers_of_project(owner, elsewhere)}
        self._follow(list(self._definitions(scope, defined)))

    def near(self, function: Function) -> bool:
        """Whether a function mentions a landmark, or a name that stands for one."""
        return self._leads(_Definition(b"", self._body(function)))

    def _leads(self, definition: _Definition) -> bool:
        return bool(self.landmark.search(definition.text)) or not self.named.isdisjoint(definition.words)

    def _follow(self, definitions: list[_Definition]) -> None:
        """Adds every name that stands for a landmark, directly or through others."""
        while found := [d for d in definitions if self._leads(d)]:
            self.named |= {d.name for d in found}
            definitions = [d for d in definitions if d.name not in self.named]

    def _definitions(self, scope: FileScope, defined: Sequence[Defined]) -> Iterator[_Definition]:
        for d in defined:
            if scope.helper(d.function):  # what is no helper is not read where it is called
                yield _Definition(d.function.name.encode(), self._body(d.function))
                if d.owner is not None and d.function.name == "forward":  # a child of that class may be, too
                    yield _Definition(d.owner.node.name.encode(), self._body(d.function))
        for owner in _owners(defined):
            for kind in (owner.attributes, owner.defaults, owner.buffers):
                for name, values in kind.items():
                    for value in values:
                        if value is not None and not isinstance(value, _NO_LAYERS):
                            yield _Definition(
                                name.encode(), self._lines(value) + self._constructor(owner, value, scope)
                            )
        for name, node in bindings(scope.tree.body):
            if isinstance(node, ast.stmt) and not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                yield _Definition(name.encode(), self._lines(node))

    def _constructor(self, owner: ClassScope, value: ast.expr, scope: FileScope) -> bytes:
        """The text of `__init__` where a layer is made by what that was given: `act_layer()`."""
        init = owner.methods.get("__init__")
        maker = value.func if isinstance(value, ast.Call) else value
        local = any(isinstance(n, ast.Name) and n.id not in scope.bound for n in walk(maker))
        return b"\n" + self._lines(init) if local and init is not None else b""

    def _body(self, function: Function) -> bytes:
        """The lines of a function's body and arguments, without its own name."""
        if function.end_lineno is None:  # the top level, read as a function
            own = [s for s in function.body if not isinstance(s, (*_FUNCTIONS, ast.ClassDef))]
            return b"\n".join(map(self._lines, own))
        return self._lines(function).replace(b"def " + function.name.encode(), b"", 1)

    def _lines(self, node: ast.stmt | ast.expr) -> bytes:
        """The lines on which `node` stands, what else stands on them included."""
        return b"\n".join(self.text.lines[node.lineno - 1 : node.end_lineno])


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
    found = ((name, node) for name, node in bindings(scope.tree.body) if isinstance(node, ast.ImportFrom))
    return frozenset(
        name for name, node in found if node.level or (node.module or "").partition(".")[0] not in _LIBRARIES
    )
