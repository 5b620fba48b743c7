"""Which classes `isinstance(child, kinds)` asks for: by name, in a tuple, or as what a function is called with.

`replace(model, nn.Softmax, nn.Sigmoid())` says what `isinstance(child, old)` means inside. Knows syntax and the
scope of one file.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict

from autofuse.source.capture.bindings import Function, bindings
from autofuse.source.capture.scope import FileScope, self_name
from autofuse.source.capture.syntax import walk

_DEEPEST = 3  # functions that hand a class on to one another


def kinds_of(
    scope: FileScope, node: ast.expr, function: Function | None, depth: int = _DEEPEST
) -> frozenset[str] | None:
    """The names of the classes, in full where imported; None where the file does not tell them."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        each = [kinds_of(scope, e, function, depth) for e in node.elts]
        return frozenset[str]().union(*(k for k in each if k is not None)) if None not in each else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return kinds_of(scope, ast.Tuple([node.left, node.right]), function, depth)
    root: ast.expr = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return None
    if function is not None and root.id in _bound(function):
        return _given(scope, root.id, function, depth) if root is node else None
    if root is node and not _is_class(scope, root.id):
        value = scope.variables.get(root.id)  # KINDS = (nn.Softmax, nn.Dropout)
        return kinds_of(scope, value, None, depth - 1) if value is not None and depth else None
    name = class_name(scope, node)
    return frozenset({name}) if name else None


def class_name(scope: FileScope, node: ast.expr) -> str | None:
    """The name of a class: of this file as it is written, of another in full."""
    if isinstance(node, ast.Name):
        return scope.qualified.get(node.id, node.id)
    return scope.name_of(node) or (node.attr if isinstance(node, ast.Attribute) else None)


def _is_class(scope: FileScope, name: str) -> bool:
    return name in scope.classes or name in scope.qualified or name in scope.imports or hasattr(builtins, name)


def _bound(function: Function) -> set[str]:
    return {a.arg for a in walk(function.args) if isinstance(a, ast.arg)} | {n for n, _ in bindings(function.body)}


def _given(scope: FileScope, name: str, function: Function, depth: int) -> frozenset[str] | None:
    """What the calls of `function` in the file hand it as `name`; None where one does not tell, or there is none."""
    arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if not depth or name not in {*arguments, *(a.arg for a in function.args.kwonlyargs)}:
        return None
    found = list[frozenset[str] | None]()
    for call, around in scope.index(_calls)[function.name]:
        skipped = 1 if isinstance(call.func, ast.Attribute) and self_name(function) in ("self", "cls") else 0
        at = arguments.index(name) - skipped if name in arguments else len(call.args)
        given = [k.value for k in call.keywords if k.arg == name]
        given += call.args[at : at + 1] if at >= 0 else []
        if around is function and given and isinstance(given[0], ast.Name) and given[0].id == name:
            continue  # it calls itself with the same class
        found.append(kinds_of(scope, given[0], around, depth - 1) if given else None)
    return frozenset[str]().union(*(k for k in found if k is not None)) if found and None not in found else None


def _calls(tree: ast.Module) -> defaultdict[str, list[tuple[ast.Call, Function | None]]]:
    """The calls of a file by the last part of the name that is called, each with the function that it stands in."""
    found: defaultdict[str, list[tuple[ast.Call, Function | None]]] = defaultdict(list)
    inside = {id(n): f for f in walk(tree) if isinstance(f, Function) for n in walk(f) if isinstance(n, ast.Call)}
    for n in walk(tree):
        if isinstance(n, ast.Call) and (last := getattr(n.func, "attr", getattr(n.func, "id", ""))):
            found[last].append((n, inside.get(id(n))))
    return found
