"""Finds imported names that may not be bound when the code of a file runs.

Examples are a name that is imported under a condition or for type checkers only, and a name that a later
`from x import *` may rebind. The analysis still uses the imported meaning of such a name. New code must not use the
name, unless a line is in a block that imports it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autofuse.source.capture.bindings import bindings
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.syntax import parts, walk

# An import of these cannot fail, because the rewritten code needs torch anyway.
_ALWAYS_INSTALLED = frozenset({"torch", "torch.nn", "torch.nn.functional", *sys.stdlib_module_names})
# `from x import *` of these binds no name that autofuse uses.
_KNOWN_STAR_MODULES = frozenset({"torch", "numpy", "einops", *sys.stdlib_module_names})
_STATEMENT_CONTAINERS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_LAST_LINE = 1 << 30
LineRange = tuple[int, int]  # the first and the last line


@dataclass(frozen=True)
class ImportDoubt:
    """The reason why a name may not have its imported meaning.

    Attributes:
        star: The module of an `import *` that may rebind the name; "" if the import itself may not run.
        blocks: The conditional blocks that import the name. In these the name is bound.
    """

    star: str = ""
    blocks: tuple[LineRange, ...] = ()

    def holds_at(self, line: int) -> bool:
        """Whether the name has its imported meaning at a line."""
        return not self.star and any(first <= line <= last for first, last in self.blocks)


def find_doubtful_imports(body: Iterable[ast.stmt]) -> Mapping[str, ImportDoubt]:
    """Return the imported names in `body` that may be unbound, or bound to something else."""
    reader = _ImportReader()
    reader.read_block(list(body), None)
    return reader.doubts()


class _ImportReader:
    """Reads the imports of statements in order.

    Args:
        branch_names: A cache of the names that each branch certainly binds, by the id of the branch. A chain of
            conditions asks for the same branch at each of its levels.
    """

    def __init__(self, branch_names: dict[int, set[str]] | None = None) -> None:
        self.branch_names: dict[int, set[str]] = {} if branch_names is None else branch_names
        self.certain: set[str] = set()  # names that are certainly bound
        self.blocks: dict[str, list[LineRange]] = {}  # names that conditional blocks import
        self.hidden_by: dict[str, str] = {}  # names that an `import *` may rebind, with its module
        self.in_handler = False  # whether the code runs after a failed import
        self.defines = False  # whether a function or class was defined
        self.has_run = False  # whether code ran after that, which may call the function

    def mark_unbound(self, names: Iterable[str]) -> None:
        """Handle `F = None`, if it is not the fallback for a failed import of torch."""
        for name in names:
            self.certain.discard(name)
            self.blocks.setdefault(name, [])

    def doubts(self) -> dict[str, ImportDoubt]:
        """Return the doubtful names that were found."""
        uncertain = {n: ImportDoubt(blocks=tuple(b)) for n, b in self.blocks.items() if n not in self.certain}
        return uncertain | {n: ImportDoubt(star) for n, star in self.hidden_by.items()}

    def read_block(self, body: list[ast.stmt], condition: LineRange | None) -> None:
        """Read statements.

        Args:
            body: The statements.
            condition: The conditional block that contains them; None if they always run.
        """
        for statement in body:
            if condition is None:
                self.note_code_that_runs(statement)
            match statement:
                case ast.Import() | ast.ImportFrom():
                    self.read_import(statement, condition)
                case ast.Assign(targets=targets, value=ast.Constant(value=None)) if not self.in_handler:
                    self.mark_unbound(n.id for t in targets for n in walk(t) if isinstance(n, ast.Name))
                case ast.If():
                    self.read_if(statement, condition)
                case ast.Try() | ast.TryStar():
                    self.read_try(statement, condition)
                case ast.With() | ast.AsyncWith() if not _suppresses(statement):
                    self.read_block(statement.body, condition)
                case ast.With() | ast.AsyncWith() | ast.For() | ast.AsyncFor() | ast.While():
                    self.read_block(statement.body, _line_range(statement.body))
                case ast.Match():
                    for case in statement.cases:
                        self.read_block(case.body, _line_range(case.body))

    def note_code_that_runs(self, statement: ast.stmt) -> None:
        """Note whether a call may run a function of the file before the imports that follow."""
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.has_run |= self.defines and bool(statement.decorator_list)
            self.defines = True
        elif self.defines and not self.has_run and not isinstance(statement, (ast.Import, ast.ImportFrom)):
            self.has_run = any(isinstance(n, ast.Call) for n in walk(statement))

    def read_import(self, statement: ast.Import | ast.ImportFrom, condition: LineRange | None) -> None:
        """Read one import statement."""
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            module = "." * statement.level + (statement.module or "")
            if module.partition(".")[0] not in _KNOWN_STAR_MODULES:
                self.hidden_by |= dict.fromkeys((*self.certain, *self.blocks), module)
            return
        for name in imported_names(statement):
            if condition is None and self.has_run and name not in self.certain:
                self.blocks.setdefault(name, []).append((statement.lineno, _LAST_LINE))
            elif condition is None:
                self.certain.add(name)
                self.hidden_by.pop(name, None)
            else:
                self.blocks.setdefault(name, []).append(condition)

    def read_if(self, statement: ast.If, condition: LineRange | None) -> None:
        """Read an `if` statement. A name that both branches import is certainly bound afterwards."""
        sides = []
        for body in (statement.body, statement.orelse):
            sides.append(self.names_of_branch(body))
            self.read_block(body, _line_range(body) if body else condition)
        if condition is None:
            self.certain |= sides[0] & sides[1]

    def names_of_branch(self, body: list[ast.stmt]) -> set[str]:
        """Return the names that a branch certainly binds if it runs."""
        if id(body) not in self.branch_names:
            branch = _ImportReader(self.branch_names)
            branch.read_block(body, None)
            self.branch_names[id(body)] = branch.certain
        return self.branch_names[id(body)]

    def read_try(self, statement: ast.Try | ast.TryStar, condition: LineRange | None) -> None:
        """Read a `try` statement.

        Imports at the start of the body that cannot fail count as unconditional. If every handler raises, the whole
        body counts as unconditional.
        """
        raised = all(isinstance(h.body[-1], ast.Raise) for h in statement.handlers)
        plain = True
        for s in (*statement.body, *statement.orelse):
            plain = plain and isinstance(s, (ast.Import, ast.ImportFrom)) and _cannot_fail(s)
            self.read_block([s], condition if raised or plain else _line_range([*statement.body, *statement.orelse]))
        fallback = all(map(_cannot_raise, (*statement.body, *statement.orelse)))  # else the handler may run with torch
        outer, self.in_handler = self.in_handler, self.in_handler or fallback
        for handler in statement.handlers:
            self.read_block(handler.body, _line_range(handler.body))
        self.in_handler = outer
        self.read_block(statement.finalbody, condition)


def names_bound_by_text(tree: ast.Module) -> set[str]:
    """Return the names that a file binds through strings: `globals()["F"] = None`, `exec("F = None")`."""
    names = set[str]()
    for n in node_index(tree).of_kinds(ast.Call, ast.Assign):
        if isinstance(n, ast.Call) and not _is_binding_function(n.func):
            continue
        match n:
            case ast.Assign(targets=targets):
                for t in targets:
                    match t:
                        case ast.Subscript(value=table, slice=ast.Constant(value=str(name))) if _is_namespace(table):
                            names.add(name)
                        case ast.Attribute(value=ast.Subscript(value=ast.Attribute(attr="modules")), attr=name):
                            names.add(name)  # sys.modules[__name__].F = None
            case ast.Call(func=ast.Attribute(value=table, attr="update"), args=args, keywords=keywords) if (
                _is_namespace(table)
            ):
                names |= {k.arg for k in keywords if k.arg}
                keys = (k for a in args if isinstance(a, ast.Dict) for k in a.keys)
                names |= {k.value for k in keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Subscript(value=modules), ast.Constant(str(name)), _]):
                if isinstance(modules, ast.Attribute) and modules.attr == "modules":
                    names.add(name)
            case ast.Call(func=ast.Name(id="exec"), args=[ast.Constant(value=str(text)), *_]):
                names |= _names_bound_by_code(text)
    return names


def _is_binding_function(function: ast.expr) -> bool:
    """Whether a call of `function` may bind a name through a string. This is a fast first test."""
    if isinstance(function, ast.Attribute):
        return function.attr == "update"
    return isinstance(function, ast.Name) and function.id in ("setattr", "exec")


def _is_namespace(table: ast.expr) -> bool:
    return isinstance(table, ast.Call) and isinstance(table.func, ast.Name) and table.func.id in ("globals", "vars")


def _names_bound_by_code(text: str) -> set[str]:
    try:
        return {name for name, _ in bindings(ast.parse(text).body)}
    except (SyntaxError, ValueError, RecursionError):
        return set()


def imported_names(statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield the names that an import binds."""
    for a in statement.names:
        yield a.asname or (a.name if isinstance(statement, ast.ImportFrom) else a.name.partition(".")[0])


def _cannot_fail(statement: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(statement, ast.Import):
        return all(a.name in _ALWAYS_INSTALLED for a in statement.names)
    return not statement.level and all(
        f"{statement.module}.{a.name}" in _ALWAYS_INSTALLED or statement.module in sys.stdlib_module_names
        for a in statement.names
    )


def _cannot_raise(statement: ast.stmt) -> bool:
    """Whether a statement runs without an exception where torch is installed."""
    match statement:
        case ast.Import() | ast.ImportFrom():
            return _cannot_fail(statement)
        case ast.Assign(value=ast.Constant()):
            return all(isinstance(t, ast.Name) for t in statement.targets)
    return isinstance(statement, ast.Pass)


def _suppresses(statement: ast.With | ast.AsyncWith) -> bool:
    """Whether a `with` statement looks like `contextlib.suppress`, so that an import in it may fail silently."""
    return "suppress" in "".join(ast.unparse(item.context_expr) for item in statement.items)


def _line_range(body: list[ast.stmt]) -> LineRange:
    return (body[0].lineno, body[-1].end_lineno or body[-1].lineno)


def imports_torch(tree: ast.Module) -> bool:
    """Whether the file, or a function of it, imports torch when it runs. An import for type checkers does not count."""
    return any(
        isinstance(n, (ast.Import, ast.ImportFrom)) and _is_torch_import(n)
        for s in tree.body
        for n in _statements_that_may_run(s)
    )


def is_type_checking_test(test: ast.expr) -> bool:
    """Whether a condition is false at runtime: `TYPE_CHECKING`, or a constant such as `False`."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(is_type_checking_test, values))
        case ast.Constant(value=value):
            return not value
    return False


def _statements_that_may_run(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and the statements inside it, without branches that never run."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if not isinstance(node, ast.If):
            yield node
            todo += [c for c in parts(node) if isinstance(c, _STATEMENT_CONTAINERS)]
            continue
        todo += [] if is_type_checking_test(node.test) else node.body
        test = node.test
        always = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and is_type_checking_test(test.operand)
        todo += [] if always else node.orelse


def _is_torch_import(statement: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(statement, ast.Import):
        return any(a.name.partition(".")[0] == "torch" for a in statement.names)
    return not statement.level and (statement.module or "").partition(".")[0] == "torch"


def has_unknown_star_imports(tree: ast.Module) -> bool:
    """Whether `from x import *` binds names that the text of the file does not show."""
    stars = (n for n in walk(tree) if n.__class__ is ast.ImportFrom and n.names[0].name == "*")
    return any(n.level or (n.module or "").partition(".")[0] not in _KNOWN_STAR_MODULES for n in stars)
