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
    for use, class_name in scope.index(_uses_by_method).get(method, ()):
        if class_name not in own_names and _is_of_family(use.value, scope, family):
            yield use


def _uses_by_method(tree: ast.Module) -> dict[str, list[tuple[ast.Attribute, str]]]:
    """Every use of a method that may run it for another object, with the class around the use, by the method's name."""
    index, uses = node_index(tree), dict[str, list[tuple[ast.Attribute, str]]]()
    for kind in (ast.Call, ast.Assign):
        for position, node in index.placed(kind):
            if isinstance(getattr(node, "func", getattr(node, "value", None)), ast.Attribute) or kind is ast.Call:
                class_name = index.class_name(position)
                for n in _method_that_runs(node, bool(class_name)):
                    if isinstance(n.value, (ast.Name, ast.Attribute)):
                        uses.setdefault(n.attr, []).append((n, class_name))
    return uses


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
            if _may_be_class(method.value):
                yield method
        case ast.Assign(targets=[ast.Attribute(), *_], value=ast.Attribute() as method):
            yield method
        case ast.Assign(targets=[ast.Name(), *_], value=ast.Attribute() as method) if in_class:
            yield method


def _may_be_class(value: ast.expr) -> bool:
    """Whether an expression may name a class: it is not `self` or an attribute of `self`."""
    while isinstance(value, ast.Attribute):
        value = value.value
    return not (isinstance(value, ast.Name) and value.id == "self")


def _is_of_family(value: ast.expr, scope: FileScope, family: Collection[NamedClass]) -> bool:
    return any(c is not None and c in family for c in classes_named(scope, value))
