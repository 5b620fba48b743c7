"""A program's syntax tree while it is being rewritten, and what its expressions were when it ran.

A transformation is a function of a Draft that yields changes: functions without arguments, each of which makes the
change at one place. Nothing here knows what autofuse finds.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tests.metamorphic.programs import Program, arguments, forget, instance, load_text

Change = Callable[[], None]
Transformation = Callable[["Draft"], Iterator[Change]]
Function = ast.FunctionDef
Scope = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CONDITIONAL = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.NamedExpr, *COMPREHENSIONS)
POOL = "a out_ hidden h1 tmp att states y_ z0 part inner mid w_ left".split()


class Draft:
    """One program, and its tree."""

    def __init__(self, program: Program, text: str) -> None:
        self.program, self.text = program, text
        self.tree = ast.parse(text)

    def source(self) -> str:
        return ast.unparse(ast.fix_missing_locations(self.tree)) + "\n"

    # What is there.

    def functions(self) -> Iterator[Function]:
        """Functions and methods, without constructors."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function) and node.name != "__init__":
                yield node

    def blocks(self) -> Iterator[tuple[Function, list[ast.stmt]]]:
        """Every list of statements inside a function, with the function."""
        for function in self.functions():
            todo: list[ast.AST] = [function]
            while todo:
                node = todo.pop()
                for name in ("body", "orelse", "finalbody"):
                    block = getattr(node, name, None)
                    if isinstance(block, list) and block:
                        yield function, block
                        todo += [s for s in block if not isinstance(s, Scope)]

    def statements(self) -> Iterator[tuple[Function, list[ast.stmt], int]]:
        for function, block in self.blocks():
            for i in range(len(block)):
                yield function, block, i

    def expressions(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        """Expressions that are read inside functions."""
        for function in self.functions():
            for statement in function.body:
                for n in ast.walk(statement):
                    loads = not isinstance(getattr(n, "ctx", None), (ast.Store, ast.Del))
                    if isinstance(n, ast.expr) and loads and (not kinds or isinstance(n, kinds)):
                        yield n

    @cached_property
    def imports(self) -> dict[str, str]:
        """Imported names -> qualified names."""
        found = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                found |= {
                    a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                    for a in node.names
                }
            elif isinstance(node, ast.ImportFrom):
                found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        return found

    def qualified(self, node: ast.AST) -> str:
        """torch.nn.functional.softmax of `F.softmax`; "" for what is not imported."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, "")
        if isinstance(node, ast.Attribute) and (owner := self.qualified(node.value)):
            return f"{owner}.{node.attr}"
        return ""

    def of_name(self, name: str) -> ast.expr:
        """An expression for a qualified name, by an import that is there, or one that is added: `torch.matmul`."""
        for own, meaning in self.imports.items():
            if name == meaning or name.startswith(meaning + "."):
                return _expression(own + name.removeprefix(meaning))
        top = name.partition(".")[0]
        self.insert_import(f"import {top}")
        return _expression(name)

    def insert_import(self, text: str) -> None:
        at = next(i for i, n in enumerate(self.tree.body) if isinstance(n, (ast.Import, ast.ImportFrom)))
        futures = [
            i for i, n in enumerate(self.tree.body) if isinstance(n, ast.ImportFrom) and n.module == "__future__"
        ]
        self.tree.body.insert(max([at, *(f + 1 for f in futures)]), _statement(text))

    def names(self) -> set[str]:
        found = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)}
        found |= {n.arg for n in ast.walk(self.tree) if isinstance(n, ast.arg)}
        found |= {n.attr for n in ast.walk(self.tree) if isinstance(n, ast.Attribute)}
        found |= {n.name for n in ast.walk(self.tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        return found | set(self.imports) | set(dir(builtins))

    def fresh(self, wanted: str = "") -> str:
        """An unused name."""
        taken = self.names()
        candidates = [wanted] if wanted else POOL
        return next(n for i in range(99) for n in (f"{c}{i or ''}" for c in candidates) if n not in taken)

    def owner(self, function: Function) -> ast.ClassDef | None:
        classes = [n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef) and function in n.body]
        return classes[0] if classes else None

    def parents(self) -> dict[ast.AST, ast.AST]:
        return {c: p for p in ast.walk(self.tree) for c in ast.iter_child_nodes(p)}

    def unconditional(self, statement: ast.stmt) -> Iterator[ast.expr]:
        """Expressions that a simple statement evaluates once whenever it runs, not its whole value."""
        if isinstance(statement, (ast.If, ast.While)):
            todo: list[ast.AST] = [statement.test] if isinstance(statement, ast.If) else []
        elif hasattr(statement, "body"):
            todo = []
        else:
            todo = list(ast.iter_child_nodes(statement))
        while todo:
            node = todo.pop()
            if isinstance(node, _CONDITIONAL) or isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
                continue
            if isinstance(node, ast.expr):
                yield node
            todo += ast.iter_child_nodes(node)

    # What was there when it ran.

    @cached_property
    def observed(self) -> dict[ast.expr, list[Any]]:
        """The value of each expression at each evaluation: tensors without their data."""
        found: dict[ast.expr, list[Any]] = {}
        tree = _Observing().visit(ast.parse(self.text))
        plain = _Observing(plain=True)
        plain.visit(self.tree)
        order = plain.nodes

        def note(index: int, value: Any) -> Any:
            found.setdefault(order[index], []).append(value)
            return value

        code = ast.unparse(ast.fix_missing_locations(tree))
        file = None
        try:
            file = load_text(code)
            file.__dict__["__note__"] = note
            with torch.no_grad():
                instance(file, self.program.entry).eval()(*arguments(self.program))
        except Exception:
            return {}
        finally:
            if file is not None:
                forget(file)
        return found

    def kind(self, node: ast.expr) -> type | None:
        """The one type that an expression had: Tensor, int, float, ...; None if it did not run."""
        kinds = {type(v) if not isinstance(v, Tensor) else Tensor for v in self.observed.get(node, ())}
        return kinds.pop() if len(kinds) == 1 else None

    def is_tensor(self, node: ast.expr) -> bool:
        return self.kind(node) is Tensor

    def is_floating(self, node: ast.expr) -> bool:
        return self.is_tensor(node) and all(v.is_floating_point() for v in self.observed[node])

    def is_number(self, node: ast.expr) -> bool:
        return self.kind(node) in (int, float)

    def rank(self, node: ast.expr) -> int | None:
        ranks = {v.ndim for v in self.observed.get(node, ()) if isinstance(v, Tensor)}
        return ranks.pop() if len(ranks) == 1 else None

    def shape(self, node: ast.expr) -> torch.Size | None:
        shapes = {v.shape for v in self.observed.get(node, ()) if isinstance(v, Tensor)}
        return shapes.pop() if len(shapes) == 1 else None

    # Changing it.

    def replace(self, old: ast.AST, new: ast.AST) -> None:
        """Replace `old` by `new`."""
        parent = self.parents()[old]
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(v is old for v in value):
                value[[v is old for v in value].index(True)] = new


class _Observing(ast.NodeTransformer):
    """Wraps every expression that functions read in `__note__(number, ...)`; numbers follow the order of visiting."""

    def __init__(self, plain: bool = False) -> None:
        self.nodes: list[ast.expr] = []
        self.plain, self.inside = plain, 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, Function):
            self.inside += 1
            node.body[:] = [self.visit(s) for s in node.body]
            self.inside -= 1
            return node
        if isinstance(node, (ast.JoinedStr, ast.arguments, ast.Global, ast.Nonlocal, ast.pattern)):
            return node
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                node.value = self.visit(node.value)
            return node
        loads = not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
        expression = isinstance(node, ast.expr) and not isinstance(node, (ast.Slice, ast.Starred)) and loads
        if expression and self.inside:
            number = len(self.nodes)
            self.nodes.append(node)  # type: ignore[arg-type]
            self.generic_visit(node)
            if self.plain:
                return node
            return ast.Call(ast.Name("__note__", ast.Load()), [ast.Constant(number), node], [])  # type: ignore[list-item]
        return self.generic_visit(node)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


expression, statement = _expression, _statement


def call(function: ast.expr | str, *arguments: ast.expr, **named: ast.expr) -> ast.Call:
    function = ast.Name(function, ast.Load()) if isinstance(function, str) else function
    return ast.Call(function, list(arguments), [ast.keyword(n, v) for n, v in named.items()])


def name(identifier: str) -> ast.Name:
    return ast.Name(identifier, ast.Load())


def assignment(target: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(target, ast.Store())], value, lineno=0)


def reads(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def binds(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}


def writes(node: ast.AST) -> bool:
    """Whether something may be written in place, or be run that has effects that we do not look into."""
    for n in ast.walk(node):
        if isinstance(n, (ast.AugAssign, ast.NamedExpr, ast.Delete, *Scope)):
            return True
        if isinstance(n, (ast.Subscript, ast.Attribute)) and not isinstance(n.ctx, ast.Load):
            return True
        if isinstance(n, ast.Attribute) and n.attr.endswith("_"):
            return True
        if isinstance(n, ast.keyword) and n.arg in ("out", "inplace"):
            return True
    return False
