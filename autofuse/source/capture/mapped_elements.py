"""Functions that are applied to each element of a tuple: `map`, comprehensions, what is unpacked.

Knows how many elements there are, where the text says so. What is computed of each is read as any expression is.
"""

from __future__ import annotations

import ast

from autofuse.ir.graph import CONST, ITEM, TUPLE, Value
from autofuse.source.capture.capture_state import CaptureState


class Elements(CaptureState):
    """Reads what gives several values at once."""

    def elements(self, node: ast.expr, count: int | None) -> list[Value] | None:
        """The elements of `map(f, xs)`, `[f(x) for x in xs]` and the like, each computed from one of `xs`.

        `count` is how many a target unpacks; without it, `xs` must itself say how many there are.
        """
        match node:
            case ast.Call(func=ast.Name(id="tuple" | "list" as name), args=[inner], keywords=[]) if self.is_builtin(
                name
            ):
                return (
                    self.elements(inner, count)
                    if isinstance(inner, (ast.Call, ast.GeneratorExp, ast.ListComp))
                    else None
                )
            case ast.Call(func=ast.Name(id="map"), args=[function, source], keywords=[]) if self.is_builtin("map"):
                return self._mapped(function, source, count)
            case ast.GeneratorExp(elt=elt, generators=[g]) | ast.ListComp(elt=elt, generators=[g]):
                return None if g.ifs or g.is_async else self._each(g.target, elt, g.iter, count)
        return None

    def is_builtin(self, name: str) -> bool:
        return name not in self.local and name not in self.scope.bound

    def _mapped(self, function: ast.expr, source: ast.expr, count: int | None) -> list[Value] | None:
        if not isinstance(function, ast.Lambda):
            return None
        arguments = function.args
        simple = len(arguments.args) == 1 and not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs)
        target = ast.Name(arguments.args[0].arg, ast.Store()) if simple else None
        return None if target is None else self._each(target, function.body, source, count)

    def _each(self, target: ast.expr, body: ast.expr, source: ast.expr, count: int | None) -> list[Value] | None:
        if any(isinstance(n, (ast.NamedExpr, ast.Yield, ast.Await)) for n in ast.walk(body)):
            return None
        container = self.value(source)
        items = self.items_of(container, count)
        if items is None:
            self.evaluated[id(source)] = container  # not to be read a second time
            return None
        found = []
        for item in items:
            variables: dict[str, Value] = {}
            if not self._destructured(target, item, variables):
                self.evaluated[id(source)] = container
                return None
            self.frames.append(variables)
            found.append(self.value(body))
            self.frames.pop()
        return found

    def _destructured(self, target: ast.expr, item: Value, variables: dict[str, Value]) -> bool:
        if isinstance(target, ast.Name):
            variables[target.id] = item
            return True
        if isinstance(target, (ast.Tuple, ast.List)) and item.op == TUPLE and len(item.inputs) == len(target.elts):
            return all(self._destructured(t, i, variables) for t, i in zip(target.elts, item.inputs, strict=True))
        return False

    def items_of(self, container: Value, count: int | None) -> list[Value] | None:
        """The elements of a tuple, of the parts of a tensor, or of what is unpacked into `count` names."""
        if container.op == TUPLE:
            return (
                list(container.inputs)
                if len(container.inputs) <= 16 and count in (None, len(container.inputs))
                else None
            )
        if container.op == "chunk" and container.inputs[1].op == CONST and isinstance(container.inputs[1].data, int):
            count = count or container.inputs[1].data
        return None if count is None or count > 16 else [self.part(container, i) for i in range(count)]

    def part(self, container: Value, index: int) -> Value:
        if container.op == TUPLE and -len(container.inputs) <= index < len(container.inputs):
            return container.inputs[index]
        return self.graph.value(ITEM, container, self.graph.const(index))
