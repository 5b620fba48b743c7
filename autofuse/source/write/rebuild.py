"""A libcst module with some expressions replaced and some statements gone.

Only the statements on the way to a change are made anew; all others are the same nodes. What becomes of comments beside
statements that go is decided in leading_lines.py. Knows libcst; decides nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

from autofuse.source.place.edits import Edit, NewText, TextSpan
from autofuse.source.write.chained_calls import chained_call
from autofuse.source.write.keywords import split_arguments, with_argument, without_argument
from autofuse.source.write.leading_lines import (
    Lines,
    comment_line,
    comments_in,
    handed_on,
    opens_region,
    without_leading_blanks,
)
from autofuse.source.write.one_line import on_one_line
from autofuse.source.write.positions import Located
from autofuse.source.write.trailing_comments import with_trailing_comment

_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
_Block = TypeVar("_Block", bound=cst.BaseSuite)


class Misplaced(Exception):
    """libcst has no node where ast says there is one."""


class EditedModule:
    """One module and what is to change in it."""

    def __init__(self, module: cst.Module, located: Located, edit: Edit, width: int) -> None:
        """`width` is the number of characters that a line may have. `dropped` are the comments that go."""
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
        self.width = width
        self.dropped: Lines = []

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

    def _statements(self, body: Sequence[cst.BaseStatement]) -> tuple[list[cst.BaseStatement], Lines]:
        """The statements that stay, and the lines of those that went after the last of them."""
        out: list[cst.BaseStatement] = []
        left: list[Lines] = []
        after: Lines
        for i, s in enumerate(body):
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
                if self._follows_gone(body, i, out):
                    new[0] = self._led(left, new[0], self._is_anew(s), not out)
                out, left = out + new, [after] if after else []
            else:
                left.append(after)
        lines = [line for each in left for line in each]
        self.dropped += [line for line in lines if line.comment and not opens_region(line)]
        return out, [line for line in lines if opens_region(line)]

    def _follows_gone(self, body: Sequence[cst.BaseStatement], at: int, out: list[cst.BaseStatement]) -> bool:
        """Whether the statement before `at` in its block is none of those that stay."""
        return at > 0 and (not out or out[-1] is not body[at - 1]) and self._touched(body[at - 1])

    def _led(self, left: list[Lines], statement: cst.BaseStatement, anew: bool, first: bool) -> cst.BaseStatement:
        """`statement` with what stood above those before it that went."""
        own = getattr(statement, "leading_lines", None)
        if own is None or not left and not first:
            return statement
        lines, gone = handed_on(left, list(own), anew)
        self.dropped += [line for line in gone if line.comment]
        return statement.with_changes(leading_lines=without_leading_blanks(lines) if first else lines)

    def _is_anew(self, s: cst.BaseStatement) -> bool:
        """Whether a statement holds an expression that is replaced, or one is put before it."""
        small = s.body if isinstance(s, cst.SimpleStatementLine) else ()
        return self._holds(s) or any(n in self.inserted for n in (s, *small))

    def _line(self, line: cst.SimpleStatementLine) -> tuple[list[cst.BaseStatement], Lines]:
        alone = len(line.body) == 1
        before = [self._parsed(t) for s in line.body if alone for t in self.inserted.get(s, ())]
        self._begin(line.body)
        call = self._call_apart(line)
        small, comments = self._small(line.body, inline=not alone)
        if not small:
            self.dropped += [*comments, *comment_line(line.trailing_whitespace)]
            if not before:
                return [], list(line.leading_lines)
            return [before[0].with_changes(leading_lines=line.leading_lines), *before[1:]], []
        changed = line.with_changes(body=small, leading_lines=[*line.leading_lines, *comments])
        changed = self._joined(changed, line)
        changed = with_trailing_comment(changed, line, self.tree, self.width - len(self.indent))
        before += [self._parsed(call)] if call is not None else []
        if before:
            before[0] = before[0].with_changes(leading_lines=changed.leading_lines)
            changed = changed.with_changes(leading_lines=[])
        return [*before, changed], []

    def _joined(self, new: cst.SimpleStatementLine, old: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        """A statement that was written on several lines on one, where it now fits."""
        one_line = self.located.first_line(old) == self.located.last_line(old)
        if len(new.body) != 1 or one_line or not self._is_replaced_in(old):
            return new
        text = on_one_line(self.tree.code_for_node(new.body[0]), self.width - len(self.indent))
        if text is None:
            return new
        made = self._parsed(text)
        return new.with_changes(body=made.body) if isinstance(made, cst.SimpleStatementLine) else new

    def _begin(self, body: Sequence[cst.BaseSmallStatement]) -> None:
        """Takes down how far the line of these statements is indented."""
        first = self.located.lines[self.located.first_line(body[0]) - 1]
        self.indent = first[: len(first) - len(first.lstrip())]

    def _call_apart(self, line: cst.SimpleStatementLine) -> str | None:
        """The statement of a call that is too long for the chain of methods on it, which then has its name."""
        found = chained_call(line, {n: t for n, (_, t) in self.texts.items()}, self.tree.code)
        if found is None or not self._is_too_long(found.node):
            return None
        span, _ = self.texts[found.node]
        self.texts[found.node] = span, NewText(found.start + found.name + found.rest)
        room = self.width - len(self.indent)
        return found.statement(room, self.tree.default_indent, self.tree.default_newline)

    def _small(
        self, body: Sequence[cst.BaseSmallStatement], inline: bool
    ) -> tuple[list[cst.BaseSmallStatement], Lines]:
        """The simple statements of one line that stay, and the comments inside what goes."""
        kept: list[cst.BaseSmallStatement] = []
        comments: Lines = []
        for s in body:
            if inline:
                kept += [p for t in self.inserted.get(s, ()) for p in _small_of(self._parsed(t))]
            if s in self.removed:
                self.dropped += comments_in(s)
                continue
            replacer = _Replacer(self)
            self._begin(body)
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
        lines: Lines = list(getattr(new[0], "leading_lines", ()))
        blank = next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))
        own = new[0].with_changes(leading_lines=lines[blank:])
        return [before[0].with_changes(leading_lines=lines[:blank]), *before[1:], own, *new[1:]]

    def _parsed(self, text: str) -> _Statement:
        indent, newline = self.tree.default_indent, self.tree.default_newline
        return cst.parse_statement(text.replace("    ", indent).replace("\n", newline), config=self.config)

    # Compound statements.

    def _compound(self, s: cst.BaseCompoundStatement) -> tuple[list[cst.BaseStatement], Lines]:
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

    def _is_replaced_in(self, node: cst.CSTNode) -> bool:
        """Whether an expression inside `node` is replaced, rather than given arguments."""
        return node in self.texts or any(self._is_replaced_in(c) for c in node.children)

    def _if(self, s: cst.If) -> tuple[list[cst.BaseStatement], Lines]:
        """An `if` of which nothing is left goes, as long as its test does nothing but ask."""
        body, comments = self._suite(s.body)
        otherwise, after = self._else(s.orelse)
        if body is None and otherwise is None and s in self.pure:
            self.dropped += [*comments, *after]
            return [], list(getattr(s, "leading_lines", ()))
        changes: dict[str, object] = {"body": body or _passing(s.body, comments), "orelse": otherwise}
        changes |= self._header(s, {"body", "orelse"})
        return [s.with_changes(**changes)], after

    def _else(self, part: cst.If | cst.Else | None) -> tuple[cst.If | cst.Else | None, Lines]:
        if part is None or not self._touched(part):
            return part, []
        if isinstance(part, cst.Else):
            body, comments = self._suite(part.body)
            if body is not None:
                return part.with_changes(body=body), []
            self.dropped += [*(line for line in part.leading_lines if line.comment), *comments]
            return None, []
        new, after = self._if(part)
        made = new[0] if new else None
        assert made is None or isinstance(made, cst.If)
        return made, after

    def _suite(self, suite: cst.BaseSuite) -> tuple[cst.BaseSuite | None, Lines]:
        """The block without what goes, or None and its comments where nothing is left."""
        if isinstance(suite, cst.SimpleStatementSuite):
            small, comments = self._small(suite.body, inline=True)
            trailing = comment_line(suite.trailing_whitespace)
            return (suite.with_changes(body=small), []) if small else (None, [*comments, *trailing])
        assert isinstance(suite, cst.IndentedBlock)
        body, left = self._statements(suite.body)
        header = comment_line(suite.header)
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
        text = new.text
        if new.call is not None and self._is_too_long(node):
            text = self._wrapped(new, self.located.text_around(span)[0])
        return cst.parse_expression(text, config=self.config)

    def _is_too_long(self, node: cst.BaseExpression) -> bool:
        """Whether the text in place of `node` makes its line longer than lines may be."""
        span, new = self.texts[node]
        before, after = self.located.text_around(span)
        return len(before) + len(new.text) + len(after.partition("#")[0].rstrip()) > self.width

    def fitted(self, old: cst.Call, new: cst.Call) -> cst.Call:
        """`new`, which stands in place of `old` at the end of its line, split where the line would be too long."""
        code, at = self.tree.code_for_node(new), self.located.ranges[old]
        line = self.located.lines[at.start.line - 1]
        before, after = line[: at.start.column], line[at.end.column :].partition("#")[0].strip()
        if at.start.line != at.end.line or after or len(before) + len(code) <= self.width or len(line) > self.width:
            return new
        indent = line[: len(line) - len(line.lstrip())]
        room = self.width - len(self.indent)
        return split_arguments(new, self.tree, indent.removeprefix(self.indent), self.tree.default_indent, room)

    def needs_parentheses(self, node: cst.BaseExpression, new: cst.BaseExpression) -> bool:
        """Whether those around `node` stay around `new`: a call needs none, unless a keyword stands right before it."""
        if "\n" in self.tree.code_for_node(node):
            return False
        before = self.located.text_around(self.texts[node][0])[0].rstrip("( \t")
        glued = before[-1:].isalnum() and self.located.text_around(self.texts[node][0])[0][len(before) :][:1] == "("
        return glued or not isinstance(new, (cst.Call, cst.Name, cst.Attribute, cst.Subscript))

    def omitted_from(self, call: cst.Call) -> list[int]:
        """Which arguments of `call` are left out, the last first."""
        return [i for i in reversed(range(len(call.args))) if call.args[i].value in self.omitted]

    def _wrapped(self, new: NewText, before: str) -> str:
        assert new.call is not None
        line = before[: len(before) - len(before.lstrip())]
        indent = line.removeprefix(self.indent)  # libcst adds that of the block
        room = self.width - len(self.indent)
        text = new.call.wrapped(indent, self.tree.default_indent, self.tree.default_newline, room)
        return text + new.text.removeprefix(new.call.text())


class _Replacer(cst.CSTTransformer):
    """Puts new expressions in place of old ones, keeping the comments inside these."""

    def __init__(self, rebuilt: EditedModule) -> None:
        super().__init__()
        self.rebuilt = rebuilt
        self.comments: Lines = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node not in self.rebuilt.texts

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        if isinstance(updated, cst.Call) and isinstance(original, cst.Call):
            for index in self.rebuilt.omitted_from(original):
                self.comments += comments_in(original.args[index])
                updated = without_argument(updated, index)
            for keyword, text in self.rebuilt.added.get(original, ()):
                updated = with_argument(updated, keyword, text)
            if original in self.rebuilt.added:
                updated = self.rebuilt.fitted(original, updated)
        if not isinstance(original, cst.BaseExpression) or original not in self.rebuilt.texts:
            return updated
        self.comments += comments_in(original)
        new = self.rebuilt.expression(original)
        kept = original.lpar and self.rebuilt.needs_parentheses(original, new)
        return new.with_changes(lpar=original.lpar, rpar=original.rpar) if kept and not comments_in(original) else new


def _small_of(line: _Statement) -> list[cst.BaseSmallStatement]:
    if not isinstance(line, cst.SimpleStatementLine):
        raise Misplaced("a branch cannot be put before a statement that shares its line, so the file is left alone")
    return list(line.body)


def _passing(suite: cst.BaseSuite, comments: Lines) -> cst.BaseSuite:
    """A block of the same kind in which nothing happens."""
    if isinstance(suite, cst.SimpleStatementSuite) and not comments:
        return suite.with_changes(body=[cst.Pass()])
    line = cst.SimpleStatementLine(body=[cst.Pass()], leading_lines=[c for c in comments if c.comment])
    return cst.IndentedBlock(body=[line])
