"""What an edit leaves without a use in its file: layers, methods and functions that only the removed code named.

Named in the finding, so that the user can remove them. Other files may use them, so no edit removes them. Knows
syntax and counts names.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from autofuse.source.capture.scope import Defined
from autofuse.source.capture.syntax import children, walk
from autofuse.source.place.edits import Edit, TextSpan, is_inside, span_of

_MODULES = frozenset({"torch", "nn", "functional", "F", "np", "math"})
_READING = frozenset({ast.Name, ast.Attribute})
_NO_PARTS = frozenset({ast.Name, ast.Constant})
_Read = tuple[str, str]  # the class whose `self` is read, or "", and the attribute; a name alone is ("=", name)


class ReadNames:
    """How often a file reads each attribute, by class, and each name. Made once for a file."""

    def __init__(self, tree: ast.Module) -> None:
        self.counts: Counter[_Read] = Counter()
        todo: list[tuple[ast.AST, str]] = [(tree, "")]
        while todo:
            node, owner = todo.pop()
            kind = node.__class__
            if kind is ast.ClassDef:
                owner = node.name  # type: ignore[attr-defined]
            elif kind in _READING and (read := _read(node, owner)) is not None:
                self.counts[read] += 1
            if kind not in _NO_PARTS:
                todo += [(child, owner) for child in children(node)]

    def classes_reading(self, attribute: str) -> set[str]:
        """The classes in which `self` is asked for an attribute; "" where something else is."""
        return {owner for owner, name in self.counts if name == attribute and owner != "="}


def left_unused(edit: Edit, d: Defined) -> tuple[str, ...]:
    """The layers and methods of self, and functions of the file, that nothing in the file reads any more."""
    gone = (*edit.removals, *(span for span, _ in edit.replacements))
    owner = d.owner.node.name if d.owner is not None else ""
    removed = Counter(r for n in _within(d.function, gone) if (r := _read(n, owner)) is not None)
    if not removed:
        return ()
    written = " ".join((*(t.text for _, t in edit.replacements), *(t for _, t in edit.insertions)))
    every = d.scope.index(ReadNames)
    found = [r for r in removed if removed[r] == every.counts[r] and not re.search(rf"\b{r[1]}\b", written)]
    return tuple(name for r in found if (name := _left(r, d, every)))


def _left(read: _Read, d: Defined, every: ReadNames) -> str:
    """What is left behind under a name, as the file calls it: no number, and nothing that the file does not define."""
    owner, name = read
    if owner == "=":
        return name if name in d.scope.functions else ""
    if d.owner is None or owner != d.owner.node.name:
        return ""
    for other in every.classes_reading(name) - {owner}:
        scope = d.scope.classes.get(other)
        if scope is None or name not in scope.attributes and name not in scope.methods:
            return ""  # it may be that of this class
    if name in d.owner.methods:
        return f"self.{name}"
    assigned = d.scope.attribute(d.owner, name)
    made = assigned.func if isinstance(assigned, ast.Call) else None
    last = getattr(made, "attr", getattr(made, "id", ""))
    return f"self.{name}" if last[:1].isupper() and last != "Parameter" else ""


def _within(function: ast.AST, spans: tuple[TextSpan, ...]) -> Iterator[ast.AST]:
    for n in walk(function):
        if isinstance(n, (ast.Name, ast.Attribute)) and any(is_inside(span_of(n), s) for s in spans):
            yield n


def _read(node: ast.AST, owner: str) -> _Read | None:
    """What a node reads: an attribute of self in the class `owner`, of something else, or a name."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()):
            return owner, name
        case ast.Attribute(value=ast.Name(id=base) | ast.Attribute(attr=base), attr=name, ctx=ast.Load()):
            return None if base in _MODULES else ("", name)
        case ast.Attribute(attr=name, ctx=ast.Load()):
            return "", name
        case ast.Name(id=name, ctx=ast.Load()):
            return "=", name
    return None
