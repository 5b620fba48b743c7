"""Finds the training loops of a file, and the names in them that hold results of the device.

A loop trains if its own body calls `backward()`. Three kinds of values are computed on the device:

- the value on which `backward()` is called,
- values in the loop that it is computed from,
- values that are computed from either of these.

This module looks at the syntax of one file and does not resolve the names of functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TypeGuard

from autofuse.source.capture.bindings import Scope
from autofuse.source.capture.syntax import children, walk

Loop = ast.For | ast.AsyncFor | ast.While
BACKWARD = ("backward", "manual_backward")
NUMBERS = ("item", "tolist", "cpu", "numpy")  # methods that wait for the device and return data on the CPU
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CONDITIONAL = (ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler, ast.match_case, *_COMPREHENSIONS)
_NESTED_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_ON_HOST = frozenset("len float int bool str repr range enumerate isinstance type id".split())
_METADATA = frozenset("shape dtype device ndim requires_grad grad_fn size dim numel nelement type".split())


class Nesting:
    """The parent of each node in a file."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents = {child: node for node in walk(tree) for child in children(node)}

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yields (child, parent) from `node` outwards."""
        while (parent := self.parents.get(node)) is not None:
            yield node, parent
            node = parent

    def loop_of(self, node: ast.AST) -> Loop | None:
        """The innermost loop that runs `node` in its iterations, in the same function."""
        for child, parent in self.around(node):
            if isinstance(parent, Scope):
                return None
            if isinstance(parent, Loop) and (child in parent.body or child is getattr(parent, "test", None)):
                return parent
        return None

    def runs_every_iteration(self, node: ast.AST, loop: Loop) -> bool:
        """Whether every iteration of `loop`, the innermost loop around `node`, reaches `node`."""
        for child, parent in self.around(node):
            if parent is loop:
                earlier = loop.body[: loop.body.index(child)] if isinstance(child, ast.stmt) else []
                return not any(map(_may_skip_rest, earlier))
            if isinstance(parent, _CONDITIONAL) and child is not getattr(parent, "test", None):
                return False
        return False

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        """The statement that contains `node`."""
        if isinstance(node, ast.stmt):
            return node
        return next((p for _, p in self.around(node) if isinstance(p, ast.stmt)), None)


class TrainingLoops:
    """The training loops of one file. They are computed at the first request."""

    def __init__(self, tree: ast.Module, nesting: Nesting) -> None:
        self.tree, self.nesting = tree, nesting

    @cached_property
    def _loops(self) -> dict[Loop, TrainingLoop]:
        starts: dict[Loop, list[ast.Call]] = {}
        for node in walk(self.tree):
            if is_backward(node) and (loop := self.nesting.loop_of(node)) is not None:
                starts.setdefault(loop, []).append(node)
        return {loop: TrainingLoop(loop, calls) for loop, calls in starts.items()}

    def around(self, call: ast.Call) -> TrainingLoop | None:
        """The training loop that runs `call` in every iteration."""
        loop = self.nesting.loop_of(call)
        training = self._loops.get(loop) if loop is not None else None
        return training if training is not None and self.nesting.runs_every_iteration(call, training.node) else None


class TrainingLoop:
    """One training loop, with the calls of `backward()` in its body."""

    def __init__(self, node: Loop, starts: list[ast.Call]) -> None:
        self.node, self.starts = node, starts

    @cached_property
    def _assignments_in_loop(self) -> list[tuple[set[str], ast.expr]]:
        """Every assignment in the loop: its target names and its value."""
        return [found for statement in self.node.body for found in _assignments(statement)]

    @cached_property
    def device(self) -> frozenset[str]:
        """The names in the loop that hold results of the device."""
        assignments = self._assignments_in_loop
        local = {name for names, _ in assignments for name in names}
        on_device = {name for call in self.starts for name in names_on_device(call)} & local
        while True:
            inputs = {n for names, value in assignments if names & on_device for n in names_on_device(value)} & local
            results = {
                n for names, value in assignments if on_device.intersection(names_on_device(value)) for n in names
            }
            if on_device >= inputs | results:
                return frozenset(on_device)
            on_device |= inputs | results

    @cached_property
    def tensors(self) -> frozenset[str]:
        """The names of `device` that the loop never sets to a number, as `loss = loss.item()` does."""
        return self.device - {n for names, value in self._assignments_in_loop if is_on_host(value) for n in names}


def is_backward(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether a node is a call of `backward()`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BACKWARD


def is_on_host(value: ast.AST) -> bool:
    """Whether an expression always gives a number or a CPU tensor."""
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.Attribute) and value.attr in _METADATA
    function = value.func
    if isinstance(function, ast.Name):
        return function.id in _ON_HOST
    return isinstance(function, ast.Attribute) and function.attr in (*NUMBERS, *_METADATA)


def names_on_device(node: ast.AST) -> Iterator[str]:
    """Yields the names that an expression uses on the device: `loss` for `loss.mean()`, none for `loss.item()`."""
    if is_on_host(node) or isinstance(node, _NESTED_SCOPES):
        return
    # `x is None` does not use the value of `x`.
    if isinstance(node, ast.Compare) and any(isinstance(o, (ast.Is, ast.IsNot)) for o in node.ops):
        return
    if (name := name_of_holder(node)) is not None:
        yield name
        return
    for child in children(node):
        yield from names_on_device(child)


def name_of_holder(node: ast.AST) -> str | None:
    """The name that holds a value: `loss`, `self.loss`; `outputs` for `outputs.loss` and `outputs[0]`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return name_of_holder(node.value)
    return None


def _assignments(statement: ast.stmt) -> Iterator[tuple[set[str], ast.expr]]:
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, _NESTED_SCOPES):
            continue
        todo += children(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from _pair_assignment(target, node.value)


def _pair_assignment(target: ast.expr, value: ast.expr) -> Iterator[tuple[set[str], ast.expr]]:
    """Yields targets and values. `a, b = f(x), g(y)` counts as two assignments."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for t, v in zip(target.elts, value.elts, strict=True):
            yield from _pair_assignment(t, v)
        return
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    yield {name for p in parts if (name := name_of_holder(p)) is not None}, value


def _may_skip_rest(statement: ast.stmt) -> bool:
    """Whether a statement such as `if step % 100: continue` skips the rest of most iterations."""
    if not isinstance(statement, ast.If) or not any(isinstance(s, ast.Continue) for s in statement.body):
        return False
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in walk(statement.test))
