"""A walk over a tree that was laid out visits what any walk visits, in the same order."""

from __future__ import annotations

import ast
import copy
from pathlib import Path

import pytest

import autofuse.source
from autofuse.source.capture.syntax import lay_out, parts, roll_up, walk

FILES = sorted(Path(autofuse.source.__file__).parent.rglob("*.py"))[::12]
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes())


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_tree_that_is_laid_out_is_walked_as_before(file: Path) -> None:
    tree = tree_of(file)
    before = [(n, list(walk(n))) for n in walk(tree) if isinstance(n, (ast.Module, *DEFINITIONS))]
    lay_out(tree)
    assert all(list(walk(n)) == inside for n, inside in before)
    roll_up(tree)
    assert not any("_row" in vars(n) for n in walk(tree))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_that_is_changed_is_walked_as_it_is(copied: type) -> None:
    tree = ast.parse("def f(x):\n    return x\n")
    lay_out(tree)
    made = copied(tree.body[0])
    made.body = [ast.Pass()]
    assert any(isinstance(n, ast.Pass) for n in walk(made))
    assert not any(isinstance(n, ast.Return) for n in walk(made))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_parts_leave_out_only_what_holds_nothing(file: Path) -> None:
    def reached(node: ast.AST) -> list[ast.AST]:
        return [node, *(n for p in parts(node) for n in reached(p))]

    tree = tree_of(file)
    left_out = {id(n) for n in walk(tree)} - {id(n) for n in reached(tree)}
    assert not any(list(parts(n)) for n in walk(tree) if id(n) in left_out)
