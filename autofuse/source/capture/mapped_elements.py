"""Reads functions that are applied to each element of a tuple: `map`, comprehensions and unpacked sequences.

This is possible only if the text says how many elements there are. The expression for each element is read like any
other expression.
"""

from __future__ import annotations

import ast

from autofuse.ir.graph import CONST, ITEM, TUPLE, Value
from autofuse.source.capture.capture_state import CaptureState

_MOST_ELEMENTS = 16


class Elements(CaptureState):
    """Reads expressions with several results."""

    def read_elements(self, node: ast.expr, count: int | None) -> list[Value] | None:
        """Return the elements of `map(f, xs)`, `[f(x) for x in xs]` and similar expressions.

        Args:
            node: The expression.
            count: The number of targets that unpack the expression. If it is None, the number of elements must follow
                from `xs`.

        Returns:
            The elements, or None for any other expression.
        """
        match node:
            case ast.Call(func=ast.Name(id="tuple" | "list" as name), args=[inner], keywords=[]) if self.is_builtin(
                name
            ):
                return (
                    self.read_elements(inner, count)
                    if isinstance(inner, (ast.Call, ast.GeneratorExp, ast.ListComp))
                    else None
                )
            case ast.Call(func=ast.Name(id="map"), args=[function, source], keywords=[]) if self.is_builtin("map"):
                return self._read_map(function, source, count)
            case ast.GeneratorExp(elt=elt, generators=[g]) | ast.ListComp(elt=elt, generators=[g]):
                return None if g.ifs or g.is_async else self._read_each(g.target, elt, g.iter, count)
        return None

    def is_builtin(self, name: str) -> bool:
        """Whether neither the function nor the file binds `name`."""
        return name not in self.local_names and name not in self.scope.bound

    def _read_map(self, function: ast.expr, source: ast.expr, count: int | None) -> list[Value] | None:
        if not isinstance(function, ast.Lambda):
            return None
        arguments = function.args
        simple = len(arguments.args) == 1 and not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs)
        target = ast.Name(arguments.args[0].arg, ast.Store()) if simple else None
        return None if target is None else self._read_each(target, function.body, source, count)

    def _read_each(self, target: ast.expr, body: ast.expr, source: ast.expr, count: int | None) -> list[Value] | None:
        """Read `body` once for each element of `source`, with the element bound to `target`."""
        if any(isinstance(n, (ast.NamedExpr, ast.Yield, ast.Await)) for n in ast.walk(body)):
            return None
        container = self.value(source)
        items = self.items_of(container, count)
        if items is None:
            self.precomputed[id(source)] = container  # the caller reads `source` again, but must not evaluate it twice
            return None
        results = []
        for item in items:
            variables: dict[str, Value] = {}
            if not self._bind_elements(target, item, variables):
                self.precomputed[id(source)] = container
                return None
            self.frames.append(variables)
            results.append(self.value(body))
            self.frames.pop()
        return results

    def _bind_elements(self, target: ast.expr, item: Value, variables: dict[str, Value]) -> bool:
        """Add the names of `target` to `variables`. Returns whether the shape of `item` is known well enough."""
        if isinstance(target, ast.Name):
            variables[target.id] = item
            return True
        if isinstance(target, (ast.Tuple, ast.List)) and item.op == TUPLE and len(item.inputs) == len(target.elts):
            return all(self._bind_elements(t, i, variables) for t, i in zip(target.elts, item.inputs, strict=True))
        return False

    def items_of(self, container: Value, count: int | None) -> list[Value] | None:
        """Return the elements of a tuple, the parts of a tensor, or the first `count` items of any value."""
        if container.op == TUPLE:
            return (
                list(container.inputs)
                if len(container.inputs) <= _MOST_ELEMENTS and count in (None, len(container.inputs))
                else None
            )
        if container.op == "chunk" and container.inputs[1].op == CONST and isinstance(container.inputs[1].data, int):
            count = count or container.inputs[1].data
        return None if count is None or count > _MOST_ELEMENTS else [self.element(container, i) for i in range(count)]

    def element(self, container: Value, index: int) -> Value:
        """Return `container[index]`."""
        if container.op == TUPLE and -len(container.inputs) <= index < len(container.inputs):
            return container.inputs[index]
        return self.graph.value(ITEM, container, self.graph.const(index))
