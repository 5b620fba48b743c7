"""Tests of several variants -> the statements that find the variant that holds, at the least cost a call.

What is tested is the tests' affair; here they are made cheap. A module's state is read out of its `__dict__`, anything
that is asked for twice is read once, what follows from another test is left out, and what variants have in common is
tested once for all of them. A test that cannot be asked, because something is gone or has no truth, has failed.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autofuse.fx.install.guard_code import EAGER, NO_FUNCTION_MODE, SCOPE, GuardWords, identity, parsed
from autofuse.fx.install.seen_calls import (
    FEWEST_TESTS,
    MOST_TENSORS,
    SeenCalls,
    asked_for_as_tensor,
    metadata_tests,
    sizes_asked,
)

SEEN = "_seen"  # the local variable that holds the level of the kind of this call, 0 if it is new (seen_calls.py)
_KIND = "_kind"
FOUND = "_found"  # the local variable that holds the number of the variant, -1 where none holds


@dataclass(frozen=True)
class VariantTests:
    """One variant: the texts of its tests and of its inputs, and the objects that they name."""

    tests: tuple[str, ...]
    inputs: tuple[str, ...]
    names: Mapping[str, Any]


@dataclass
class Dispatch:
    """Statements that set FOUND, the names they use, and for each variant how its inputs are called then."""

    lines: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=lambda: dict(SCOPE))
    inputs: list[list[str]] = field(default_factory=list)
    compared: list[frozenset[str]] = field(default_factory=list)  # the tensors of which each value of SEEN speaks


def written(variants: Sequence[VariantTests], receiver: str, below: int = 0) -> Dispatch:
    """Statements for the body of a forward whose first parameter is called `receiver`.

    In a call that is called quiet, no tensor has `below` elements or more.
    """
    return _Writer(receiver, below).write(variants)


def explained(asked: VariantTests, receiver: str) -> tuple[list[str], dict[str, Any]]:
    """Statements that return the places of the tests that fail, and the names they use."""
    writer = _Writer(receiver)
    lines = [f"{EAGER} = not _is_compiling()", "failed = []"]
    for place, test in enumerate(asked.tests):
        text = ast.unparse(writer.expanded(test, asked.names))
        lines += ["try:", f"    holds = {text}", "except _Error:", "    holds = False"]
        lines += ["if not holds:", f"    failed.append({place})"]
    return [*lines, "return failed"], writer.out.scope


_Tests = dict[str, ast.expr]  # text -> a test; all of them must hold


class _Writer:
    def __init__(self, receiver: str, below: int = 0) -> None:
        self.receiver, self.out, self._below = receiver, Dispatch(), below
        self._constants: dict[Hashable, str] = {}
        self._twice: frozenset[str] = frozenset()
        self._inputs: list[list[ast.expr]] = []

    # Texts to trees.

    def expanded(self, text: str, names: Mapping[str, Any]) -> ast.expr:
        """A test or an input with its words spelled out."""
        tree = ast.parse(text, mode="eval").body
        found: ast.expr = GuardWords(self.receiver, names, self.constant).visit(tree)
        return found

    def constant(self, value: Any) -> ast.Name:
        """The name of an object; equal for equal ones, in whichever variant."""
        key = identity(value)
        name = self._constants.setdefault(key, f"_k{len(self._constants)}")
        self.out.scope[name] = value
        return ast.Name(name)

    def write(self, variants: Sequence[VariantTests]) -> Dispatch:
        tests = [simplified(self.expanded(t, v.names) for t in v.tests) for v in variants]
        self._inputs = [[self.expanded(i, v.names) for i in v.inputs] for v in variants]
        self.out.inputs = [[] for _ in variants]
        self._twice = _read_twice([*{k: t for ts in tests for k, t in ts.items()}.values()], self._inputs)
        self.out.lines = [f"{EAGER} = not _is_compiling()", f"{SEEN} = 0", f"{FOUND} = -1", "try:"]
        self._choose(dict(enumerate(tests)), _Bound({}), 1)
        self.out.lines += ["except _Error:", "    pass"]
        return self.out

    # Trees to statements.

    def _line(self, depth: int, text: str) -> None:
        self.out.lines.append("    " * depth + text)

    def _choose(self, left: dict[int, _Tests], bound: _Bound, depth: int) -> None:
        """Set FOUND to the first of the variants `left` whose tests hold."""
        first = next(iter(left.values()))
        common = {k: t for k, t in first.items() if all(k in tests for tests in left.values())}
        if NO_FUNCTION_MODE in common:  # first: a mode hears of the attributes that the other tests ask for
            common = {NO_FUNCTION_MODE: common[NO_FUNCTION_MODE], **common}
        if common:
            self._line(depth, f"if {' and '.join(self._conditions(common, bound))}:")
            depth += 1
        left = {i: {k: t for k, t in tests.items() if k not in common} for i, tests in left.items()}
        earliest = next(iter(left))
        if not left[earliest]:
            self._take(earliest, bound, depth)
            return
        together = max((_sharing(left, test) for test in left[earliest]), key=len)
        group = {i: left[i] for i in together}
        others = {i: tests for i, tests in left.items() if i not in group}
        self._line(depth, "try:")  # what one variant cannot ask says nothing of the others
        self._choose(group, _Bound(bound), depth + 1)
        self._line(depth, "except _Error:")
        self._line(depth, "    pass")
        if others:
            self._line(depth, f"if {FOUND} < 0:")
            self._choose(others, _Bound(bound), depth + 1)

    def _conditions(self, tests: _Tests, bound: _Bound) -> list[str]:
        """The texts of tests that must all hold. Tests of tensors are left out where such a call has passed before."""
        tensors = tuple(dict.fromkeys(name for t in tests.values() if (name := asked_for_as_tensor(t))))
        covered = metadata_tests(tests, frozenset(tensors), self.out.scope)
        if len(covered) < FEWEST_TESTS or len(tensors) > MOST_TENSORS:
            return [self._text(t, bound) for t in tests.values()]
        asked_of = [t for k, t in tests.items() if k in covered]
        sizes = tuple(None if self._below else sizes_asked(asked_of, name) for name in tensors)
        seen, given = self.constant(SeenCalls(sizes, self._below)).id, ", ".join(tensors)
        self.out.compared.append(frozenset(tensors))
        inner = _Bound(bound)  # what is named there is not read where the call was seen before
        asked = " and ".join(self._text(t, inner) for k, t in tests.items() if k in covered)
        # torch's comparison ends the process where a tensor is nested: it has no strides to compare
        # and a tensor of a class with functions of its own, or a mode, would hear of the question
        nested = " or ".join(f"{name}.is_nested" for name in tensors)
        known = f"{EAGER} and not _overridden({given}) and not ({nested})"
        known += f" and ({SEEN} := ({_KIND} := {seen}.kind)[0]({given}) and {_KIND}[1])"
        asked = f"{asked} and (not {EAGER} or {seen}.learn({given}))"
        if NO_FUNCTION_MODE in tests:  # where one is on, what is asked first says that functions are overridden
            asked = f"{self._text(tests[NO_FUNCTION_MODE], bound)} and {asked}"
        others = [self._text(t, bound) for k, t in tests.items() if k not in covered and k != NO_FUNCTION_MODE]
        return [f"({known} or {asked})", *others]

    def _take(self, which: int, bound: _Bound, depth: int) -> None:
        for place, tree in enumerate(self._inputs[which]):
            known = bound.get(ast.unparse(tree)) or (tree.id if isinstance(tree, ast.Name) else None)
            if known is None:
                known = f"_i{place}"
                self._line(depth, f"{known} = {ast.unparse(self._parts_named(tree, bound, True))}")
            self.out.inputs[which].append(known)
        self._line(depth, f"{FOUND} = {which}")

    def _text(self, tree: ast.expr, bound: _Bound) -> str:
        made = self._named(tree, bound, True)
        text = ast.unparse(made)
        return f"({text})" if isinstance(made, (ast.BoolOp, ast.IfExp)) else text

    def _named(self, tree: ast.expr, bound: _Bound, sure: bool) -> ast.expr:
        """`tree` with names for what was read before, giving names to what will be read again.

        `sure`: this part is evaluated whatever the parts before it gave.
        """
        key = ast.unparse(tree)
        if key in bound:
            return ast.Name(bound[key])
        made = self._parts_named(tree, bound, sure)
        if not sure or key not in self._twice:
            return made
        bound[key] = f"_t{next(bound.serial)}"
        return ast.NamedExpr(ast.Name(bound[key]), made)

    def _parts_named(self, tree: ast.expr, bound: _Bound, sure: bool) -> ast.expr:
        match tree:
            case ast.BoolOp(op, [first, *others]):
                return ast.BoolOp(
                    op, [self._named(first, bound, sure), *(self._named(v, bound, False) for v in others)]
                )
            case ast.IfExp(test, body, orelse):
                made = self._named(test, bound, sure)
                return ast.IfExp(made, self._named(body, bound, False), self._named(orelse, bound, False))
            case ast.Compare(left, ops, [first, *others]):
                made = self._named(left, bound, sure)
                rest = [self._named(first, bound, sure), *(self._named(v, bound, False) for v in others)]
                return ast.Compare(made, ops, rest)
            case ast.UnaryOp(op, operand):
                return ast.UnaryOp(op, self._named(operand, bound, sure))
            case ast.BinOp(left, op, right):
                return ast.BinOp(self._named(left, bound, sure), op, self._named(right, bound, sure))
            case ast.Attribute(value, attr):
                return ast.Attribute(self._named(value, bound, sure), attr)
            case ast.Subscript(value, index):
                return ast.Subscript(self._named(value, bound, sure), index)
            case ast.Call(function, args):
                return ast.Call(self._named(function, bound, sure), [self._named(a, bound, sure) for a in args], [])
        return tree


class _Bound(dict[str, str]):
    """What has been read on the way here -> the local variable that holds it."""

    def __init__(self, outer: dict[str, str]) -> None:
        super().__init__(outer)
        self.serial: Iterator[int] = outer.serial if isinstance(outer, _Bound) else iter(range(1 << 30))


def simplified(tests: Iterator[ast.expr]) -> _Tests:
    """The tests one by one, without those that follow from others."""
    found = {ast.unparse(t): t for test in tests for t in _conjuncts(test)}
    sizes = {size: number for t in found.values() for size, number in _fixed_size(t)}
    shaped = {owner for t in found.values() for n in ast.walk(t) for owner in _shaped(n)}
    kept: _Tests = {}
    for test in found.values():
        made = _Ranks(shaped).visit(test)
        if not any(_fixed_size(test)) and _follows(_Sizes(sizes).visit(parsed("{0}", made))):
            continue
        kept[ast.unparse(made)] = made
    return kept


def _conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from _conjuncts(value)
    else:
        yield test


def _fixed_size(test: ast.expr) -> Iterator[tuple[str, int]]:
    """The x.shape[i] of which a test says that it is a number, and that number."""
    match test:
        case ast.Compare(
            ast.Subscript(ast.Attribute(_, "shape"), ast.Constant(int())) as size,
            [ast.Eq()],
            [ast.Constant(int(number))],
        ):
            yield ast.unparse(size), number


def _shaped(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and node.attr == "shape":
        yield ast.unparse(node.value)


def _follows(test: ast.expr) -> bool:
    """Whether a test holds whatever the arguments are."""
    if any(not isinstance(n, (ast.Compare, ast.BinOp, ast.Constant, ast.operator, ast.cmpop)) for n in ast.walk(test)):
        return False
    return bool(eval(ast.unparse(test), {"__builtins__": {}}))


class _Sizes(ast.NodeTransformer):
    """Puts numbers where sizes are known to be these."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        size = self._sizes.get(ast.unparse(node))
        return ast.Constant(size) if size is not None else node


class _Ranks(ast.NodeTransformer):
    """Asks a shape that is read anyway for the rank."""

    def __init__(self, shaped: set[str]) -> None:
        self._shaped = shaped

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if node.attr != "ndim" or ast.unparse(node.value) not in self._shaped:
            return ast.Attribute(self.visit(node.value), node.attr)
        return ast.Call(ast.Name("len"), [ast.Attribute(node.value, "shape")], [])


def _sharing(left: dict[int, _Tests], test: str) -> list[int]:
    """The variants, from the first one on, that ask for `test`."""
    return list(itertools.takewhile(lambda i: test in left[i], left))


def _read_twice(tests: list[ast.expr], inputs: list[list[ast.expr]]) -> frozenset[str]:
    """The texts of what is read more than once."""
    counts: Counter[str] = Counter()
    for tree in (*tests, *(i for each in inputs for i in each)):
        for node in ast.walk(tree):
            if isinstance(node, (ast.Attribute, ast.Subscript, ast.IfExp)) or _is_asked_for(node):
                counts[ast.unparse(node)] += 1
    return frozenset(text for text, count in counts.items() if count > 1)


def _is_asked_for(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_any_autocast"
