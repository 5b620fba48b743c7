"""Finds the attributes of a file whose tensor or dict is written in place, whatever object they belong to.

`scope.index(AttributeWrites)` creates one object for each file.
"""

from __future__ import annotations

import ast
from collections import defaultdict

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.syntax import walk


class AttributeWrites:
    """The writes to attributes of one file.

    Attributes:
        attributes: Names of attributes that are written in place: `self.mask[0] = 1`, `self.mask.fill_(1)`,
            `nn.init.zeros_(self.mask)`, `self.mask += 1`.
        entries: For each attribute, the values of `self.name[key] = value`, with the function that contains them.
        other_uses: Names of attributes that are used in another way than as a dict that this file fills: not assigned,
            indexed, searched or tested.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.attributes: set[str] = set()
        self.entries: defaultdict[str, list[tuple[ast.expr, ast.AST]]] = defaultdict(list)
        usual = {id(part) for n in walk(tree) for part in _usual_parts(n)}
        used = (n for n in walk(tree) if isinstance(n, ast.Attribute) and id(n) not in usual)
        self.other_uses = {n.attr for n in used if isinstance(n.ctx, ast.Load)}
        for n in walk(tree):
            self.attributes.update(filter(None, map(_attribute_under, _written_parts(n))))
        for function in (n for n in walk(tree) if isinstance(n, Function)):
            self._add_entries(function)

    def _add_entries(self, function: ast.AST) -> None:
        for n in walk(function):
            if isinstance(n, ast.Assign):
                for t in n.targets:
                    if isinstance(t, ast.Subscript) and isinstance(t.value, ast.Attribute):
                        self.entries[t.value.attr].append((n.value, function))


def _written_parts(n: ast.AST) -> list[ast.expr]:
    """The expressions that a node writes into."""
    match n:
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            return [value]
        case ast.AugAssign(target=target):
            return [target]
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments) if _writes_in_place(name):
            return [value, *arguments]
        case ast.Call(func=ast.Name(id=name), args=arguments) if _writes_in_place(name):
            return [*arguments]
        case ast.keyword(arg="out", value=value):
            return [value]
    return []


def _writes_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and name != "requires_grad_"


def _attribute_under(node: ast.expr) -> str | None:
    """The attribute that an expression is a part or a view of: `mask` of `self.mask.data[0]`."""
    while True:
        match node:
            case ast.Attribute(value=value, attr="data" | "T" | "mT"):
                node = value
            case ast.Attribute(attr=name):
                return name
            case ast.Subscript(value=value) | ast.Call(func=ast.Attribute(value=value)):
                node = value
            case _:
                return None


def _usual_parts(n: ast.AST) -> list[ast.expr]:
    match n:
        case ast.Subscript(value=value):
            return [value]
        case ast.Compare(comparators=comparators):
            return comparators
        case ast.If(test=ast.BoolOp(values=values)):
            return values
        case ast.If(test=test) | ast.UnaryOp(op=ast.Not(), operand=test):
            return [test]
    return []
