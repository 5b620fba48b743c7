"""Whose attribute it is that a file changes: which classes `model.attn` in `model.attn.drop = f` may be an instance of.

A name is what it is assigned, annotated or tested to be. Where the text does not say, it may be anything. Knows
syntax and the scope of one file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import FileScope, self_name
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.changes import CodeChange
from autofuse.source.evidence.tested_kinds import class_name, kinds_of

# What people call settings, which are no modules: assigning config.dropout replaces no child.
_SETTINGS = re.compile(r"(.*_)?(config|conf|cfg|args|arguments|hparams|opts?|options|settings|namespace|ctx|kwargs)$")
_SAME_OBJECT = frozenset("to cuda cpu eval train half float double bfloat16 requires_grad_ apply".split())
_ANYTHING = ("torch.nn.Module", "torch.nn.modules.Module", "typing.Any", "object")
SETTINGS = "<settings>"


def classes_of(scope: FileScope, change: CodeChange) -> frozenset[str] | None:
    """The names of the classes, in full where imported, whose attribute is changed; None where it may be any."""
    if change.receiver is None:
        return None
    tested = _tested(scope, change)
    return tested if tested is not None else _classes(scope, change.receiver, change.function, change.owner, 0)


def is_self(change: CodeChange) -> bool:
    """Whether a method changes what belongs to its own instance or class."""
    me = self_name(change.function) if change.function is not None and change.owner is not None else None
    receiver = change.receiver
    if isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Name) and receiver.func.id == "type":
        receiver = receiver.args[0] if receiver.args else None
    if isinstance(receiver, ast.Attribute) and receiver.attr == "__class__":
        receiver = receiver.value
    return me is not None and isinstance(receiver, ast.Name) and receiver.id == me


def _tested(scope: FileScope, change: CodeChange) -> frozenset[str] | None:
    """The classes that an `if isinstance(m, nn.Softmax)` around leaves; None where the text does not tell."""
    found = frozenset[str]()
    text = ast.unparse(change.receiver) if change.receiver is not None else ""
    for test in change.around:
        for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else (test,):
            match part:
                case ast.Call(func=ast.Name(id="isinstance"), args=[asked, kinds]) if ast.unparse(asked) == text:
                    named = kinds_of(scope, kinds, change.function)
                    if named is not None and named.isdisjoint(_ANYTHING):
                        found |= named
    return found or None


def _classes(
    scope: FileScope, node: ast.expr, function: Function | None, owner: ast.ClassDef | None, depth: int
) -> frozenset[str] | None:
    if depth > 4:
        return None
    match node:
        case ast.Name(id=name):
            return _of_name(scope, name, function, owner, depth)
        case ast.Attribute(attr=name) if _SETTINGS.match(name):
            return frozenset({SETTINGS})
        case ast.Attribute(value=ast.Name(id=me), attr=name) if owner is not None and function is not None:
            if me == self_name(function):
                return _together(scope, _given_to(scope, owner, name), function, owner, depth)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _SAME_OBJECT:
            return _classes(scope, inner, function, owner, depth + 1)
        case ast.Call(func=ast.Attribute(attr="parse_args" | "parse_known_args")):
            return frozenset({SETTINGS})
        case ast.Call(func=made):
            kind = class_name(scope, made)
            return frozenset({kind}) if kind and kind.rpartition(".")[2][:1].isupper() else None
    return None


def _of_name(
    scope: FileScope, name: str, function: Function | None, owner: ast.ClassDef | None, depth: int
) -> frozenset[str] | None:
    if name in scope.classes:
        return frozenset({name})  # an attribute of the class itself
    if _SETTINGS.match(name):
        return frozenset({SETTINGS})
    if function is not None and owner is not None and name in (self_name(function), "cls"):
        return frozenset({owner.name})
    if (annotation := _annotation(function, name)) is not None:
        return _annotated(scope, annotation)
    return _together(scope, list(_assigned(scope, name, function)), function, owner, depth)


def _together(
    scope: FileScope, given: list[ast.expr | None], function: Function | None, owner: ast.ClassDef | None, depth: int
) -> frozenset[str] | None:
    """What something is that is assigned each of `given`: known only if all of them are."""
    found = [None if g is None else _classes(scope, g, function, owner, depth + 1) for g in given]
    return frozenset[str]().union(*(f or () for f in found)) if found and None not in found else None


def _given_to(scope: FileScope, owner: ast.ClassDef, name: str) -> list[ast.expr | None]:
    known = scope.class_scope(owner)
    return [] if known.opaque else [*known.attributes.get(name, ())]


def _assigned(scope: FileScope, name: str, function: Function | None) -> Iterator[ast.expr | None]:
    """What a name is assigned, in the function or else in the file; None for what no expression gives."""
    stored = scope.index(_Stored)
    own = stored.of(function).get(name, ()) if function is not None else ()
    if own:
        yield from own
    elif function is None or name not in {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}:
        yield from stored.of(scope.tree).get(name, ())


class _Stored:
    """What each function of a file, and the file itself, assigns to each name; None for what no expression gives."""

    def __init__(self, tree: ast.Module) -> None:
        self._known: dict[ast.AST, dict[str, list[ast.expr | None]]] = {}

    def of(self, node: ast.AST) -> dict[str, list[ast.expr | None]]:
        """What is assigned inside of `node`, by name."""
        if node not in self._known:
            self._known[node] = {}
            for target, value in _stores(node):
                plain = isinstance(target, ast.Name)
                for name in _bound_by(target):
                    self._known[node].setdefault(name, []).append(value if plain else None)
        return self._known[node]


def _stores(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    for n in walk(node):
        if isinstance(n, ast.Assign):
            yield from ((target, n.value) for target in n.targets)
        elif isinstance(n, (ast.For, ast.comprehension)):
            yield n.target, None
        elif isinstance(n, ast.withitem) and n.optional_vars is not None:
            yield n.optional_vars, None


def _bound_by(target: ast.expr) -> set[str]:
    return {t.id for t in walk(target) if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store)}


def _annotation(function: Function | None, name: str) -> ast.expr | None:
    arguments = function.args if function is not None else None
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if arguments is not None else ()
    return next((a.annotation for a in every if a.arg == name), None)


def _annotated(scope: FileScope, annotation: ast.expr) -> frozenset[str] | None:
    """The class of an annotation; None where it says nothing, or several."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return None
    name = class_name(scope, annotation)
    return frozenset({name}) if name and name not in _ANYTHING and name[:1] != "_" else None
