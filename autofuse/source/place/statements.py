"""The statements of one function: their blocks, and which of them always run before others."""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass
from functools import cached_property

from autofuse.source.capture.captured import CapturedFunction, ValuePosition, is_unconditional
from autofuse.source.capture.lambdas import is_expression_function
from autofuse.source.capture.scope import blocks_of
from autofuse.source.capture.syntax import walk
from autofuse.source.targets.printing import SourceText


@dataclass(eq=False)
class Statements:
    """The statements of a function.

    Attributes:
        text: the text of the file.
        captured: the function.
    """

    text: SourceText
    captured: CapturedFunction

    @cached_property
    def blocks(self) -> dict[int, tuple[list[ast.stmt], int]]:
        """Id of a statement -> its block, and its index there."""
        blocks, todo = dict[int, tuple[list[ast.stmt], int]](), [self.captured.function.body]
        while todo:
            block = todo.pop()
            for i, statement in enumerate(block):
                blocks[id(statement)] = (block, i)
                if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    todo += blocks_of(statement)
        return blocks

    @cached_property
    def _enclosing_withs(self) -> dict[int, ast.With]:
        """Id of a statement -> the `with` that directly contains it."""
        statements = [block[i] for block, i in self.blocks.values()]
        return {id(inner): s for s in statements if isinstance(s, ast.With) for inner in s.body}

    def following(self, statement: ast.stmt) -> ast.stmt | None:
        """The next statement of the same block."""
        block, index = self.blocks[id(statement)]
        return block[index + 1] if index + 1 < len(block) else None

    def preceding(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements of the same block before this one, the last one first."""
        block, index = self.blocks.get(id(statement), ([], 0))
        return block[:index][::-1]

    def starts_line(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines to itself, so that statements can be inserted before it."""
        if is_expression_function(self.captured.function):
            return False
        line = self.text.lines[statement.lineno - 1]
        block, index = self.blocks.get(id(statement), ([], 0))
        is_shared = any(s.lineno == (statement.end_lineno or 0) for s in block[index + 1 : index + 2])
        return not line[: statement.col_offset].strip() and not is_shared

    def dominates(self, place: ValuePosition, root: ValuePosition) -> bool:
        """Whether the statement of `place` always runs before the statement of `root`, or is the same."""
        if place.inner or id(place.statement) not in self.blocks:
            return False
        # The body of a compound statement may not run.
        if isinstance(place.statement, (ast.For, ast.While, ast.AsyncFor, ast.With, ast.AsyncWith, ast.If, ast.Try)):
            return False
        statement: ast.stmt | None = place.statement
        while statement is not None:
            block, index = self.blocks[id(statement)]
            if any(s is root.statement or _contains(s, root.statement) for s in block[index:]):
                return True
            around = self._enclosing_withs.get(
                id(statement)
            )  # leaving a `with` is fine unless it is a region of its own
            statement = around if around not in place.region else None
        return False

    def always_reaches(self, place: ValuePosition, root: ValuePosition) -> bool:
        """Whether `root` is computed exactly once each time that the statement of `place` runs, unless code raises."""
        if not self.dominates(place, root) or not is_unconditional(root):
            return False
        statement: ast.stmt | None = place.statement
        while statement is not None:
            block, index = self.blocks[id(statement)]
            between = list(itertools.takewhile(lambda s: not _runs_directly(s, root.statement), block[index:]))
            if any(_may_leave(s) for s in between):
                return False
            if len(between) < len(block) - index:
                return True
            statement = self._enclosing_withs.get(id(statement))
        return False

    def is_bound_between(self, name: str, at: ValuePosition, root: ValuePosition, dead: set[ast.stmt]) -> bool:
        """Whether a statement that stays may bind `name` after the statement of `at`, before that of `root` runs."""
        if at.region != root.region:
            return True
        for s in walk(self.captured.function):
            if isinstance(s, ast.stmt) and s not in dead and s not in (at.statement, root.statement):
                inside = at.statement.lineno <= (s.end_lineno or s.lineno) and s.lineno <= root.statement.lineno
                nodes = (n for child in ast.iter_child_nodes(s) if not isinstance(child, ast.stmt) for n in walk(child))
                if inside and any(
                    isinstance(n, ast.Name) and n.id == name and n.ctx.__class__ is not ast.Load for n in nodes
                ):
                    return True
        return False

    def name_to_bind(self, place: ValuePosition, root: ValuePosition) -> str | None:
        """The name that the statement of `root` binds, if the statement of `place` may bind it directly."""
        match root.statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is root.node:
                block, index = self.blocks[id(place.statement)]
                rest = block[index + 1 :]
                between = rest[: next((i for i, s in enumerate(rest) if s is root.statement), 0)]
                used_between = {n.id for s in between for n in ast.walk(s) if isinstance(n, ast.Name)}
                deleted = {n.id for s in self.captured.deleted for n in ast.walk(s) if isinstance(n, ast.Name)}
                is_free = any(s is root.statement for s in rest) and name not in used_between
                is_free = is_free and target_text(place.statement) not in deleted  # `del` needs the old name
                return name if is_free or name == target_text(place.statement) else None
        return None


def own_name(at: ValuePosition) -> str:
    """The name that a statement assigns the expression to, if it does nothing else; or ""."""
    match at.statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is at.node:
            return name
    return ""


def target_text(statement: ast.stmt) -> str:
    """The text of what an assignment binds."""
    return ast.unparse(target_node(statement))


def target_node(statement: ast.stmt) -> ast.expr:
    """The target of an assignment."""
    assert isinstance(statement, ast.Assign)
    return statement.targets[0]


def _runs_directly(statement: ast.stmt, inner: ast.stmt) -> bool:
    """Whether `inner` is a statement or, perhaps in nested blocks, always runs with it: in the body of a `with`."""
    if statement is inner:
        return True
    return isinstance(statement, ast.With) and any(_runs_directly(s, inner) for s in statement.body)


def _may_leave(statement: ast.stmt) -> bool:
    """Whether the statements after this one may be skipped."""
    return any(isinstance(n, (ast.Return, ast.Raise, ast.Break, ast.Continue)) for n in walk(statement))


def _contains(statement: ast.stmt, inner: ast.stmt) -> bool:
    return any(n is inner for n in walk(statement))
