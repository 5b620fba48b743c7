"""Breaks a long expression into lines, as Black and ruff do.

- A conditional expression is broken before `if` and `else`, in parentheses of its own.
- An operator expression is broken before its operators of the lowest precedence.
- A chain of three or more methods is broken before their dots.
- A call is broken inside its last brackets: all arguments on one line if they fit, otherwise one on each line.

A nested expression is broken only if it does not fit on its own line. An expression without such a place stays whole.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

_PRECEDENCE = {
    ast.BitOr: 1, ast.BitXor: 2, ast.BitAnd: 3, ast.LShift: 4, ast.RShift: 4, ast.Add: 5, ast.Sub: 5, ast.Mult: 6,
    ast.Div: 6, ast.FloorDiv: 6, ast.Mod: 6, ast.MatMult: 6,
}  # fmt: skip
_LAST_WORD = re.compile(r"\w+$")
_ASSIGNMENT = re.compile(r"([ \t]*)((?:self\.)?\w+ = |return )")
_FLUENT = 2  # dots after brackets, from which formatters break before each dot


@dataclass(frozen=True)
class Lines:
    """The place where an expression starts.

    Attributes:
        indent: the indentation of its first line.
        step: one level of indentation.
        newline: the line ending of the file.
        room: the maximum line length.
        before: the number of characters before the expression on its first line, after the indentation.
        after: the number of characters after it on its last line.
    """

    indent: str
    step: str
    newline: str
    room: int
    before: int = 0
    after: int = 0

    def fits(self, text: str) -> bool:
        return "\n" not in text and len(self.indent) + self.before + len(text) + self.after <= self.room

    @property
    def inner(self) -> Lines:
        """The lines one level deeper."""
        return replace(self, indent=self.indent + self.step, before=0, after=0)

    def start(self) -> str:
        return self.newline + self.indent


def break_argument(argument: str, lines: Lines) -> str:
    """Break one argument of a call that has a line of its own: `x`, `attn_mask=x`. A comma follows it."""
    lines = replace(lines, after=1)
    if lines.fits(argument) or (call := _parse(f"f({argument})")) is None:
        return argument
    keyword = (
        f"{call.keywords[0].arg}=" if isinstance(call, ast.Call) and call.keywords and call.keywords[0].arg else ""
    )
    value = _break_expression(argument.removeprefix(keyword), replace(lines, before=len(keyword)), in_brackets=True)
    return keyword + value if _is_same(f"f({keyword}{value})", call) else argument


def break_assignment(line: str, step: str, newline: str, room: int) -> str:
    """Break the value of an assignment or a `return` that is too long. Every other line is returned as it is."""
    found = _ASSIGNMENT.match(line)
    if found is None or len(line) <= room or (node := _parse(value := line[found.end() :])) is None:
        return line
    indent, target = found.groups()
    broken = _break_expression(value, Lines(indent, step, newline, room, before=len(target)), in_brackets=False)
    return f"{indent}{target}{broken}" if _is_same(broken, node) else line


def _parse(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _is_same(text: str, node: ast.expr) -> bool:
    parsed = _parse(text)
    return parsed is not None and ast.dump(parsed) == ast.dump(node)


def _break_expression(text: str, lines: Lines, in_brackets: bool) -> str:
    """The text on several lines. `in_brackets` says that its lines are in brackets already."""
    if lines.fits(text) or (node := _parse(text)) is None:
        return text
    if _is_parenthesized(node, text):
        return _in_parentheses(text[1:-1].strip(), lines)
    if not in_brackets and (hugged := _break_last_operand(node, text, lines)) is not None:
        return hugged
    if isinstance(node, ast.IfExp) or not in_brackets and any(_parts_of(node, text)):
        return _in_parentheses(text, lines)
    return _split_parts(text, lines)


def _break_last_operand(node: ast.expr, text: str, lines: Lines) -> str | None:
    """A single operation, broken inside the brackets of its second operand: `a + b.f(` ... `).g()`."""
    if not isinstance(node, ast.BinOp) or len([*_parts_of(node, text)]) != 2:
        return None
    if _is_parenthesized(node.right, text):
        head, inside = text[: _start(node.right, text) + 1], _source(node.right, text)[1:-1].strip()
        return (
            f"{head}{lines.inner.start()}{_split_parts(inside, lines.inner)}{lines.start()})"
            if lines.fits(head)
            else None
        )
    part: ast.expr = node.right
    while isinstance(part, (ast.Call, ast.Attribute)):
        if isinstance(part, ast.Call) and (part.args or part.keywords):
            start, end = _plain_range(part.func, text)[1], _plain_range(part, text)[1]
            head, inside, tail = text[: start + 1], text[start + 1 : end - 1].strip(), text[end - 1 :]
            if lines.fits(head) and lines.inner.fits(inside) and len(lines.indent) + len(tail) <= lines.room:
                return f"{head}{lines.inner.start()}{inside}{lines.start()}{tail}"
        part = part.func if isinstance(part, ast.Call) else part.value
    return None


def _in_parentheses(text: str, lines: Lines) -> str:
    return f"({lines.inner.start()}{_split_parts(text, lines.inner)}{lines.start()})"


def _split_parts(text: str, lines: Lines) -> str:
    """The text with each of its parts on a line of its own, without parentheses around it."""
    if lines.fits(text) or (node := _parse(text)) is None:
        return text
    parts = [*_parts_of(node, text)]
    if not parts:
        return _break_brackets(node, text, lines)
    last = len(parts) - 1
    broken = []
    for i, (start, part) in enumerate(parts):
        before = len(start) + (lines.before if i == 0 else 0)
        place = replace(lines, before=before, after=lines.after if i == last else 0)
        broken.append(start + _break_expression(part, place, in_brackets=True))
    return lines.start().join(broken)


def _parts_of(node: ast.expr, text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of an expression that get a line each, with the operator at the start of each line."""
    if isinstance(node, ast.IfExp):
        yield from _branches(node, text)
    elif isinstance(node, ast.BinOp) and type(node.op) in _PRECEDENCE:
        yield from _operands(node, text)
    elif isinstance(node, ast.BoolOp):
        yield from _tests(node, text)
    else:
        yield from (("", link) for link in _links(node, text))


def _branches(node: ast.IfExp, text: str) -> Iterator[tuple[str, str]]:
    yield "", _source(node.body, text)
    yield "if ", _source(node.test, text)
    other = _source(node.orelse, text)
    # Black and ruff treat a nested conditional without parentheses differently.
    is_bare = isinstance(node.orelse, ast.IfExp) and not _is_parenthesized(node.orelse, text)
    yield "else ", f"({other})" if is_bare else other


def _tests(node: ast.BoolOp, text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a test. Formatters treat `and` and `or` alike."""
    for i, value in enumerate(node.values):
        word = ("and " if isinstance(node.op, ast.And) else "or ") if i else ""
        if isinstance(value, ast.BoolOp) and not _is_parenthesized(value, text):
            (_, first), *others = _tests(value, text)
            yield word, first
            yield from others
        else:
            yield word, _source(value, text)


def _operands(node: ast.BinOp, text: str) -> Iterator[tuple[str, str]]:
    """Yield the operands of equal precedence from left to right, with the operator before each."""
    left, level = node.left, _PRECEDENCE[type(node.op)]
    is_equal = isinstance(left, ast.BinOp) and _PRECEDENCE.get(type(left.op)) == level
    if isinstance(left, ast.BinOp) and is_equal and not _source(left, text).startswith("("):
        yield from _operands(left, text)
    else:
        yield "", _source(left, text)
    between = text[_end(left, text) : _start(node.right, text)].strip("() ")
    yield f"{between} ", _source(node.right, text)


def _links(node: ast.expr, text: str) -> list[str]:
    """The links of a long chain of methods, each from its dot on; the first starts with the object."""
    dots, after_brackets, current = list[int](), 0, node
    while True:
        if isinstance(current, ast.Call):
            if isinstance(current.func, ast.Attribute):
                value = current.func.value
                if isinstance(value, (ast.Call, ast.Subscript)) or _is_parenthesized(value, text):
                    after_brackets += 1
                    dots.append(text.index(".", _end(value, text)))
            current = current.func
        elif isinstance(current, (ast.Attribute, ast.Subscript)):
            current = current.value
        else:
            break
    if after_brackets < _FLUENT:
        return []
    ends = [0, *reversed(dots), len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


def _break_brackets(node: ast.expr, text: str, lines: Lines) -> str:
    """A call with its arguments on lines of their own."""
    if not isinstance(node, ast.Call) or not (node.args or node.keywords) or not text.endswith(")"):
        return text
    head = text[: _end(node.func, text)]
    arguments = [_source(a, text) for a in node.args]
    arguments += [
        f"{k.arg}={_source(k.value, text)}" if k.arg else f"**{_source(k.value, text)}" for k in node.keywords
    ]
    inside = lines.inner
    on_one_line = ", ".join(arguments)
    if inside.fits(on_one_line) and not any(isinstance(a, ast.Starred) for a in node.args):
        return f"{head}({inside.start()}{on_one_line}{lines.start()})"
    broken = "".join(f"{inside.start()}{break_argument(a, inside)}," for a in arguments)
    return f"{head}({broken}{lines.start()})"


def _source(node: ast.expr, text: str) -> str:
    """The text of a part of an expression, with the parentheses around it."""
    start, end = _start(node, text), _end(node, text)
    return text[start:end]


def _start(node: ast.expr, text: str) -> int:
    """The start of a part, with the parentheses around it that belong to it alone."""
    start, end = _plain_range(node, text)
    return _with_parentheses(start, end, text)[0]


def _end(node: ast.expr, text: str) -> int:
    start, end = _plain_range(node, text)
    return _with_parentheses(start, end, text)[1]


def _plain_range(node: ast.expr, text: str) -> tuple[int, int]:
    encoded = text.encode()
    return len(encoded[: node.col_offset].decode()), len(encoded[: node.end_col_offset].decode())


def _is_parenthesized(node: ast.expr, text: str) -> bool:
    return _start(node, text) < _plain_range(node, text)[0]


def _with_parentheses(start: int, end: int, text: str) -> tuple[int, int]:
    """The range widened by the parentheses that enclose exactly it and are no argument list."""
    while True:
        before, after = text[:start].rstrip(), text[end:].lstrip()
        is_group = before.endswith("(") and after.startswith(")") and not _is_called(before[:-1])
        if not is_group:
            return start, end
        start, end = len(before) - 1, len(text) - len(after) + 1


def _is_called(before: str) -> bool:
    """Whether a `(` after this text starts the arguments of a call."""
    words = _LAST_WORD.findall(before)
    return before[-1:] in (")", "]") or bool(words) and words[0] not in ("if", "else", "and", "or", "not", "in", "is")
