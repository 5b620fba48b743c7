"""Makes the edited libcst module: replaces expressions, inserts and removes statements.

Only the statements around a change are new nodes; all others are shared. leading_lines.py decides about the comments
around removed statements.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

from autofuse.source.place.edits import Edit, NewText, TextSpan
from autofuse.source.targets.line_breaks import break_assignment
from autofuse.source.write.call_arguments import (
    add_argument,
    place_last_argument,
    remove_argument,
    split_arguments,
)
from autofuse.source.write.chained_calls import find_chained_call
from autofuse.source.write.keyword_spacing import with_spaces
from autofuse.source.write.leading_lines import (
    Lines,
    combine_leading_lines,
    comment_line,
    comments_in,
    opens_region,
    strip_leading_blank_lines,
)
from autofuse.source.write.one_line import join_on_one_line
from autofuse.source.write.positions import NodePositions
from autofuse.source.write.stale_comments import names_in, stale_words, without_stale
from autofuse.source.write.trailing_comments import place_trailing_comment

_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
_Block = TypeVar("_Block", bound=cst.BaseSuite)
_ELEMENT = re.compile(r"\s*(?:[\w.\"'-]+\s*[:=]\s*)?")  # what precedes an element on a line of its own
_NO_COMMA = cst.MaybeSentinel.DEFAULT


class NodeNotFound(Exception):
    """libcst has no node at a position from ast."""


class EditedModule:
    """A module with its edit.

    Attributes:
        dropped: the comments that the edit removes. They are complete after `module()`.
    """

    def __init__(
        self, module: cst.Module, positions: NodePositions, edit: Edit, width: int, spaced: bool = False
    ) -> None:
        """Creates the edited module; `module()` returns it.

        Args:
            module: the module, or a part of one.
            positions: its nodes.
            edit: what to change.
            width: the number of characters that a line may have.
            spaced: whether keyword arguments get spaces around `=`.
        """
        self.tree, self.positions, self.config = module, positions, module.config_for_parsing
        self.texts = {self._expression(s): (s, t) for s, t in edit.replacements}
        self.added: dict[cst.BaseExpression, list[tuple[str, str]]] = {}
        for span, keyword, text in edit.additions:
            self.added.setdefault(self._expression(span), []).append((keyword, text))
        self.omitted = {self._expression(value) for _, value in edit.omissions}
        self.removed = {self._statement(s) for s in edit.removals}
        self.pure = {n for s in edit.pure_tests if (n := positions.statement(s)) is not None}
        self.inserted: dict[cst.CSTNode, list[str]] = {}
        for s, text in edit.insertions:
            self.inserted.setdefault(self._statement(s), []).append(text)
        self.lines = sorted({s.line for s in edit.spans})
        self.indent = ""
        self.width, self.is_spaced = width, spaced
        self.dropped: Lines = []

    def _expression(self, span: TextSpan) -> cst.BaseExpression:
        node = self.positions.expression(span)
        if node is None:
            raise NodeNotFound(f"libcst has no expression at line {span.line}, so the file stays as it is")
        return node

    def _statement(self, span: TextSpan) -> cst.CSTNode:
        node = self.positions.statement(span)
        if node is None:
            raise NodeNotFound(f"libcst has no statement at line {span.line}, so the file stays as it is")
        return node

    def module(self) -> cst.Module:
        """Returns the edited module."""
        body, left = self._edit_statements(self.tree.body)
        return self.tree.with_changes(body=body, footer=[*left, *self.tree.footer])

    # Blocks.

    def _is_changed(self, node: cst.CSTNode) -> bool:
        """Whether the edit changes a line of a node."""
        first, last = self.positions.first_line(node), self.positions.last_line(node)
        index = bisect_left(self.lines, first)
        return index < len(self.lines) and self.lines[index] <= last

    def _edit_statements(self, body: Sequence[cst.BaseStatement]) -> tuple[list[cst.BaseStatement], Lines]:
        """The remaining statements, and the lines above removed statements at the end that stay."""
        remaining: list[cst.BaseStatement] = []
        lines_above: list[Lines] = []
        old: list[cst.CSTNode] = []  # the removed and changed statements since the last one that stays
        lines_after: Lines
        for i, statement in enumerate(body):
            if not self._is_changed(statement):
                new_statements, lines_after = [statement], []
            elif isinstance(statement, cst.SimpleStatementLine):
                new_statements, lines_after = self._edit_line(statement)
            elif isinstance(statement, cst.BaseCompoundStatement):
                new_statements, lines_after = self._edit_compound(statement)
                new_statements = self._insert_before(statement, new_statements)
            else:
                new_statements, lines_after = [statement], []
            old.append(statement)
            if new_statements:
                is_changed = self._is_statement_changed(statement)
                is_simple = is_changed and isinstance(statement, cst.SimpleStatementLine)
                stale = stale_words(names_in(old), names_in(new_statements)) if is_simple else []
                if self._follows_removed(body, i, remaining):
                    new_statements[0] = self._with_lines_above(
                        lines_above, new_statements[0], is_changed, not remaining, stale
                    )
                elif stale:
                    new_statements[0] = self._with_lines_above([], new_statements[0], is_changed, False, stale)
                remaining, lines_above, old = remaining + new_statements, [lines_after] if lines_after else [], []
            else:
                lines_above.append(lines_after)
        lines = [line for each in lines_above for line in each]
        self.dropped += [line for line in lines if line.comment and not opens_region(line)]
        return remaining, [line for line in lines if opens_region(line)]

    def _follows_removed(
        self, body: Sequence[cst.BaseStatement], index: int, remaining: list[cst.BaseStatement]
    ) -> bool:
        """Whether the statement before index `index` of the block is removed or replaced."""
        return (
            index > 0 and (not remaining or remaining[-1] is not body[index - 1]) and self._is_changed(body[index - 1])
        )

    def _with_lines_above(
        self,
        lines_above: list[Lines],
        statement: cst.BaseStatement,
        is_changed: bool,
        is_first: bool,
        stale: list[tuple[str, ...]],
    ) -> cst.BaseStatement:
        """Returns a statement with the lines above the removed statements before it, without stale comments."""
        own_lines = getattr(statement, "leading_lines", None)
        if own_lines is None or not lines_above and not is_first and not stale:
            return statement
        own, removed = without_stale(list(own_lines), stale)
        lines, others = combine_leading_lines(lines_above, own, is_changed, stale)
        self.dropped += [line for line in (*removed, *others) if line.comment]
        return statement.with_changes(leading_lines=strip_leading_blank_lines(lines) if is_first else lines)

    def _is_statement_changed(self, statement: cst.BaseStatement) -> bool:
        """Whether an expression in a statement changes, or a statement is inserted before it."""
        simple_statements = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
        return self._has_change(statement) or any(n in self.inserted for n in (statement, *simple_statements))

    def _edit_line(self, line: cst.SimpleStatementLine) -> tuple[list[cst.BaseStatement], Lines]:
        """The new statements for a line of simple statements. If there are none, the lines above it."""
        is_alone = len(line.body) == 1
        self._set_indent(line.body)
        inserted = [self._parse_new(t) for statement in line.body if is_alone for t in self.inserted.get(statement, ())]
        call = self._split_call(line)
        simple_statements, comments = self._edit_simple_statements(line.body, inline=not is_alone)
        if not simple_statements:
            self.dropped += [*comments, *comment_line(line.trailing_whitespace)]
            if not inserted:
                return [], list(line.leading_lines)
            return [inserted[0].with_changes(leading_lines=line.leading_lines), *inserted[1:]], []
        new_line = line.with_changes(body=simple_statements, leading_lines=[*line.leading_lines, *comments])
        new_line = self._break_if_long(self._join_if_short(new_line, line), line)
        new_line = place_trailing_comment(new_line, line, self.tree, self.width - len(self.indent))
        inserted += [self._parse_new(call)] if call is not None else []
        if inserted:
            inserted[0] = inserted[0].with_changes(leading_lines=new_line.leading_lines)
            new_line = new_line.with_changes(leading_lines=[])
        return [*inserted, new_line], []

    def _join_if_short(self, new: cst.SimpleStatementLine, old: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        """Joins the lines of a changed statement if it now fits on one line."""
        one_line = self.positions.first_line(old) == self.positions.last_line(old)
        if len(new.body) != 1 or one_line or not self._is_replaced_in(old):
            return new
        text = join_on_one_line(self.tree.code_for_node(new.body[0]), self.width - len(self.indent))
        return new if text is None else self._with_code(new, text)

    def _break_if_long(self, new: cst.SimpleStatementLine, old: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        """Breaks a changed statement that is now too long for its line."""
        room = self.width - len(self.indent)
        code = self.tree.code_for_node(new.body[0]) if len(new.body) == 1 else ""
        is_new = len(self.tree.code_for_node(old.body[0])) <= room < len(code) and self._is_replaced_in(old)
        return self._with_code(new, code) if is_new and "\n" not in code else new

    def _with_code(self, line: cst.SimpleStatementLine, code: str) -> cst.SimpleStatementLine:
        parsed = self._parse(code)
        return line.with_changes(body=parsed.body) if isinstance(parsed, cst.SimpleStatementLine) else line

    def _set_indent(self, body: Sequence[cst.BaseSmallStatement | cst.BaseCompoundStatement]) -> None:
        """Stores the indentation of these statements."""
        first = self.positions.lines[self.positions.first_line(body[0]) - 1]
        self.indent = first[: len(first) - len(first.lstrip())]

    def _split_call(self, line: cst.SimpleStatementLine) -> str | None:
        """Splits a call that is too long from the methods after it. Returns the statement of the call."""
        chained = find_chained_call(line, {n: t for n, (_, t) in self.texts.items()}, self.tree.code)
        if chained is None:
            return None
        span, new = self.texts[chained.node]
        if not self._is_too_long(span, self.tree.code_for_node(self._parse_expression(new.text))):
            return None
        self.texts[chained.node] = span, NewText(chained.start + chained.name + chained.rest)
        room = self.width - len(self.indent)
        return chained.statement(room, self.tree.default_indent, self.tree.default_newline)

    def _edit_simple_statements(
        self, body: Sequence[cst.BaseSmallStatement], inline: bool
    ) -> tuple[list[cst.BaseSmallStatement], Lines]:
        """The remaining simple statements of one line, and the comments inside removed code."""
        remaining: list[cst.BaseSmallStatement] = []
        comments: Lines = []
        for statement in body:
            if inline:
                remaining += [
                    p for t in self.inserted.get(statement, ()) for p in _simple_statements(self._parse_new(t))
                ]
            if statement in self.removed:
                self.dropped += comments_in(statement)
                continue
            replacer = _ReplaceExpressions(self)
            self._set_indent(body)
            new = statement.visit(replacer)
            assert isinstance(new, cst.BaseSmallStatement)
            remaining.append(new)
            comments += replacer.comments
        if remaining and len(remaining) != len(body) and hasattr(remaining[-1], "semicolon"):
            remaining[-1] = remaining[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        return remaining, comments

    def _insert_before(
        self, compound: cst.BaseCompoundStatement, new_statements: list[cst.BaseStatement]
    ) -> list[cst.BaseStatement]:
        """Inserts statements before a compound one. Blank lines go above them; comments stay with the statement."""
        self._set_indent([compound])
        inserted: list[cst.BaseStatement] = [self._parse_new(t) for t in self.inserted.get(compound, ())]
        if not inserted or not new_statements:
            return [*inserted, *new_statements]
        lines: Lines = list(getattr(new_statements[0], "leading_lines", ()))
        first_comment = next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))
        statement = new_statements[0].with_changes(leading_lines=lines[first_comment:])
        return [
            inserted[0].with_changes(leading_lines=lines[:first_comment]),
            *inserted[1:],
            statement,
            *new_statements[1:],
        ]

    def _parse_new(self, text: str) -> _Statement:
        """The statement for a new text. Its call is spaced as the calls of the file are."""
        statement = self._parse(text)
        if not self.is_spaced or not isinstance(statement, cst.SimpleStatementLine):
            return statement
        body = [s.with_changes(value=with_spaces(s.value)) if isinstance(s, cst.Assign) else s for s in statement.body]
        return statement.with_changes(body=body)

    def _parse(self, text: str) -> _Statement:
        indent, newline = self.tree.default_indent, self.tree.default_newline
        lines = text.replace("    ", indent).split("\n")
        code = newline.join(break_assignment(line, indent, newline, self.width - len(self.indent)) for line in lines)
        return cst.parse_statement(code, config=self.config)

    # Compound statements.

    def _edit_compound(self, compound: cst.BaseCompoundStatement) -> tuple[list[cst.BaseStatement], Lines]:
        changes: dict[str, object] = {}
        if isinstance(compound, cst.If):
            return self._edit_if(compound)
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            part = getattr(compound, name, None)
            if isinstance(part, cst.BaseSuite):
                changes[name] = self._edit_required_block(part)
            elif isinstance(part, (cst.Else, cst.Finally)):
                changes[name] = part.with_changes(body=self._edit_required_block(part.body))
            elif isinstance(part, Sequence):
                changes[name] = [p.with_changes(body=self._edit_required_block(p.body)) for p in part]
        changes |= self._edit_header(compound, set(changes))
        return [compound.with_changes(**changes)], []

    def _edit_header(self, compound: cst.CSTNode, blocks: set[str]) -> dict[str, object]:
        """The changed parts of a compound statement outside of its blocks, such as its test."""
        changes: dict[str, object] = {}
        for name in ("test", "iter", "target", "items", "subject", "decorators", "params", "asynchronous"):
            part = getattr(compound, name, None)
            if name in blocks or part is None:
                continue
            if isinstance(part, cst.CSTNode) and self._has_change(part):
                changes[name] = part.visit(_ReplaceExpressions(self))
            elif isinstance(part, Sequence) and any(self._has_change(p) for p in part):
                changes[name] = [p.visit(_ReplaceExpressions(self)) for p in part]
        return changes

    def _has_change(self, node: cst.CSTNode) -> bool:
        """Whether an expression in `node` changes."""
        is_changed = node in self.texts or node in self.added or node in self.omitted
        return is_changed or any(self._has_change(c) for c in node.children)

    def _is_replaced_in(self, node: cst.CSTNode) -> bool:
        """Whether an expression in `node` is replaced. Added arguments do not count."""
        return node in self.texts or any(self._is_replaced_in(c) for c in node.children)

    def _edit_if(self, statement: cst.If) -> tuple[list[cst.BaseStatement], Lines]:
        """An `if` that becomes empty is removed if its test has no side effects."""
        body, comments = self._edit_block(statement.body)
        orelse, lines_after = self._edit_else(statement.orelse)
        if body is None and orelse is None and statement in self.pure:
            self.dropped += [*comments, *lines_after]
            return [], list(getattr(statement, "leading_lines", ()))
        changes: dict[str, object] = {"body": body or _empty_block(statement.body, comments), "orelse": orelse}
        changes |= self._edit_header(statement, {"body", "orelse"})
        return [statement.with_changes(**changes)], lines_after

    def _edit_else(self, part: cst.If | cst.Else | None) -> tuple[cst.If | cst.Else | None, Lines]:
        if part is None or not self._is_changed(part):
            return part, []
        if isinstance(part, cst.Else):
            body, comments = self._edit_block(part.body)
            if body is not None:
                return part.with_changes(body=body), []
            self.dropped += [*(line for line in part.leading_lines if line.comment), *comments]
            return None, []
        new_statements, lines_after = self._edit_if(part)
        elif_ = new_statements[0] if new_statements else None
        assert elif_ is None or isinstance(elif_, cst.If)
        return elif_, lines_after

    def _edit_block(self, suite: cst.BaseSuite) -> tuple[cst.BaseSuite | None, Lines]:
        """The block without removed statements. If nothing remains: None, and its comments."""
        if isinstance(suite, cst.SimpleStatementSuite):
            simple_statements, comments = self._edit_simple_statements(suite.body, inline=True)
            trailing = comment_line(suite.trailing_whitespace)
            return (
                (suite.with_changes(body=simple_statements), [])
                if simple_statements
                else (None, [*comments, *trailing])
            )
        assert isinstance(suite, cst.IndentedBlock)
        body, lines_left = self._edit_statements(suite.body)
        header = comment_line(suite.header)
        if not body:
            return None, [*header, *lines_left, *(line for line in suite.footer if line.comment)]
        return suite.with_changes(body=body, footer=[*lines_left, *suite.footer]), []

    def _edit_required_block(self, suite: cst.BaseSuite) -> cst.BaseSuite:
        """A block that must not be empty."""
        if not self._is_block_changed(suite):
            return suite
        new, comments = self._edit_block(suite)
        return new if new is not None else _empty_block(suite, comments)

    def _is_block_changed(self, suite: cst.BaseSuite) -> bool:
        return any(self._is_changed(s) for s in suite.body)

    # Expressions.

    def replacement_of(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """The replacement for `node`. If its line is too long, it has one argument per line."""
        span, new = self.texts[node]
        expression = self._parse_expression(new.text)
        if new.call is not None and self._is_too_long(span, self.tree.code_for_node(expression)):
            return self._parse_expression(self._wrap_call(new, self.positions.text_around(span)[0]))
        return expression

    def _parse_expression(self, text: str) -> cst.BaseExpression:
        expression = cst.parse_expression(text, config=self.config)
        return with_spaces(expression) if self.is_spaced else expression

    def _is_too_long(self, span: TextSpan, text: str) -> bool:
        """Whether `text` makes its line too long in place of `span`."""
        before, after = self.positions.text_around(span)
        return len(before) + len(text) + len(after.partition("#")[0].rstrip()) > self.width

    def split_if_long(self, old: cst.Call, new: cst.Call) -> cst.Call:
        """Splits the arguments of `new`, which has one more argument than `old`, if its line is too long."""
        new_code, old_range = self.tree.code_for_node(new), self.positions.ranges[old]
        if old_range.start.line != old_range.end.line:
            return self._split_last_line(old, new)
        line = self.positions.lines[old_range.start.line - 1]
        before, after = line[: old_range.start.column], line[old_range.end.column :].partition("#")[0].strip()
        is_element = after == "," and _ELEMENT.fullmatch(before) is not None
        if after and not is_element or len(before + new_code + after) <= self.width or len(line) > self.width:
            return new
        indent, room = _indent_of(line).removeprefix(self.indent), self.width - len(self.indent)
        return split_arguments(new, self.tree, indent, self.tree.default_indent, room)

    def _split_last_line(self, old: cst.Call, new: cst.Call) -> cst.Call:
        """Moves the added argument of a call of several lines to the next line if its line is too long."""
        if not old.args:
            return new
        lines, last = self.positions.lines, self.positions.ranges[old.args[-1].value]
        line, added = lines[last.end.line - 1], self.tree.code_for_node(new.args[-1].with_changes(comma=_NO_COMMA))
        length = len(line.partition("#")[0].rstrip()) + len(f", {added.rstrip()}")
        if length <= self.width or len(line) > self.width:
            return new
        first = self.positions.ranges[old.args[0].keyword or old.args[0].value].start
        own_line = lines[last.start.line - 1]
        is_aligned = last.start.line == self.positions.ranges[old].start.line
        argument_indent = " " * first.column if is_aligned else _indent_of(own_line)
        indent = _indent_of(lines[self.positions.ranges[old].start.line - 1]).removeprefix(self.indent)
        argument_indent = argument_indent.removeprefix(self.indent)
        return place_last_argument(new, self.tree, indent, argument_indent, self.tree.default_indent)

    def needs_parentheses(self, node: cst.BaseExpression, new: cst.BaseExpression) -> bool:
        """Whether `new` keeps the parentheses of `node`. A call needs none, except directly after a keyword."""
        if "\n" in self.tree.code_for_node(node):
            return False
        before = self.positions.text_around(self.texts[node][0])[0].rstrip("( \t")
        follows_keyword = (
            before[-1:].isalnum() and self.positions.text_around(self.texts[node][0])[0][len(before) :][:1] == "("
        )
        return follows_keyword or not isinstance(new, (cst.Call, cst.Name, cst.Attribute, cst.Subscript))

    def omitted_arguments(self, call: cst.Call) -> list[int]:
        """The indexes of the arguments of `call` to remove, the last one first."""
        return [i for i in reversed(range(len(call.args))) if call.args[i].value in self.omitted]

    def _wrap_call(self, new: NewText, before: str) -> str:
        assert new.call is not None
        line = before[: len(before) - len(before.lstrip())]
        indent = line.removeprefix(self.indent)  # libcst adds the indentation of the block
        room = self.width - len(self.indent) - (2 * new.call.text().count("=") if self.is_spaced else 0)
        text = new.call.wrapped(indent, self.tree.default_indent, self.tree.default_newline, room)
        return text + new.text.removeprefix(new.call.text())


class _ReplaceExpressions(cst.CSTTransformer):
    """Replaces expressions, and collects the comments inside the old ones."""

    def __init__(self, edited: EditedModule) -> None:
        super().__init__()
        self.edited = edited
        self.comments: Lines = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node not in self.edited.texts

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        if isinstance(updated, cst.Call) and isinstance(original, cst.Call):
            for index in self.edited.omitted_arguments(original):
                self.comments += comments_in(original.args[index])
                updated = remove_argument(updated, index)
            for keyword, text in self.edited.added.get(original, ()):
                updated = add_argument(updated, keyword, text, self.edited.is_spaced)
            if original in self.edited.added:
                updated = self.edited.split_if_long(original, updated)
        if not isinstance(original, cst.BaseExpression) or original not in self.edited.texts:
            return updated
        self.comments += comments_in(original)
        new = self.edited.replacement_of(original)
        keeps_parentheses = original.lpar and self.edited.needs_parentheses(original, new)
        return (
            new.with_changes(lpar=original.lpar, rpar=original.rpar)
            if keeps_parentheses and not comments_in(original)
            else new
        )


def _indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _simple_statements(line: _Statement) -> list[cst.BaseSmallStatement]:
    if not isinstance(line, cst.SimpleStatementLine):
        raise NodeNotFound(
            "an `if` cannot be inserted before a statement that shares its line, so the file stays as it is"
        )
    return list(line.body)


def _empty_block(suite: cst.BaseSuite, comments: Lines) -> cst.BaseSuite:
    """A block with only a `pass` statement."""
    if isinstance(suite, cst.SimpleStatementSuite) and not comments:
        return suite.with_changes(body=[cst.Pass()])
    line = cst.SimpleStatementLine(body=[cst.Pass()], leading_lines=[c for c in comments if c.comment])
    return cst.IndentedBlock(body=[line])
