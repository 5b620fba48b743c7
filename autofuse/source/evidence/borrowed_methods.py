"""Uses of a method for objects of another class: `Attention.forward(other, x)`, `forward = Attention.forward`.

The other class has its own helpers, children and attributes, so the method computes something else there.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.scope import FileScope
from autofuse.source.evidence.class_names import NamedClass, classes_named


def find_borrowed_uses(scope: FileScope, family: Collection[NamedClass], method: str) -> Iterator[ast.Attribute]:
    """Yield the places where a file may run a method of a class for an object of another class.

    Args:
        scope: The scope of the file.
        family: The class that defines the method, and its subclasses. Their own methods may call it for themselves.
        method: The name of the method.
    """
    own_names = {c.name for c in family}
    index = node_index(scope.tree)
    for kind in (ast.Call, ast.Assign):
        for position, node in index.placed(kind):
            if index.class_name(position) in own_names:
                continue
            for n in _method_that_runs(node, bool(index.class_name(position))):
                if n.attr == method and _is_of_family(n.value, scope, family):
                    yield n


def _method_that_runs(node: ast.AST, in_class: bool) -> Iterator[ast.Attribute]:
    """The methods that a call runs for its first argument, or that an assignment gives to another class."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute() as method, attr="__get__")):
            yield method
        case ast.Call(
            func=ast.Attribute(attr="MethodType") | ast.Name("MethodType"), args=[ast.Attribute() as method, *_]
        ):
            yield method
        case ast.Call(func=ast.Attribute(value=ast.Name() | ast.Attribute()) as method, args=[_, *_]):
            yield method
        case ast.Assign(targets=[ast.Attribute(), *_], value=ast.Attribute() as method):
            yield method
        case ast.Assign(targets=[ast.Name(), *_], value=ast.Attribute() as method) if in_class:
            yield method


def _is_of_family(value: ast.expr, scope: FileScope, family: Collection[NamedClass]) -> bool:
    if not isinstance(value, (ast.Name, ast.Attribute)):
        return False
    return any(c is not None and c in family for c in classes_named(scope, value))
