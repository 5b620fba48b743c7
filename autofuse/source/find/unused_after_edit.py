"""Finds layers, methods, functions and imports of a file that nothing in the file uses after an edit.

The finding names them, so that the user can remove them. No edit removes them, because other files may use them. The
search counts names; it does not follow values.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.scope import DefinedFunction, module_bindings
from autofuse.source.capture.syntax import walk
from autofuse.source.place.edits import Edit, TextSpan, is_inside, span_of

_MODULES = frozenset({"torch", "nn", "functional", "F", "np", "math"})
_IMPORTS = (ast.Import, ast.ImportFrom)
_Read = tuple[
    str, str
]  # (class that reads `self.name`, name), ("", name) for other attributes, ("=", name) for plain names


class ReadNames:
    """Counts how often a file reads each attribute, by class, and each name."""

    def __init__(self, tree: ast.Module) -> None:
        self.counts: Counter[_Read] = Counter()
        index = node_index(tree)
        for i, attribute in index.placed(ast.Attribute):
            if (read := _read_of(attribute, index.class_name(i))) is not None:
                self.counts[read] += 1
        self.counts.update(("=", n.id) for n in index.of(ast.Name) if n.ctx.__class__ is ast.Load)

    def classes_reading(self, attribute: str) -> set[str]:
        """The classes that read `self.<attribute>`.

        The set contains "" if an attribute of that name is read from another object.
        """
        return {owner for owner, name in self.counts if name == attribute and owner != "="}


def find_unused(edit: Edit, defined: DefinedFunction) -> tuple[str, ...]:
    """The layers and methods of `self`, the functions and the imports that the file no longer reads after an edit."""
    spans = (*edit.removals, *(span for span, _ in edit.replacements))
    owner = defined.owner.node.name if defined.owner is not None else ""
    removed = Counter(
        read for node in _names_in_spans(defined.function, spans) if (read := _read_of(node, owner)) is not None
    )
    if not removed:
        return ()
    new_text = " ".join((*(new.text for _, new in edit.replacements), *(new for _, new in edit.insertions)))
    counted = defined.scope.index(ReadNames)
    unused = [read for read in removed if removed[read] == counted.counts[read] and not _is_mentioned(read, new_text)]
    return tuple(name for read in unused if (name := _written_name(read, defined, counted)))


def _is_mentioned(read: _Read, text: str) -> bool:
    """Whether new text reads a name again. The name of a keyword argument does not count."""
    prefix = r"\." if read[0] != "=" else r"(?<![.\w])"
    return re.search(rf"{prefix}{read[1]}\b(?!=)", text) is not None


def _written_name(read: _Read, defined: DefinedFunction, counted: ReadNames) -> str:
    """The name as the file writes it, or "" if it is only a number or is defined in another file."""
    owner, name = read
    if owner == "=":
        return name if name in defined.scope.functions or _is_imported(name, defined) else ""
    if defined.owner is None or owner != defined.owner.node.name:
        return ""
    for other in counted.classes_reading(name) - {owner}:
        scope = defined.scope.classes.get(other)
        if scope is None or name not in scope.attributes and name not in scope.methods:
            return ""  # `other` may inherit this attribute from the class
    if name in defined.owner.methods:
        return f"self.{name}"
    assigned = defined.scope.attribute(defined.owner, name)
    constructor = assigned.func if isinstance(assigned, ast.Call) else None
    constructor_name = getattr(constructor, "attr", getattr(constructor, "id", ""))
    return f"self.{name}" if constructor_name[:1].isupper() and constructor_name != "Parameter" else ""


def _is_imported(name: str, defined: DefinedFunction) -> bool:
    """Whether only imports at module level bind a name."""
    nodes = defined.scope.index(module_bindings).get(name, ())
    return bool(nodes) and name not in defined.scope.local and all(isinstance(n, _IMPORTS) for n in nodes)


def _names_in_spans(function: ast.AST, spans: tuple[TextSpan, ...]) -> Iterator[ast.AST]:
    for node in walk(function):
        if isinstance(node, (ast.Name, ast.Attribute)) and any(is_inside(span_of(node), s) for s in spans):
            yield node


def _read_of(node: ast.AST, owner: str) -> _Read | None:
    """The thing that a node reads: an attribute of `self` in class `owner`, another attribute, or a name."""
    if isinstance(node, ast.Name):
        return ("=", node.id) if node.ctx.__class__ is ast.Load else None
    if not isinstance(node, ast.Attribute) or node.ctx.__class__ is not ast.Load:
        return None
    base = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
    if base == "self" and isinstance(node.value, ast.Name):
        return owner, node.attr
    return None if base in _MODULES else ("", node.attr)
