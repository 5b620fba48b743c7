"""The context of the calls in one file: the words of the file, the device it computes on, its training loops.

Rules about calls ask for these facts. Each fact is computed at the first request, because most files have no call that
a rule is about. This module looks at one file only; it contains no rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import children, walk
from autofuse.source.find.training_loops import Nesting, TrainingLoops

_ACCELERATORS = ("xpu", "mps", "accelerator", "hpu")
_MAX_WORD = 40  # characters; longer strings are prose


class CallContext:
    """Facts about one file that rules about calls ask for."""

    def __init__(self, scope: FileScope) -> None:
        self.scope = scope

    @cached_property
    def nesting(self) -> Nesting:
        return Nesting(self.scope.tree)

    @cached_property
    def loops(self) -> TrainingLoops:
        return TrainingLoops(self.scope.tree, self.nesting)

    @cached_property
    def _words(self) -> dict[str, int]:
        """Each identifier and short string of the file, with the first line that contains it."""
        words: dict[str, int] = {}
        for word, line in _words_in(self.scope.tree):
            words[word] = min(line, words.get(word, line))
        return words

    def first_line(self, *parts: str) -> int:
        """The first line with a word that contains one of `parts`; 0 if there is none."""
        return min((line for word, line in self._words.items() if any(p in word for p in parts)), default=0)

    def first_line_of_word(self, *wanted: str) -> int:
        """The first line with one of these words or word parts: `amp` is a part of `use_amp`. 0 if there is none."""
        return min((line for word, line in self._words.items() if not _word_parts(word).isdisjoint(wanted)), default=0)

    def first_read(self, attribute: str) -> int:
        """The first line that reads an attribute of this name; 0 if there is none."""
        reads = (n for n in walk(self.scope.tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
        return min((n.lineno for n in reads if n.attr == attribute), default=0)

    @cached_property
    def is_test(self) -> bool:
        """Whether the file has tests with assertions, or mentions pytest or unittest.

        Slow code in tests is not reported.
        """
        tests = (n for n in walk(self.scope.tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))
        asserted = any(isinstance(n, ast.Assert) for test in tests for n in walk(test))
        return asserted or bool(self.first_line("pytest", "unittest"))

    @cached_property
    def accelerator(self) -> bool | None:
        """Whether the file computes on an accelerator.

        Returns:
            - True if the file mentions an accelerator.
            - Otherwise False if it sets a device to "cpu", or if it makes a model and mentions no device.
            - Otherwise None (unknown).
        """
        if self.first_line("cuda") or self.first_line_of_word(*_ACCELERATORS):
            return True
        if any(
            "device" in name and _is_cpu(value) for node in walk(self.scope.tree) for name, value in _named_values(node)
        ):
            return False
        return None if self.first_line("device") or not self._makes_model() else False

    def _makes_model(self) -> bool:
        """Whether code outside of classes makes a module: `model = Net()`."""
        return any(self._is_module(value) for _, value in self._values_outside_classes())

    def _is_module(self, value: ast.expr) -> bool:
        if not isinstance(value, ast.Call):
            return False
        is_own_class = isinstance(value.func, ast.Name) and value.func.id in self.scope.classes
        return is_own_class or (self.scope.name_of(value.func) or "").startswith("torch.nn.")

    def _values_outside_classes(self) -> Iterator[tuple[str, ast.expr]]:
        todo: list[ast.AST] = [self.scope.tree]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                yield node.targets[0].id, node.value
            todo += () if isinstance(node, ast.ClassDef) else children(node)

    def assigned_values(self, name: str) -> list[ast.expr]:
        """All values that code outside of classes assigns to the variable `name`."""
        return [value for n, value in self._values_outside_classes() if n == name]


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yields the names and values of assignments and parameter defaults: `device = ...`, `self.device = ...`."""
    if isinstance(node, ast.Assign):
        yield from ((getattr(t, "attr", getattr(t, "id", "")), node.value) for t in node.targets)
    elif isinstance(node, ast.arguments):
        positional = [*node.posonlyargs, *node.args][::-1]
        yield from ((a.arg, d) for a, d in zip(positional, node.defaults[::-1], strict=False))
        yield from ((a.arg, d) for a, d in zip(node.kwonlyargs, node.kw_defaults, strict=True))


def _is_cpu(value: ast.expr | None) -> bool:
    """Whether an expression is `"cpu"` or `torch.device("cpu")`."""
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    return isinstance(value, ast.Constant) and value.value == "cpu"


def _word_parts(word: str) -> set[str]:
    """The word itself and its parts: `autocast` of `torch.autocast`, `amp` of `use_amp`."""
    return {word, *re.split(r"[^A-Za-z0-9]+", word)}


def _words_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in walk(tree):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.keyword(arg=str(word)):
                yield word, node.lineno
            case ast.Constant(value=str(word)) if len(word) <= _MAX_WORD:
                yield word, node.lineno
            case ast.Constant(value=complex()):
                yield "complex", node.lineno
            case ast.ImportFrom(module=module, names=names):
                yield from ((w, node.lineno) for w in (module or "", *(a.name for a in names)))
            case ast.Import(names=names):
                yield from ((a.name, node.lineno) for a in names)
            case ast.FunctionDef(name=word) | ast.ClassDef(name=word):
                yield word, node.lineno
