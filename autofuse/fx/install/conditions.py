"""Generates the statements that find the variant whose tests hold, as cheaply as possible.

- A module's state is read from its `__dict__`.
- A value that several tests read is read once.
- A test that follows from another test is omitted.
- Tests that several variants share run once.
- A test that raises has failed.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autofuse.fx.install.guard_code import EAGER, NO_FUNCTION_MODE, SCOPE, GuardWords, fill_template, identity
from autofuse.fx.install.seen_calls import (
    FEWEST_TESTS,
    MOST_TENSORS,
    SeenCalls,
    dimensions_read,
    metadata_tests,
    tensor_test_argument,
)

SEEN = "_seen"  # local variable: the level of this call's kind, 0 if it is new (seen_calls.py)
_KIND = "_kind"
FOUND = "_found"  # local variable: the index of the variant, -1 if none holds


@dataclass(frozen=True)
class VariantTests:
    """The tests and inputs of one variant as text, and the objects that they name."""

    tests: tuple[str, ...]
    inputs: tuple[str, ...]
    names: Mapping[str, Any]


@dataclass
class Dispatch:
    """Statements that set FOUND, the names that they use, and the names of each variant's inputs."""

    lines: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=lambda: dict(SCOPE))
    inputs: list[list[str]] = field(default_factory=list)
    compared: list[frozenset[str]] = field(default_factory=list)  # the tensors that each SeenCalls compares


def write_dispatch(variants: Sequence[VariantTests], receiver: str, below: int = 0) -> Dispatch:
    """Statements for the body of a forward.

    Args:
        variants: tests and inputs of each variant, in order.
        receiver: the name of the forward's first parameter.
        below: in a quiet call, each tensor has fewer elements than this.
    """
    return _Writer(receiver, below).write(variants)


def write_guard_checker(
    asked: VariantTests, receiver: str, only_first: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Statements that return the indices of failed tests, and the names that they use.

    With `only_first` they return the first index, and evaluate no later test.
    """
    writer = _Writer(receiver)
    lines = [f"{EAGER} = not _is_compiling()", "failed = []"]
    for place, test in enumerate(asked.tests):
        text = ast.unparse(writer.expand(test, asked.names))
        lines += ["try:", f"    holds = {text}", "except _Error:", "    holds = False"]
        lines += ["if not holds:", f"    return [{place}]" if only_first else f"    failed.append({place})"]
    return [*lines, "return failed"], writer.out.scope


_Tests = dict[str, ast.expr]  # text -> test; all must hold


class _Writer:
    def __init__(self, receiver: str, below: int = 0) -> None:
        self.receiver, self.out, self._below = receiver, Dispatch(), below
        self._constants: dict[Hashable, str] = {}
        self._twice: frozenset[str] = frozenset()
        self._inputs: list[list[ast.expr]] = []

    # Texts to trees.

    def expand(self, text: str, names: Mapping[str, Any]) -> ast.expr:
        """A test or input as an expression of plain Python."""
        tree = ast.parse(text, mode="eval").body
        found: ast.expr = GuardWords(self.receiver, names, self.constant).visit(tree)
        return found

    def constant(self, value: Any) -> ast.Name:
        """The name of an object. Equal objects have the same name in all variants."""
        key = identity(value)
        name = self._constants.setdefault(key, f"_k{len(self._constants)}")
        self.out.scope[name] = value
        return ast.Name(name)

    def write(self, variants: Sequence[VariantTests]) -> Dispatch:
        tests = [simplify_tests(self.expand(t, v.names) for t in v.tests) for v in variants]
        self._inputs = [[self.expand(i, v.names) for i in v.inputs] for v in variants]
        self.out.inputs = [[] for _ in variants]
        self._twice = _repeated_reads([*{k: t for ts in tests for k, t in ts.items()}.values()], self._inputs)
        self.out.lines = [f"{EAGER} = not _is_compiling()", f"{SEEN} = 0", f"{FOUND} = -1", "try:"]
        self._write_choice(dict(enumerate(tests)), _Bound({}), 1)
        self.out.lines += ["except _Error:", "    pass"]
        return self.out

    # Trees to statements.

    def _line(self, depth: int, text: str) -> None:
        self.out.lines.append("    " * depth + text)

    def _write_choice(self, left: dict[int, _Tests], bound: _Bound, depth: int) -> None:
        """Write statements that set FOUND to the first variant in `left` whose tests hold."""
        first = next(iter(left.values()))
        common = {k: t for k, t in first.items() if all(k in tests for tests in left.values())}
        if NO_FUNCTION_MODE in common:  # first, because a mode would see the attribute reads of the other tests
            common = {NO_FUNCTION_MODE: common[NO_FUNCTION_MODE], **common}
        if common:
            self._line(depth, f"if {' and '.join(self._conditions(common, bound))}:")
            depth += 1
        left = {i: {k: t for k, t in tests.items() if k not in common} for i, tests in left.items()}
        earliest = next(iter(left))
        if not left[earliest]:
            self._select(earliest, bound, depth)
            return
        together = max((_variants_with(left, test) for test in left[earliest]), key=len)
        group = {i: left[i] for i in together}
        others = {i: tests for i, tests in left.items() if i not in group}
        self._line(depth, "try:")  # a test that raises fails only its own variants
        self._write_choice(group, _Bound(bound), depth + 1)
        self._line(depth, "except _Error:")
        self._line(depth, "    pass")
        if others:
            self._line(depth, f"if {FOUND} < 0:")
            self._write_choice(others, _Bound(bound), depth + 1)

    def _conditions(self, tests: _Tests, bound: _Bound) -> list[str]:
        """The texts of tests that must all hold. A known kind of call skips the tests of tensors."""
        tensors = tuple(dict.fromkeys(name for t in tests.values() if (name := tensor_test_argument(t))))
        covered = metadata_tests(tests, frozenset(tensors), self.out.scope)
        if len(covered) < FEWEST_TESTS or len(tensors) > MOST_TENSORS:
            return [self._text(t, bound) for t in tests.values()]
        asked_of = [t for k, t in tests.items() if k in covered]
        sizes = tuple(None if self._below else dimensions_read(asked_of, name) for name in tensors)
        seen, given = self.constant(SeenCalls(sizes, self._below)).id, ", ".join(tensors)
        self.out.compared.append(frozenset(tensors))
        inner = _Bound(bound)  # names that are bound in here are not bound if the kind of call is known
        asked = " and ".join(self._text(t, inner) for k, t in tests.items() if k in covered)
        # A nested tensor has no strides, and torch's comparison would end the process.
        # A tensor subclass with __torch_function__, or a mode, would see the comparison.
        nested = " or ".join(f"{name}.is_nested" for name in tensors)
        known = f"{EAGER} and not _overridden({given}) and not ({nested})"
        known += f" and ({SEEN} := ({_KIND} := {seen}.kind)[0]({given}) and {_KIND}[1])"
        asked = f"{asked} and (not {EAGER} or {seen}.learn({given}))"
        if NO_FUNCTION_MODE in tests:  # if a mode is active, `_overridden` is true, and this test decides
            asked = f"{self._text(tests[NO_FUNCTION_MODE], bound)} and {asked}"
        others = [self._text(t, bound) for k, t in tests.items() if k not in covered and k != NO_FUNCTION_MODE]
        return [f"({known} or {asked})", *others]

    def _select(self, which: int, bound: _Bound, depth: int) -> None:
        for place, tree in enumerate(self._inputs[which]):
            known = bound.get(ast.unparse(tree)) or (tree.id if isinstance(tree, ast.Name) else None)
            if known is None:
                known = f"_i{place}"
                self._line(depth, f"{known} = {ast.unparse(self._bind_parts(tree, bound, True))}")
            self.out.inputs[which].append(known)
        self._line(depth, f"{FOUND} = {which}")

    def _text(self, tree: ast.expr, bound: _Bound) -> str:
        made = self._bind_reads(tree, bound, True)
        text = ast.unparse(made)
        return f"({text})" if isinstance(made, (ast.BoolOp, ast.IfExp)) else text

    def _bind_reads(self, tree: ast.expr, bound: _Bound, sure: bool) -> ast.expr:
        """`tree` with earlier reads replaced by names, and with new names for reads that occur again.

        sure: this part is evaluated whatever the earlier parts returned.
        """
        key = ast.unparse(tree)
        if key in bound:
            return ast.Name(bound[key])
        made = self._bind_parts(tree, bound, sure)
        if not sure or key not in self._twice:
            return made
        bound[key] = f"_t{next(bound.serial)}"
        return ast.NamedExpr(ast.Name(bound[key]), made)

    def _bind_parts(self, tree: ast.expr, bound: _Bound, sure: bool) -> ast.expr:
        match tree:
            case ast.BoolOp(op, [first, *others]):
                return ast.BoolOp(
                    op, [self._bind_reads(first, bound, sure), *(self._bind_reads(v, bound, False) for v in others)]
                )
            case ast.IfExp(test, body, orelse):
                made = self._bind_reads(test, bound, sure)
                return ast.IfExp(made, self._bind_reads(body, bound, False), self._bind_reads(orelse, bound, False))
            case ast.Compare(left, ops, [first, *others]):
                made = self._bind_reads(left, bound, sure)
                rest = [self._bind_reads(first, bound, sure), *(self._bind_reads(v, bound, False) for v in others)]
                return ast.Compare(made, ops, rest)
            case ast.UnaryOp(op, operand):
                return ast.UnaryOp(op, self._bind_reads(operand, bound, sure))
            case ast.BinOp(left, op, right):
                return ast.BinOp(self._bind_reads(left, bound, sure), op, self._bind_reads(right, bound, sure))
            case ast.Attribute(value, attr):
                return ast.Attribute(self._bind_reads(value, bound, sure), attr)
            case ast.Subscript(value, index):
                return ast.Subscript(self._bind_reads(value, bound, sure), index)
            case ast.Call(function, args):
                return ast.Call(
                    self._bind_reads(function, bound, sure), [self._bind_reads(a, bound, sure) for a in args], []
                )
        return tree


class _Bound(dict[str, str]):
    """Expressions that were read before this point -> the local variables that hold their values."""

    def __init__(self, outer: dict[str, str]) -> None:
        super().__init__(outer)
        self.serial: Iterator[int] = outer.serial if isinstance(outer, _Bound) else iter(range(1 << 30))


def simplify_tests(tests: Iterator[ast.expr]) -> _Tests:
    """The single tests, without those that follow from others."""
    found = {ast.unparse(t): t for test in tests for t in _conjuncts(test)}
    sizes = {size: number for t in found.values() for size, number in _fixed_sizes(t)}
    shaped = {owner for t in found.values() for n in ast.walk(t) for owner in _tensor_of_shape(n)}
    kept: _Tests = {}
    for test in found.values():
        made = _Ranks(shaped).visit(test)
        if not any(_fixed_sizes(test)) and _is_always_true(_Sizes(sizes).visit(fill_template("{0}", made))):
            continue
        kept[ast.unparse(made)] = made
    return kept


def _conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from _conjuncts(value)
    else:
        yield test


def _fixed_sizes(test: ast.expr) -> Iterator[tuple[str, int]]:
    """Each `x.shape[i]` that a test compares with a number, and that number."""
    match test:
        case ast.Compare(
            ast.Subscript(ast.Attribute(_, "shape"), ast.Constant(int())) as size,
            [ast.Eq()],
            [ast.Constant(int(number))],
        ):
            yield ast.unparse(size), number


def _tensor_of_shape(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and node.attr == "shape":
        yield ast.unparse(node.value)


def _is_always_true(test: ast.expr) -> bool:
    """Whether a test holds for all arguments."""
    if any(not isinstance(n, (ast.Compare, ast.BinOp, ast.Constant, ast.operator, ast.cmpop)) for n in ast.walk(test)):
        return False
    return bool(eval(ast.unparse(test), {"__builtins__": {}}))


class _Sizes(ast.NodeTransformer):
    """Replaces sizes that are known by their numbers."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        size = self._sizes.get(ast.unparse(node))
        return ast.Constant(size) if size is not None else node


class _Ranks(ast.NodeTransformer):
    """Reads the rank from a shape that is read anyway."""

    def __init__(self, shaped: set[str]) -> None:
        self._tensor_of_shape = shaped

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if node.attr != "ndim" or ast.unparse(node.value) not in self._tensor_of_shape:
            return ast.Attribute(self.visit(node.value), node.attr)
        return ast.Call(ast.Name("len"), [ast.Attribute(node.value, "shape")], [])


def _variants_with(left: dict[int, _Tests], test: str) -> list[int]:
    """The leading variants that contain `test`."""
    return list(itertools.takewhile(lambda i: test in left[i], left))


def _repeated_reads(tests: list[ast.expr], inputs: list[list[ast.expr]]) -> frozenset[str]:
    """The expressions that are read more than once."""
    counts: Counter[str] = Counter()
    for tree in (*tests, *(i for each in inputs for i in each)):
        for node in ast.walk(tree):
            if isinstance(node, (ast.Attribute, ast.Subscript, ast.IfExp)) or _is_query(node):
                counts[ast.unparse(node)] += 1
    return frozenset(text for text, count in counts.items() if count > 1)


def _is_query(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_any_autocast"
