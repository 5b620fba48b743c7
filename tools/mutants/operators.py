"""The mutation operators: which part of a file's syntax is replaced by what.

A change replaces one part of the text, so that the diff of a mutant is small and readable.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
# Nodes whose change does not affect behaviour, or that have no position of their own in the text.
_SKIPPED = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)
_NO_BEHAVIOUR = ("annotation", "returns", "decorator_list", "bases", "defaults", "kw_defaults")


@dataclass(frozen=True)
class Change:
    """One wrong change: `new` replaces the text from `start` to `end`."""

    operator: str
    line: int
    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


def is_program(text: str) -> bool:
    """Whether a text is valid Python. For example, `pass` cannot replace an `elif`."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def changes(text: str) -> list[Change]:
    """Return all changes of a file, in the order of the text, without duplicates."""
    places = _Places(text)
    tree = ast.parse(text)
    found = {(c.start, c.end, c.new): c for node, owner in _walk(tree, None) for c in _changes(node, owner, places)}
    return sorted(found.values(), key=lambda c: (c.start, c.end, c.operator, c.new))


class _Places:
    """The positions of nodes in the text, in characters."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno or 0, node.end_col_offset or 0)

    def _at(self, line: int, offset: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:offset].decode())


def _walk(node: ast.AST, owner: ast.FunctionDef | None) -> Iterator[tuple[ast.AST, ast.FunctionDef | None]]:
    """Yield every node that may be changed, with the function that contains it."""
    for field, child in _children(node):
        if isinstance(child, _SKIPPED) or field in _NO_BEHAVIOUR:
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        inner = child if isinstance(child, ast.FunctionDef) else owner
        yield child, inner
        yield from _walk(child, inner)


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield field, child


def _changes(node: ast.AST, owner: ast.FunctionDef | None, places: _Places) -> Iterator[Change]:
    if not isinstance(node, (ast.expr, ast.stmt)) or owner is None:  # tables and defaults are not behaviour
        return
    for operator, make in OPERATORS.items():
        for old, new in make(node, owner):
            start, end = places.of(old)
            yield Change(operator, old.lineno, start, end, new)


Replaced = tuple[ast.expr | ast.stmt, str]  # the replaced node, and the new text


def negate_a_condition(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test, f"(not ({ast.unparse(node.test)}))"


def swap_a_comparison(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        changed = copy.copy(node)
        changed.ops = [_COMPARED[type(node.ops[0])]()]
        yield node, f"({ast.unparse(changed)})"


def swap_and_with_or(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    if isinstance(node, ast.BoolOp):
        changed = copy.copy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, f"({ast.unparse(changed)})"


def drop_a_condition(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    """Drop one operand of an `and` or an `or`."""
    for i in range(len(node.values)) if isinstance(node, ast.BoolOp) else ():
        kept = [ast.unparse(v) for j, v in enumerate(node.values) if j != i]  # type: ignore[attr-defined]
        word = " and " if isinstance(node.op, ast.And) else " or "  # type: ignore[attr-defined]
        yield node, "(" + word.join(f"({v})" for v in kept) + ")"  # type: ignore[misc]


def remove_a_not(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, f"bool({ast.unparse(node.operand)})"


def drop_a_guard(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], _LEAVES) and len(node.body) == 1:
        yield node, "pass"


def drop_a_statement(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    """Drop a statement with an effect: a call, an augmented assignment, an assignment to an item or attribute."""
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)) or isinstance(node, ast.AugAssign):
        yield node, "pass"
    if isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple)):
        yield node, "pass"


def return_what_came(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    """Return the first argument of the returned call instead, if it is a parameter of the function."""
    if not isinstance(node, ast.Return) or not isinstance(node.value, ast.Call):
        return
    parameters = {a.arg for a in owner.args.args} - {"self", "cls"}
    first = node.value.args[0] if node.value.args else None
    if isinstance(first, ast.Name) and first.id in parameters:
        yield node.value, first.id


def return_nothing_found(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    """Exchange True and False."""
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
        yield node.value, str(not node.value.value)


def miss_a_number_by_one(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, str(node.value + 1)


def swap_an_arithmetic_operator(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED and not _joins_sequences(node):
        changed = copy.copy(node)
        changed.op = _COMPUTED[type(node.op)]()
        yield node, f"({ast.unparse(changed)})"


def lose_a_sign(node: ast.AST, owner: ast.FunctionDef) -> Iterator[Replaced]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert)):
        yield node, f"({ast.unparse(node.operand)})"


def _joins_sequences(node: ast.BinOp) -> bool:
    """Whether strings, lists or tuples are concatenated. Another operator would raise an error at once."""
    kinds = (ast.JoinedStr, ast.List, ast.Tuple)
    sides = (node.left, node.right)
    return any(isinstance(n, kinds) or isinstance(n, ast.Constant) and isinstance(n.value, str) for n in sides)


OPERATORS: dict[str, Callable[[ast.AST, ast.FunctionDef], Iterator[Replaced]]] = {
    f.__name__.replace("_", " "): f
    for f in (
        negate_a_condition,
        swap_a_comparison,
        swap_and_with_or,
        drop_a_condition,
        remove_a_not,
        drop_a_guard,
        drop_a_statement,
        return_what_came,
        return_nothing_found,
        miss_a_number_by_one,
        swap_an_arithmetic_operator,
        lose_a_sign,
    )
}
