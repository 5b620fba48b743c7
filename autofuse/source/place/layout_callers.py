"""Decides whether the rest of a file depends on the memory layout of what a function returns.

The search looks at the calls of a function, or of an instance of its class, under every name that holds it
(capture/call_index.py). If a function returns the result of such a call, its own calls are searched too. Only names are
compared. So the search may report a read of another object, but it does not miss a read.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.call_index import FORWARD, IndexedCall, call_index, called_name, decorated_name
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.scope import ClassScope
from autofuse.source.capture.syntax import walk
from autofuse.source.place.layout_reads import LAYOUT_ATTRIBUTES, PERMUTING

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(eq=False)
class LayoutReads:
    """Calls and names of a scope that reads their layout."""

    calls: set[ast.Call] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


class LayoutIndex:
    """The layout reads of one file, and what its functions return. Subclasses may collect other kinds of reads.

    A read is silent if a changed layout gives another result instead of an error. `stride()` is silent. A `view` that
    raises an error is not; a `view` inside a `try` is.

    Attributes:
        reads: (scope, whether the reads are silent) -> the reads.
        returned: function -> the calls and names that it returns.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._index = call_index(tree)
        self.reads: defaultdict[tuple[ast.AST, bool], LayoutReads] = defaultdict(LayoutReads)
        self.returned: defaultdict[ast.AST, LayoutReads] = defaultdict(LayoutReads)
        self._answers: dict[tuple[str, bool], tuple[bool, frozenset[str]]] = {}
        self.collect(tree)

    def has_reads(self, silent_only: bool = False) -> bool:
        """Whether the file has any layout reads; with `silent_only`, only silent ones count."""
        return any(
            reads.calls or reads.names for (_, is_silent), reads in self.reads.items() if is_silent or not silent_only
        )

    def callers_read(self, function: Function, owner: ClassScope | None, silent_only: bool = False) -> bool:
        """Whether a caller in this file reads the layout of the result of `function`."""
        return any_caller_reads([self], function, owner, silent_only)

    def function_reads_arguments(self, name: str, silent_only: bool) -> bool:
        """Whether a function in this file with this name reads the layout of one of its parameters."""
        return any(self._reads_any(f, _arguments(f), silent_only) for f in self._index.functions_by_name.get(name, ()))

    def result_reads(self, name: str, silent_only: bool) -> tuple[bool, frozenset[str]]:
        """Whether callers of `name` read the layout of its result, and the functions that return it in turn."""
        if (name, silent_only) not in self._answers:
            self._answers[name, silent_only] = self._find_result_reads(name, silent_only)
        return self._answers[name, silent_only]

    def _find_result_reads(self, function_name: str, silent_only: bool) -> tuple[bool, frozenset[str]]:
        todo, seen, returning, index = [function_name], set[str](), set[str](), self._index
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            todo += index.holders[name]
            # In an nn.Sequential, the next module gets the result as its argument.
            forwards = (f for n in index.next_layers[name] if (f := index.forwards.get(n)) is not None)
            if any(self._reads_any(f, _arguments(f), silent_only) for f in forwards):
                return True, frozenset()
            for called in index.calls_of(name):
                if self._is_read(called, silent_only):
                    return True, frozenset()
                returning |= {*self._returning_functions(called)}
            todo += returning
        return False, frozenset(returning - {function_name})

    def _is_read(self, called: IndexedCall, silent_only: bool) -> bool:
        for scope in called.scopes:
            for kind in (True,) if silent_only else (True, False):
                reads = self.reads.get((scope, kind))
                if reads and (called.node in reads.calls or not reads.names.isdisjoint(called.targets)):
                    return True
        return any(self.function_reads_arguments(n, silent_only) for n in self._receiving_functions(called))

    def _receiving_functions(self, called: IndexedCall) -> Iterator[str]:
        """Yields the functions of the file that get the result of a call as an argument."""
        for scope in called.scopes[-1:]:
            for node in walk(scope):
                if isinstance(node, ast.Call) and called_name(node.func) in self._index.functions_by_name:
                    arguments = [*node.args, *(k.value for k in node.keywords)]
                    if any(
                        argument is called.node or isinstance(argument, ast.Name) and argument.id in called.targets
                        for argument in arguments
                    ):
                        yield called_name(node.func)

    def _returning_functions(self, called: IndexedCall) -> Iterator[str]:
        for scope in called.scopes:
            returned = self.returned.get(scope)
            if returned and (called.node in returned.calls or not returned.names.isdisjoint(called.targets)):
                name = getattr(scope, "name", "")
                yield self._index.method_classes.get(scope, name) if name in FORWARD else name

    def _reads_any(self, scope: ast.AST, names: set[str], silent_only: bool) -> bool:
        kinds = (True,) if silent_only else (True, False)
        return any((scope, k) in self.reads and not self.reads[scope, k].names.isdisjoint(names) for k in kinds)

    def collect(self, tree: ast.Module) -> None:
        """Fills `reads` and `returned` from the syntax tree."""
        index = node_index(tree)
        # An error inside a `try`, or in a function that is called later, may be caught: then it is silent.
        caught = _outermost_ranges([*index.of(ast.Try), *index.of(ast.Lambda)])
        for i, returned in index.placed(ast.Return):
            collect_sources(returned.value, self.returned[index.scopes(i)[-1]])
        for i, node in index.placed(ast.Attribute):
            if node.attr in LAYOUT_ATTRIBUTES or node.attr in ("view", "view_as"):
                is_silent = node.attr in LAYOUT_ATTRIBUTES or _is_permuted(node.value) or _is_within(node, caught)
                for scope in index.scopes(i):
                    collect_sources(node.value, self.reads[scope, is_silent])


_Place = tuple[int, int]  # a line and a column


def _outermost_ranges(nodes: Iterable[ast.stmt | ast.expr]) -> list[tuple[_Place, _Place]]:
    """The starts and ends of the nodes that are not inside another one, in the order of the text."""
    ranges: list[tuple[_Place, _Place]] = []
    for start, end in sorted(map(_range_of, nodes)):
        if not ranges or start >= ranges[-1][1]:
            ranges.append((start, end))
    return ranges


def _range_of(node: ast.stmt | ast.expr) -> tuple[_Place, _Place]:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _is_within(node: ast.expr, ranges: Sequence[tuple[_Place, _Place]]) -> bool:
    """Whether an expression is inside one of the ranges."""
    start, end = _range_of(node)
    i = bisect_right(ranges, start, key=lambda r: r[0]) - 1
    return i >= 0 and end <= ranges[i][1]


def any_caller_reads(
    indexes: Sequence[LayoutIndex], function: Function, owner: ClassScope | None, silent_only: bool = False
) -> bool:
    """Whether a caller in these files reads the layout of the result of `function`.

    Args:
        indexes: the indexes of the files.
        function: the function.
        owner: its class, if it is a method.
        silent_only: whether only silent reads count.
    """
    is_forward = owner is not None and function.name in FORWARD
    todo, seen = (
        [owner.node.name if is_forward and owner is not None else function.name, decorated_name(function)],
        set[str](),
    )
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for index in indexes:
            is_read, returning = index.result_reads(name, silent_only)
            if is_read:
                return True
            todo += returning
    return False


def _arguments(function: Function) -> set[str]:
    return {a.arg for a in walk(function.args) if isinstance(a, ast.arg)}


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_permuted(node: ast.expr) -> bool:
    """Whether dimensions are permuted before a view. Such a view needs strides that a fused result lacks."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and node.attr in PERMUTING:
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("contiguous", "clone", "reshape"):
            return False
        node = node.func if isinstance(node, ast.Call) else node.value
    return False


def collect_sources(expression: ast.expr | None, reads: LayoutReads) -> None:
    """Adds the calls and names that an expression may get its value from: `attend(x)` for `attend(x).float()[0]`."""
    todo = [expression]
    while todo:
        expression = todo.pop()
        if isinstance(expression, ast.Name):
            reads.names.add(expression.id)
        elif isinstance(expression, ast.Call):
            reads.calls.add(expression)
            if isinstance(expression.func, ast.Attribute) and expression.func.attr != "contiguous":
                todo += [expression.func.value, *expression.args[: _last(expression.func.value) == "torch"]]
        elif isinstance(expression, (ast.Attribute, ast.Subscript)):
            todo.append(expression.value)
        elif isinstance(expression, ast.BinOp):
            todo += [expression.left, expression.right]
        elif isinstance(expression, ast.Tuple):
            todo += expression.elts
        elif isinstance(expression, ast.IfExp):
            todo += [expression.body, expression.orelse]
