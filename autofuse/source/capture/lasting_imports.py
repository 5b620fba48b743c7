"""Which imported names are bound whenever the code of a file runs, not only for a type checker or under a condition.

A name that is imported in a branch, or that a later `from x import *` may bind anew, has one meaning still, so what the
file does with it can be read; new code must not rely on it. Knows syntax only.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autofuse.source.capture.bindings import bindings
from autofuse.source.capture.syntax import parts, walk

_ALWAYS_THERE = frozenset({"torch", "torch.nn", "torch.nn.functional", *sys.stdlib_module_names})
_PLAIN_STARS = frozenset({"torch", "numpy", "einops", *sys.stdlib_module_names})  # they bind none of our names
_HOLD_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
Lines = tuple[int, int]


@dataclass(frozen=True)
class Doubt:
    """Why a name may not hold what was imported, except between certain lines.

    `star` is the module of an `import *` that may hide it; "" where the import itself may not run.
    """

    star: str = ""
    within: tuple[Lines, ...] = ()  # the blocks that import it: there it holds

    def holds_at(self, line: int) -> bool:
        return not self.star and any(first <= line <= last for first, last in self.within)


def doubts(body: Iterable[ast.stmt]) -> Mapping[str, Doubt]:
    """The names that the imports of `body` may leave unbound, or bound to something else."""
    reading = _Reading()
    reading.block(list(body), None)
    return reading.found()


class _Reading:
    """`sides` holds what each branch makes sure of, read on its own: a chain of conditions asks for it at each step."""

    def __init__(self, sides: dict[int, set[str]] | None = None) -> None:
        self.sides: dict[int, set[str]] = {} if sides is None else sides
        self.sure: set[str] = set()
        self.within: dict[str, list[Lines]] = {}
        self.hidden: dict[str, str] = {}
        self.falls_back = False  # in what runs where an import failed

    def unbound(self, names: Iterable[str]) -> None:
        """`F = None`, which is no fallback of a failed import."""
        for name in names:
            self.sure.discard(name)
            self.within.setdefault(name, [])

    def found(self) -> dict[str, Doubt]:
        unsure = {n: Doubt(within=tuple(w)) for n, w in self.within.items() if n not in self.sure}
        return unsure | {n: Doubt(star) for n, star in self.hidden.items()}

    def block(self, body: list[ast.stmt], condition: Lines | None) -> None:
        for statement in body:
            match statement:
                case ast.Import() | ast.ImportFrom():
                    self.imported(statement, condition)
                case ast.Assign(targets=targets, value=ast.Constant(value=None)) if not self.falls_back:
                    self.unbound(n.id for t in targets for n in walk(t) if isinstance(n, ast.Name))
                case ast.If():
                    self.branches(statement, condition)
                case ast.Try() | ast.TryStar():
                    self.attempt(statement, condition)
                case ast.With() | ast.AsyncWith() if not _suppresses(statement):
                    self.block(statement.body, condition)
                case ast.With() | ast.AsyncWith() | ast.For() | ast.AsyncFor() | ast.While():
                    self.block(statement.body, _lines(statement.body))
                case ast.Match():
                    for case in statement.cases:
                        self.block(case.body, _lines(case.body))

    def imported(self, statement: ast.Import | ast.ImportFrom, condition: Lines | None) -> None:
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            module = "." * statement.level + (statement.module or "")
            if module.partition(".")[0] not in _PLAIN_STARS:
                self.hidden |= dict.fromkeys((*self.sure, *self.within), module)
            return
        for name in names_of(statement):
            if condition is None:
                self.sure.add(name)
                self.hidden.pop(name, None)
            else:
                self.within.setdefault(name, []).append(condition)

    def branches(self, statement: ast.If, condition: Lines | None) -> None:
        """What both branches import is there in any case."""
        sides = []
        for body in (statement.body, statement.orelse):
            sides.append(self.side(body))
            self.block(body, _lines(body) if body else condition)
        if condition is None:
            self.sure |= sides[0] & sides[1]

    def side(self, body: list[ast.stmt]) -> set[str]:
        """What a branch binds in any case."""
        if id(body) not in self.sides:
            side = _Reading(self.sides)
            side.block(body, None)
            self.sides[id(body)] = side.sure
        return self.sides[id(body)]

    def attempt(self, statement: ast.Try | ast.TryStar, condition: Lines | None) -> None:
        """What comes first in a `try`, and cannot fail where torch is installed, is there in any case."""
        raised = all(isinstance(h.body[-1], ast.Raise) for h in statement.handlers)
        plain = True
        for s in (*statement.body, *statement.orelse):
            plain = plain and isinstance(s, (ast.Import, ast.ImportFrom)) and _cannot_fail(s)
            self.block([s], condition if raised or plain else _lines([*statement.body, *statement.orelse]))
        outer, self.falls_back = self.falls_back, True
        for handler in statement.handlers:
            self.block(handler.body, _lines(handler.body))
        self.falls_back = outer
        self.block(statement.finalbody, condition)


def bound_by_name(tree: ast.Module) -> set[str]:
    """The names of a file that it binds by their text: `globals()["F"] = None`, `exec("F = None")`."""
    found = set[str]()
    for n in walk(tree):
        if n.__class__ is ast.Call:
            if not _may_bind(n.func):
                continue
        elif n.__class__ is not ast.Assign:
            continue
        match n:
            case ast.Assign(targets=targets):
                for t in targets:
                    match t:
                        case ast.Subscript(value=table, slice=ast.Constant(value=str(name))) if _is_namespace(table):
                            found.add(name)
            case ast.Call(func=ast.Attribute(value=table, attr="update"), args=args, keywords=given) if _is_namespace(
                table
            ):
                found |= {k.arg for k in given if k.arg}
                keys = (k for a in args if isinstance(a, ast.Dict) for k in a.keys)
                found |= {k.value for k in keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Subscript(value=modules), ast.Constant(str(name)), _]):
                if isinstance(modules, ast.Attribute) and modules.attr == "modules":
                    found.add(name)
            case ast.Call(func=ast.Name(id="exec"), args=[ast.Constant(value=str(text)), *_]):
                found |= _bound_in(text)
    return found


def _may_bind(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return function.attr == "update"
    return isinstance(function, ast.Name) and function.id in ("setattr", "exec")


def _is_namespace(table: ast.expr) -> bool:
    return isinstance(table, ast.Call) and isinstance(table.func, ast.Name) and table.func.id in ("globals", "vars")


def _bound_in(text: str) -> set[str]:
    try:
        return {name for name, _ in bindings(ast.parse(text).body)}
    except (SyntaxError, ValueError, RecursionError):
        return set()


def names_of(statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The names that an import binds."""
    for a in statement.names:
        yield a.asname or (a.name if isinstance(statement, ast.ImportFrom) else a.name.partition(".")[0])


def _cannot_fail(statement: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(statement, ast.Import):
        return all(a.name in _ALWAYS_THERE for a in statement.names)
    return not statement.level and all(
        f"{statement.module}.{a.name}" in _ALWAYS_THERE or statement.module in sys.stdlib_module_names
        for a in statement.names
    )


def _suppresses(statement: ast.With | ast.AsyncWith) -> bool:
    return "suppress" in "".join(ast.unparse(item.context_expr) for item in statement.items)


def _lines(body: list[ast.stmt]) -> Lines:
    return (body[0].lineno, body[-1].end_lineno or body[-1].lineno)


def imports_torch(tree: ast.Module) -> bool:
    """Whether running the file, or a function of it, imports torch: a type checker's import is none."""
    return any(isinstance(n, (ast.Import, ast.ImportFrom)) and _of_torch(n) for s in tree.body for n in _run(s))


def only_checked(test: ast.expr) -> bool:
    """Whether a branch is for type checkers alone, or for nobody."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(only_checked, values))
        case ast.Constant(value=value):
            return not value
    return False


def _run(statement: ast.stmt) -> Iterator[ast.AST]:
    """What may run in a statement, those inside it included."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if not isinstance(node, ast.If):
            yield node
            todo += [c for c in parts(node) if isinstance(c, _HOLD_STATEMENTS)]
            continue
        todo += [] if only_checked(node.test) else node.body
        test = node.test
        denied = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and only_checked(test.operand)
        todo += [] if denied else node.orelse


def _of_torch(statement: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(statement, ast.Import):
        return any(a.name.partition(".")[0] == "torch" for a in statement.names)
    return not statement.level and (statement.module or "").partition(".")[0] == "torch"


def star_modules(tree: ast.Module) -> bool:
    """Whether the file binds names that its text does not show."""
    stars = (n for n in walk(tree) if n.__class__ is ast.ImportFrom and n.names[0].name == "*")
    return any(n.level or (n.module or "").partition(".")[0] not in _PLAIN_STARS for n in stars)
