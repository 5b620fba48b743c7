"""The classes in `isinstance(child, kinds)`: a name, a tuple of names, or an argument of the enclosing function.

`replace(model, nn.Softmax, nn.Sigmoid())` gives the meaning of `isinstance(child, old)` inside `replace`. This file
looks at syntax and the scope of one file.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict

from autofuse.source.capture.bindings import Function, bindings
from autofuse.source.capture.scope import FileScope, self_name
from autofuse.source.capture.syntax import walk

_MAX_DEPTH = 3  # functions that pass a class to one another


def tested_class_names(
    scope: FileScope, node: ast.expr, function: Function | None, depth: int = _MAX_DEPTH
) -> frozenset[str] | None:
    """Return the class names that an isinstance test names; None if the file does not show them.

    Imported classes have their full name.
    """
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        each = [tested_class_names(scope, e, function, depth) for e in node.elts]
        return frozenset[str]().union(*(k for k in each if k is not None)) if None not in each else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return tested_class_names(scope, ast.Tuple([node.left, node.right]), function, depth)
    root: ast.expr = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return None
    if function is not None and root.id in _local_names(function):
        return _classes_passed(scope, root.id, function, depth) if root is node else None
    if root is node and not _is_class(scope, root.id):
        value = scope.variables.get(root.id)  # KINDS = (nn.Softmax, nn.Dropout)
        return tested_class_names(scope, value, None, depth - 1) if value is not None and depth else None
    name = class_name(scope, node)
    return frozenset({name}) if name else None


def class_name(scope: FileScope, node: ast.expr) -> str | None:
    """Return the name of a class: the local name in this file, or the full name if it is imported."""
    if isinstance(node, ast.Name):
        return scope.qualified_names.get(node.id, node.id)
    return scope.name_of(node) or (node.attr if isinstance(node, ast.Attribute) else None)


def _is_class(scope: FileScope, name: str) -> bool:
    return name in scope.classes or name in scope.qualified_names or name in scope.imports or hasattr(builtins, name)


def _local_names(function: Function) -> set[str]:
    return {a.arg for a in walk(function.args) if isinstance(a, ast.arg)} | {n for n, _ in bindings(function.body)}


def _classes_passed(scope: FileScope, name: str, function: Function, depth: int) -> frozenset[str] | None:
    """The classes that callers pass as the argument `name`; None if one is unknown or there is no call."""
    arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if not depth or name not in {*arguments, *(a.arg for a in function.args.kwonlyargs)}:
        return None
    classes = list[frozenset[str] | None]()
    for call, caller in scope.index(_calls_by_name)[function.name]:
        skipped = 1 if isinstance(call.func, ast.Attribute) and self_name(function) in ("self", "cls") else 0
        at = arguments.index(name) - skipped if name in arguments else len(call.args)
        values = [k.value for k in call.keywords if k.arg == name]
        values += call.args[at : at + 1] if at >= 0 else []
        if caller is function and values and isinstance(values[0], ast.Name) and values[0].id == name:
            continue  # it calls itself with the same class
        classes.append(tested_class_names(scope, values[0], caller, depth - 1) if values else None)
    return frozenset[str]().union(*(k for k in classes if k is not None)) if classes and None not in classes else None


def _calls_by_name(tree: ast.Module) -> defaultdict[str, list[tuple[ast.Call, Function | None]]]:
    """The calls of a file by the last part of the called name, each with the enclosing function."""
    calls: defaultdict[str, list[tuple[ast.Call, Function | None]]] = defaultdict(list)
    enclosing = {id(n): f for f in walk(tree) if isinstance(f, Function) for n in walk(f) if isinstance(n, ast.Call)}
    for n in walk(tree):
        if isinstance(n, ast.Call) and (last := getattr(n.func, "attr", getattr(n.func, "id", ""))):
            calls[last].append((n, enclosing.get(id(n))))
    return calls
