"""A libcst module with some expressions replaced and some statements gone.

Only the statements on the way to a change are made anew; all others are the same nodes. Comments of what goes are
handed on to what follows. Knows libcst; decides nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

from autofuse.source.place.edits import Edit, NewText, TextSpan
from autofuse.source.write.keywords import with_argument, without_argument
from autofuse.source.write.positions import Located

_Lines = list[cst.EmptyLine]
_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
_Block = TypeVar("_Block", bound=cst.BaseSuite)


class Misplaced(Exception):
    """libcst has no node where ast says there is one."""


class EditedModule:
    """One module and what is to change in it."""

    def __init__(self, module: cst.Module, located: Located, edit: Edit, longest: int) -> None:
        """`longest` is the number of characters in the longest line of the file."""
        self.tree, self.located, self.config = module, located, module.config_for_parsing
        self.texts = {self._expression(s): (s, t) for s, t in edit.replacements}
        self.added: dict[cst.BaseExpression, list[tuple[str, str]]] = {}
        for span, keyword, text in edit.additions:
            self.added.setdefault(self._expression(span), []).append((keyword, text))
        self.omitted = {self._expression(value) for _, value in edit.omissions}
        self.removed = {self._statement(s) for s in edit.removals}
        self.pure = {n for s in edit.pure_tests if (n := located.statement(s)) is not None}
        self.inserted: dict[cst.CSTNode, list[str]] = {}
        for s, text in edit.insertions:
            self.inserted.setdefault(self._statement(s), []).append(text)
        self.lines = sorted({s.line for s in edit.spans})
        self.indent = ""
        self.width = next((w for w in (79, 88, 100, 120) if longest <= w), 120)

    def _expression(self, span: TextSpan) -> cst.BaseExpression:
        node = self.located.expression(span)
        if node is None:
            raise Misplaced(f"no expression was found at line {span.line}, so the file is left alone")
        return node

    def _statement(self, span: TextSpan) -> cst.CSTNode:
        node = self.located.statement(span)
        if node is None:
            raise Misplaced(f"no statement was found at line {span.line}, so the file is left alone")
        return node

    def module(self) -> cst.Module:
        body, left = self._statements(self.tree.body)
        return self.tree.with_changes(body=body, footer=[*left, *self.tree.footer])

    # Blocks.

    def _touched(self, node: cst.CSTNode) -> bool:
        first, last = self.located.first_line(node), self.located.last_line(node)
        at = bisect_left(self.lines, first)
        return at < len(self.lines) and self.lines[at] <= last

    def _statements(self, body: Sequence[cst.BaseStatement]) -> tuple[list[cst.BaseStatement], _Lines]:
        """The statements that stay, and the comments of those after which none follows."""
        out: list[cst.BaseStatement] = []
        left: _Lines = []
        after: _Lines
        for s in body:
            if not self._touched(s):
                new, after = [s], []
            elif isinstance(s, cst.SimpleStatementLine):
                new, after = self._line(s)
            elif isinstance(s, cst.BaseCompoundStatement):
                new, after = self._compound(s)
                new = self._preceded(s, new)
            else:
                new, after = [s], []
            if new:
                new[0] = _led_by(left, new[0])
                out, left = out + new, after
            else:
                left = _merged(left, after)
        return out, [line for line in left if line.comment]

    def _line(self, line: cst.SimpleStatementLine) -> tuple[list[cst.BaseStatement], _Lines]:
        alone = len(line.body) == 1
        before = [self._parsed(t) for s in line.body if alone for t in self.inserted.get(s, ())]
        small, comments = self._small(line.body, inline=not alone)
        if not small:
            left = [*line.leading_lines, *comments, *_comment_line(line.trailing_whitespace)]
            return [_led_by(left, before[0]), *before[1:]] if before else [], [] if before else left
        changed = line.with_changes(body=small, leading_lines=[*line.leading_lines, *comments])
        return [*before, changed], []

    def _small(
        self, body: Sequence[cst.BaseSmallStatement], inline: bool
    ) -> tuple[list[cst.BaseSmallStatement], _Lines]:
        """The simple statements of one line that stay, and the comments inside what goes."""
        kept: list[cst.BaseSmallStatement] = []
        comments: _Lines = []
        for s in body:
            if inline:
                kept += [p for t in self.inserted.get(s, ()) for p in _small_of(self._parsed(t))]
            if s in self.removed:
                comments += _comments_in(s)
                continue
            replacer = _Replacer(self)
            first = self.located.lines[self.located.first_line(body[0]) - 1]
            self.indent = first[: len(first) - len(first.lstrip())]
            new = s.visit(replacer)
            assert isinstance(new, cst.BaseSmallStatement)
            kept.append(new)
            comments += replacer.comments
        if kept and len(kept) != len(body) and hasattr(kept[-1], "semicolon"):
            kept[-1] = kept[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        return kept, comments

    def _preceded(self, s: cst.BaseCompoundStatement, new: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """The statements put before a compound one: blank lines stay above them, comments with their statement."""
        before: list[cst.BaseStatement] = [self._parsed(t) for t in self.inserted.get(s, ())]
        if not before or not new:
            return [*before, *new]
        lines: _Lines = list(getattr(new[0], "leading_lines", ()))
        blank = next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))
        own = new[0].with_changes(leading_lines=lines[blank:])
        return [_led_by(lines[:blank], before[0]), *before[1:], own, *new[1:]]

    def _parsed(self, text: str) -> _Statement:
        indent, newline = self.tree.default_indent, self.tree.default_newline
        return cst.parse_statement(text.replace("    ", indent).replace("\n", newline), config=self.config)

    # Compound statements.

    def _compound(self, s: cst.BaseCompoundStatement) -> tuple[list[cst.BaseStatement], _Lines]:
        changes: dict[str, object] = {}
        if isinstance(s, cst.If):
            return self._if(s)
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            part = getattr(s, name, None)
            if isinstance(part, cst.BaseSuite):
                changes[name] = self._filled(part)
            elif isinstance(part, (cst.Else, cst.Finally)):
                changes[name] = part.with_changes(body=self._filled(part.body))
            elif isinstance(part, Sequence):
                changes[name] = [p.with_changes(body=self._filled(p.body)) for p in part]
        changes |= self._header(s, set(changes))
        return [s.with_changes(**changes)], []

    def _header(self, s: cst.CSTNode, blocks: set[str]) -> dict[str, object]:
        """The parts of a compound statement that are no blocks, where something in them changes."""
        changes: dict[str, object] = {}
        for name in ("test", "iter", "target", "items", "subject", "decorators", "params", "asynchronous"):
            part = getattr(s, name, None)
            if name in blocks or part is None:
                continue
            if isinstance(part, cst.CSTNode) and self._holds(part):
                changes[name] = part.visit(_Replacer(self))
            elif isinstance(part, Sequence) and any(self._holds(p) for p in part):
                changes[name] = [p.visit(_Replacer(self)) for p in part]
        return changes

    def _holds(self, node: cst.CSTNode) -> bool:
        own = node in self.texts or node in self.added or node in self.omitted
        return own or any(self._holds(c) for c in node.children)

    def _if(self, s: cst.If) -> tuple[list[cst.BaseStatement], _Lines]:
        """An `if` of which nothing is left goes, as long as its test does nothing but ask."""
        body, comments = self._suite(s.body)
        otherwise, after = self._else(s.orelse)
        if body is None and otherwise is None and s in self.pure:
            leading = list(getattr(s, "leading_lines", ()))
            return [], [*leading, *comments, *after]
        changes: dict[str, object] = {"body": body or _passing(s.body, comments), "orelse": otherwise}
        changes |= self._header(s, {"body", "orelse"})
        return [s.with_changes(**changes)], after

    def _else(self, part: cst.If | cst.Else | None) -> tuple[cst.If | cst.Else | None, _Lines]:
        if part is None or not self._touched(part):
            return part, []
        if isinstance(part, cst.Else):
            body, comments = self._suite(part.body)
            leading = list(part.leading_lines)
            return (part.with_changes(body=body), []) if body is not None else (None, [*leading, *comments])
        new, after = self._if(part)
        made = new[0] if new else None
        assert made is None or isinstance(made, cst.If)
        return made, after

    def _suite(self, suite: cst.BaseSuite) -> tuple[cst.BaseSuite | None, _Lines]:
        """The block without what goes, or None and its comments where nothing is left."""
        if isinstance(suite, cst.SimpleStatementSuite):
            small, comments = self._small(suite.body, inline=True)
            trailing = _comment_line(suite.trailing_whitespace)
            return (suite.with_changes(body=small), []) if small else (None, [*comments, *trailing])
        assert isinstance(suite, cst.IndentedBlock)
        body, left = self._statements(suite.body)
        header = _comment_line(suite.header)
        if not body:
            return None, [*header, *left, *(line for line in suite.footer if line.comment)]
        return suite.with_changes(body=body, footer=[*left, *suite.footer]), []

    def _filled(self, suite: cst.BaseSuite) -> cst.BaseSuite:
        """A block that must not be left empty."""
        if not self._touched_suite(suite):
            return suite
        new, comments = self._suite(suite)
        return new if new is not None else _passing(suite, comments)

    def _touched_suite(self, suite: cst.BaseSuite) -> bool:
        return any(self._touched(s) for s in suite.body)

    # Expressions.

    def expression(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """What stands in place of `node`, one argument a line where one line is too long."""
        span, new = self.texts[node]
        before, after = self.located.text_around(span)
        text = new.text
        if new.call is not None and len(before) + len(text) + len(after.partition("#")[0].rstrip()) > self.width:
            text = self._wrapped(new, before)
        return cst.parse_expression(text, config=self.config)

    def omitted_from(self, call: cst.Call) -> list[int]:
        """Which arguments of `call` are left out, the last first."""
        return [i for i in reversed(range(len(call.args))) if call.args[i].value in self.omitted]

    def _wrapped(self, new: NewText, before: str) -> str:
        assert new.call is not None
        line = before[: len(before) - len(before.lstrip())]
        indent = line.removeprefix(self.indent)  # libcst adds that of the block
        text = new.call.wrapped(indent, self.tree.default_indent, self.tree.default_newline)
        return text + new.text.removeprefix(new.call.text())


class _Replacer(cst.CSTTransformer):
    """Puts new expressions in place of old ones, keeping the comments inside these."""

    def __init__(self, rebuilt: EditedModule) -> None:
        super().__init__()
        self.rebuilt = rebuilt
        self.comments: _Lines = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node not in self.rebuilt.texts

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        if isinstance(updated, cst.Call) and isinstance(original, cst.Call):
            for index in self.rebuilt.omitted_from(original):
                self.comments += _comments_in(original.args[index])
                updated = without_argument(updated, index)
            for keyword, text in self.rebuilt.added.get(original, ()):
                updated = with_argument(updated, keyword, text)
        if not isinstance(original, cst.BaseExpression) or original not in self.rebuilt.texts:
            return updated
        self.comments += _comments_in(original)
        new = self.rebuilt.expression(original)
        glued = original.lpar and "\n" not in self.rebuilt.tree.code_for_node(original)
        return new.with_changes(lpar=original.lpar, rpar=original.rpar) if glued and not _comments_in(original) else new


def _small_of(line: _Statement) -> list[cst.BaseSmallStatement]:
    if not isinstance(line, cst.SimpleStatementLine):
        raise Misplaced("a branch cannot be put before a statement that shares its line, so the file is left alone")
    return list(line.body)


def _led_by(lines: _Lines, statement: cst.BaseStatement) -> cst.BaseStatement:
    """`statement` with `lines` before its own comments."""
    if not lines or not hasattr(statement, "leading_lines"):
        return statement
    return statement.with_changes(leading_lines=_merged(lines, list(statement.leading_lines)))


def _merged(first: _Lines, second: _Lines) -> _Lines:
    """Both, with no more blank lines between them than there were."""
    while first and second and first[-1].comment is None and second[0].comment is None:
        first = first[:-1]
    return [*first, *second]


def _comment_line(trailing: cst.TrailingWhitespace) -> _Lines:
    return (
        []
        if trailing.comment is None or is_pragma(trailing.comment.value)
        else [cst.EmptyLine(comment=trailing.comment)]
    )


def _comments_in(node: cst.CSTNode) -> _Lines:
    if isinstance(node, cst.Comment):
        return [] if is_pragma(node.value) else [cst.EmptyLine(comment=node)]
    return [line for child in node.children for line in _comments_in(child)]


def is_pragma(comment: str) -> bool:
    """Whether a comment speaks to a tool about its own line, and means nothing without it."""
    return comment.lstrip("# ").startswith(
        ("noqa", "type:", "pyright:", "pylint:", "fmt:", "mypy:", "pragma:", "nosec")
    )


def _passing(suite: cst.BaseSuite, comments: _Lines) -> cst.BaseSuite:
    """A block of the same kind in which nothing happens."""
    if isinstance(suite, cst.SimpleStatementSuite) and not comments:
        return suite.with_changes(body=[cst.Pass()])
    line = cst.SimpleStatementLine(body=[cst.Pass()], leading_lines=[c for c in comments if c.comment])
    return cst.IndentedBlock(body=[line])
