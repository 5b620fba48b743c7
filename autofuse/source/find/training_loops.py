"""The loops of a file that train, and which names in them hold what the device computes.

A loop trains if `backward()` is called in its own turns. What is computed on the device is what that call starts from,
what that was computed from inside the loop, and what is computed from either. Knows one file's syntax; what the names
of functions mean is not asked here.
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
NUMBERS = ("item", "tolist", "cpu", "numpy")  # methods that wait for the device and give what the CPU can see
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CONDITIONAL = (ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler, ast.match_case, *_COMPREHENSIONS)
_OTHERS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_ON_HOST = frozenset("len float int bool str repr range enumerate isinstance type id".split())
_METADATA = frozenset("shape dtype device ndim requires_grad grad_fn size dim numel nelement type".split())


class Nesting:
    """What each node of a file stands in."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents = {child: node for node in walk(tree) for child in children(node)}

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(child, parent) from `node` outwards."""
        while (parent := self.parents.get(node)) is not None:
            yield node, parent
            node = parent

    def loop_of(self, node: ast.AST) -> Loop | None:
        """The innermost loop in whose turns `node` runs, in the same function."""
        for child, parent in self.around(node):
            if isinstance(parent, Scope):
                return None
            if isinstance(parent, Loop) and (child in parent.body or child is getattr(parent, "test", None)):
                return parent
        return None

    def every_turn(self, node: ast.AST, loop: Loop) -> bool:
        """Whether each turn of `loop`, the innermost one around `node`, comes to `node`."""
        for child, parent in self.around(node):
            if parent is loop:
                first = loop.body[: loop.body.index(child)] if isinstance(child, ast.stmt) else []
                return not any(map(_skips, first))
            if isinstance(parent, _CONDITIONAL) and child is not getattr(parent, "test", None):
                return False
        return False

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        """The statement that `node` is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next((p for _, p in self.around(node) if isinstance(p, ast.stmt)), None)


class TrainingLoops:
    """The loops of one file that train, found when they are first asked for."""

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
        """The training loop whose every turn comes to `call`."""
        loop = self.nesting.loop_of(call)
        found = self._loops.get(loop) if loop is not None else None
        return found if found is not None and self.nesting.every_turn(call, found.node) else None


class TrainingLoop:
    """One loop, and the calls of `backward()` in its turns."""

    def __init__(self, node: Loop, starts: list[ast.Call]) -> None:
        self.node, self.starts = node, starts

    @cached_property
    def _assigned(self) -> list[tuple[set[str], ast.expr]]:
        """Every assignment in the loop: the names, and what they are given."""
        return [found for statement in self.node.body for found in _assignments(statement)]

    @cached_property
    def device(self) -> frozenset[str]:
        """The names of the loop that hold what the device computes."""
        local = {name for names, _ in self._assigned for name in names}
        known = {name for call in self.starts for name in read_on_device(call)} & local
        while True:
            before = {n for names, value in self._assigned if names & known for n in read_on_device(value)} & local
            after = {n for names, value in self._assigned if known.intersection(read_on_device(value)) for n in names}
            if known >= before | after:
                return frozenset(known)
            known |= before | after

    @cached_property
    def tensors(self) -> frozenset[str]:
        """Those of `device` that are never given a number instead: `loss = loss.item()`."""
        return self.device - {n for names, value in self._assigned if is_on_host(value) for n in names}


def is_backward(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether a node is a call of `backward()`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BACKWARD


def is_on_host(value: ast.AST) -> bool:
    """Whether an expression gives a number or a CPU tensor whatever it is computed from."""
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.Attribute) and value.attr in _METADATA
    function = value.func
    if isinstance(function, ast.Name):
        return function.id in _ON_HOST
    return isinstance(function, ast.Attribute) and function.attr in (*NUMBERS, *_METADATA)


def read_on_device(node: ast.AST) -> Iterator[str]:
    """The names that an expression computes with on the device: `loss` of `loss.mean()`, not of `loss.item()`."""
    if is_on_host(node) or isinstance(node, _OTHERS):
        return
    if isinstance(node, ast.Compare) and any(isinstance(o, (ast.Is, ast.IsNot)) for o in node.ops):
        return
    if (name := place_of(node)) is not None:
        yield name
        return
    for child in children(node):
        yield from read_on_device(child)


def place_of(node: ast.AST) -> str | None:
    """What holds a value: `loss`, `self.loss`; of `outputs.loss` and `outputs[0]`, `outputs`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return place_of(node.value)
    return None


def _assignments(statement: ast.stmt) -> Iterator[tuple[set[str], ast.expr]]:
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, _OTHERS):
            continue
        todo += children(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from _paired(target, node.value)


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[set[str], ast.expr]]:
    """`a, b = f(x), g(y)` are two assignments."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for t, v in zip(target.elts, value.elts, strict=True):
            yield from _paired(t, v)
        return
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    yield {name for p in parts if (name := place_of(p)) is not None}, value


def _skips(statement: ast.stmt) -> bool:
    """`if step % 100: continue`: what follows runs now and then."""
    if not isinstance(statement, ast.If) or not any(isinstance(s, ast.Continue) for s in statement.body):
        return False
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in walk(statement.test))
